//! References to objects of vCenter, and how a request names them *(no client)*.

use quick_xml::escape::escape;

use crate::provider::http::xml::Node;

/// A reference to an object of vCenter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ref {
    kind: String,
    id: String,
}

impl Ref {
    /// The object that the element refers to.
    pub(super) fn of(element: &Node) -> Option<Self> {
        let (kind, id) = (element.target.clone(), element.text().to_owned());
        (!kind.is_empty() && !id.is_empty()).then_some(Self { kind, id })
    }

    /// The object of which every server has one.
    pub(super) fn service_instance() -> Self {
        Self { kind: "ServiceInstance".to_owned(), id: "ServiceInstance".to_owned() }
    }

    pub(super) fn is(&self, kind: &str) -> bool {
        self.kind == kind
    }

    /// What identifies the object in this vCenter, such as `vm-42`.
    pub(super) fn into_id(self) -> String {
        self.id
    }

    /// An element of this name that refers to the object.
    pub(super) fn element(&self, name: &str) -> String {
        format!(r#"<{name} type="{}">{}</{name}>"#, escape(&self.kind), escape(&self.id))
    }
}

/// The part of a question for properties that names these properties of objects of a kind.
pub(super) fn property_set(kind: &str, paths: &[&str]) -> String {
    let paths: String = paths.iter().map(|path| element("pathSet", path)).collect();
    format!("<propSet>{}{paths}</propSet>", element("type", kind))
}

/// The part of a question for properties that names an object. `select`: how to reach further objects from it.
pub(super) fn object_set(object: &Ref, select: &str) -> String {
    format!("<objectSet>{}<skip>false</skip>{select}</objectSet>", object.element("obj"))
}

/// An element with this text.
pub(super) fn element(name: &str, text: &str) -> String {
    format!("<{name}>{}</{name}>", escape(text))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_reference_has_the_type_of_its_object() {
        let of = |text: &str| Ref::of(&Node::parse(text).unwrap());
        let vm = of(r#"<a type="VirtualMachine" x:type="x:ManagedObjectReference"> vm-1 </a>"#).unwrap();
        assert_eq!(vm.element("obj"), r#"<obj type="VirtualMachine">vm-1</obj>"#);
        assert_eq!(of(r#"<a x:type="x:ManagedObjectReference">vm-1</a>"#), None);
        assert_eq!(of(r#"<a type="VirtualMachine"/>"#), None);
    }

    proptest! {
        #[test]
        fn escaped_text_is_parsed_back_unchanged(text in "\\PC*") {
            let node = Node::parse(&element("a", &text)).unwrap();
            prop_assert_eq!(node.text(), text.trim());
            prop_assert!(node.children.is_empty());
        }
    }
}
