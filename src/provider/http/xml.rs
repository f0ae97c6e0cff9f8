//! XML as a tree *(no client)*. A server chooses the prefixes of names, so only what follows them counts.

use quick_xml::{
    Reader, XmlVersion,
    escape::resolve_xml_entity,
    events::{BytesStart, Event},
};

/// No answer that is read here has more levels.
const DEEPEST: usize = 64;

/// An element.
#[derive(Clone, Debug, Default)]
pub(in crate::provider) struct Node {
    /// Its name.
    pub name: String,
    /// The data type, where the element says it (`xsi:type`).
    pub kind: String,
    /// The type of object that it refers to, where it refers to one (`type`).
    pub target: String,
    text: String,
    /// The elements in it.
    pub children: Vec<Node>,
}

impl Node {
    /// Reads a whole document. Fails if it is none, or if it is too deep for an answer.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut reader = Reader::from_str(text);
        reader.config_mut().expand_empty_elements = true;
        let mut open = vec![Self::default()];
        loop {
            let event = reader.read_event().map_err(|problem| problem.to_string())?;
            let text = match event {
                Event::Start(start) if open.len() <= DEEPEST => {
                    open.push(Self::begin(&start)?);
                    continue;
                }
                Event::Start(_) => return Err("it has too many levels".to_owned()),
                Event::End(_) => {
                    let node = open.pop().unwrap_or_default();
                    open.last_mut().ok_or("an element ends that never began")?.children.push(node);
                    continue;
                }
                Event::Text(text) => text.xml10_content().into_owned(),
                Event::CData(text) => text.into_inner().into_owned(),
                Event::GeneralRef(entity) => match entity.resolve_char_ref().map_err(|it| it.to_string())? {
                    Some(character) => character.to_string(),
                    None => resolve_xml_entity(&entity).ok_or("it has an unknown entity")?.to_owned(),
                },
                Event::DocType(_) => return Err("it has a document type".to_owned()),
                Event::Eof => break,
                _ => continue,
            };
            open.last_mut().ok_or("a text is nowhere")?.text.push_str(&text);
        }
        let mut document = open.pop().unwrap_or_default().children;
        match (document.pop(), document.is_empty() && open.is_empty()) {
            (Some(root), true) => Ok(root),
            _ => Err("it is no whole document".to_owned()),
        }
    }

    fn begin(start: &BytesStart<'_>) -> Result<Self, String> {
        let mut node = Self { name: local(start.name().0).to_owned(), ..Self::default() };
        for attribute in start.attributes() {
            let attribute = attribute.map_err(|problem| problem.to_string())?;
            let value = attribute.normalized_value(XmlVersion::Explicit1_0).map_err(|it| it.to_string())?;
            match attribute.key.0 {
                "type" => node.target = value.into_owned(),
                name if local(name) == "type" => local(&value).clone_into(&mut node.kind),
                _ => {}
            }
        }
        Ok(node)
    }

    /// The first element of this name in it.
    pub fn child(&self, name: &str) -> Option<&Self> {
        self.children.iter().find(|child| child.name == name)
    }

    /// All elements of this name in it.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &Self> {
        self.children.iter().filter(move |child| child.name == name)
    }

    /// The text in the first element of this name; empty if there is none.
    pub fn text_of(&self, name: &str) -> &str {
        self.child(name).map_or("", Self::text)
    }

    /// The same, unless it is empty.
    pub fn non_empty(&self, name: &str) -> Option<String> {
        Some(self.text_of(name)).filter(|text| !text.is_empty()).map(str::to_owned)
    }

    /// The text in the first element of this name, with surrounding white space.
    pub fn exact_of(&self, name: &str) -> Option<&str> {
        Some(&self.child(name)?.text)
    }

    /// The text in it, without surrounding white space.
    pub fn text(&self) -> &str {
        self.text.trim()
    }
}

fn local(name: &str) -> &str {
    name.rsplit(':').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_read_without_prefixes_and_texts_without_escapes() {
        let text = r#"<?xml version="1.0"?><s:a xmlns:s="x" xmlns:q="y"><b type="VirtualMachine" q:type="q:ManagedObjectReference"> vm-1
            </b><b q:type="ns:X"/><c>1 &lt; &#50;<![CDATA[ & ]]></c></s:a>"#;
        let node = Node::parse(text).unwrap();
        let all: Vec<_> = node.all("b").collect();
        assert_eq!((&*node.name, all.len(), all[0].kind.as_str()), ("a", 2, "ManagedObjectReference"));
        assert_eq!((&*all[0].target, all[0].text()), ("VirtualMachine", "vm-1"));
        assert_eq!((all[1].kind.as_str(), &*all[1].target), ("X", ""));
        assert_eq!((node.text_of("c"), node.text_of("d")), ("1 < 2 &", ""));
        assert_eq!((node.non_empty("b").as_deref(), node.non_empty("d")), (Some("vm-1"), None));
    }

    #[test]
    fn malformed_documents_are_refused() {
        let deep = format!("{}{}", "<a>".repeat(100_000), "</a>".repeat(100_000));
        for text in [
            "",
            "a",
            "<a>",
            "<a></b>",
            "<a/><b/>",
            "</a>",
            "<a><b></a>",
            "<a>&x;</a>",
            "<!DOCTYPE a><a/>",
            &deep,
        ] {
            assert!(Node::parse(text).is_err(), "{}", &text[..text.len().min(20)]);
        }
    }

    proptest! {
        #[test]
        fn any_answer_is_read_without_panic(text in "[<>/a:=\"&;! ?\\-\\[\\]]{0,60}") {
            let _ = Node::parse(&text);
        }
    }
}
