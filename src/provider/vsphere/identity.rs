//! Which vCenter knows a session *(no client)*.
//!
//! The property collector of a vCenter tells its identity also to clients that are not logged in. So the operator asks for the identity
//! together with the session in which it asks. A vCenter that does not know the session names none.

use super::reference::{Ref, object_set, property_set};
use crate::provider::http::xml::Node;

/// The identity, a property of the `ServiceInstance`.
const IDENTITY: &str = "content.about.instanceUuid";

/// The session in which the question comes, a property of the `SessionManager`.
const SESSION: &str = "currentSession";

/// Asks for the identity and the session.
pub(super) fn question(session_manager: &Ref) -> String {
    let parts = [
        property_set("ServiceInstance", &[IDENTITY]),
        property_set("SessionManager", &[SESSION]),
        object_set(&Ref::service_instance(), ""),
        object_set(session_manager, ""),
    ];
    format!("<specSet>{}</specSet><options/>", parts.concat())
}

/// The identity of the vCenter that gave this answer to the [`question`], if it knows the session with this key.
pub(super) fn vcenter(answer: &Node, key: &str) -> Option<String> {
    let knows = property(answer, SESSION)?.text_of("key") == key;
    let identity = property(answer, IDENTITY)?.text();
    (knows && !identity.is_empty()).then(|| identity.to_ascii_lowercase())
}

/// The value of a property that one of the objects in the answer has.
fn property<'a>(answer: &'a Node, name: &str) -> Option<&'a Node> {
    let mut all = answer.child("returnval")?.all("objects").flat_map(|object| object.all("propSet"));
    all.find(|property| property.text_of("name") == name)?.child("val")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "5F0D1B5C-0C3D-4B8E-9C57-3D1A2B3C4D5E";

    /// An answer with this identity and these further objects.
    fn answered(identity: &str, objects: &str) -> Option<String> {
        let set = format!("<propSet><name>{IDENTITY}</name><val>{identity}</val></propSet>");
        let service = format!(r#"<objects><obj type="ServiceInstance">ServiceInstance</obj>{set}</objects>"#);
        let answer = format!("<answer><returnval>{service}{objects}</returnval></answer>");
        vcenter(&Node::parse(&answer).unwrap(), "key-1")
    }

    fn session(inside: &str) -> String {
        let set =
            format!(r#"<propSet><name>{SESSION}</name><val x:type="UserSession">{inside}</val></propSet>"#);
        format!(r#"<objects><obj type="SessionManager">SessionManager</obj>{set}</objects>"#)
    }

    #[test]
    fn only_a_vcenter_that_knows_the_session_has_an_identity() {
        let known = session("<key>key-1</key><userName>user</userName>");
        assert_eq!(answered(ID, &known), Some(ID.to_lowercase()));
        assert_eq!(answered("", &known), None);
        for unknown in [
            session("<key>key-2</key>"),
            session("<userName>key-1</userName>"),
            session(""),
            r#"<objects><obj type="SessionManager">SessionManager</obj></objects>"#.to_owned(),
            r#"<objects><obj type="SessionManager">key-1</obj><missingSet><path>currentSession</path></missingSet></objects>"#.to_owned(),
            String::new(),
        ] {
            assert_eq!(answered(ID, &unknown), None, "{unknown}");
        }
        // What vCenter may answer in a session that has ended.
        assert_eq!(vcenter(&Node::parse("<answer/>").unwrap(), "key-1"), None);
    }

    #[test]
    fn the_question_names_both_objects_and_a_property_of_each() {
        let manager = Node::parse(r#"<a type="SessionManager">manager-1</a>"#).unwrap();
        let question = question(&Ref::of(&manager).unwrap());
        let question = Node::parse(&format!("<a>{question}</a>")).unwrap();
        let specification = question.child("specSet").unwrap();
        let asked: Vec<_> =
            specification.all("propSet").map(|set| (set.text_of("type"), set.text_of("pathSet"))).collect();
        assert_eq!(asked, [("ServiceInstance", IDENTITY), ("SessionManager", SESSION)]);
        let objects: Vec<_> = specification.all("objectSet").map(|set| set.text_of("obj")).collect();
        assert_eq!(objects, ["ServiceInstance", "manager-1"]);
    }
}
