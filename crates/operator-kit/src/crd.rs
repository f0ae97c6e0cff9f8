//! The custom resource definitions of an operator, which may not be installed yet.

use kube::{CustomResourceExt, Resource};
use serde_json::Value;

use crate::api_call::is_unknown_kind;

/// An operator's own kinds, for the text of a failure that a missing definition explains.
#[derive(Clone, Copy, Debug)]
pub struct Crds {
    /// Their API group.
    pub group: &'static str,
    /// The command that installs them.
    pub install: &'static str,
}

impl Crds {
    /// What to do where a watch, a list or a write of `K` failed because its definition is not installed. `None`: it failed
    /// otherwise, or `K` is not one of these kinds.
    pub fn missing<K: Resource<DynamicType = ()>>(&self, problem: &kube::Error) -> Option<String> {
        let kube::Error::Api(status) = problem else { return None };
        let missing = K::group(&()) == self.group && is_unknown_kind(status);
        missing.then(|| format!("the CRD {} is not installed: {}", crd_name::<K>(), self.install))
    }
}

/// The name of a kind's definition.
pub fn crd_name<K: Resource<DynamicType = ()>>() -> String {
    format!("{}.{}", K::plural(&()), K::group(&()))
}

/// The definition of a kind as it is installed.
///
/// A schema that is derived from Rust types has formats such as `uint32`, which API servers warn of, lets what is optional be null,
/// and has descriptions with the line breaks of their comments. This one has none of these.
pub fn definition<K: CustomResourceExt>() -> serde_json::Result<Value> {
    let mut definition = serde_json::to_value(K::crd())?;
    adapt(&mut definition);
    Ok(definition)
}

fn adapt(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let format = fields.get("format").and_then(Value::as_str);
            if format.is_some_and(|format| format.starts_with("uint")) {
                fields.remove("format");
            }
            if fields.get("nullable") == Some(&Value::Bool(true)) {
                fields.remove("nullable");
            }
            if let Some(Value::String(text)) = fields.get_mut("description") {
                let paragraphs: Vec<_> = text.split("\n\n").map(|it| it.replace('\n', " ")).collect();
                *text = paragraphs.join("\n\n");
            }
            fields.values_mut().for_each(adapt);
        }
        Value::Array(items) => items.iter_mut().for_each(adapt),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use kube::core::Status;

    use super::*;
    use crate::{
        api_call::ApiError,
        widget::{CRDS, Gadget, Widget},
    };

    #[test]
    fn a_definition_has_no_traces_of_rust() {
        let mut derived = serde_json::json!({
            "size": { "description": "How\nlarge.\n\nIn metres.", "format": "uint32", "nullable": true },
            "ratio": [{ "format": "double", "nullable": false }],
        });
        adapt(&mut derived);
        let installed = serde_json::json!({
            "size": { "description": "How large.\n\nIn metres." },
            "ratio": [{ "format": "double", "nullable": false }],
        });
        assert_eq!(derived, installed);
        assert_eq!(definition::<Widget>().unwrap()["metadata"]["name"], "widgets.example.com");
    }

    fn answer(code: u16, message: &str, reason: &str) -> kube::Error {
        kube::Error::Api(Status::failure(message, reason).with_code(code).boxed())
    }

    #[test]
    fn only_a_bare_404_means_that_a_crd_is_not_installed() {
        let bare = || answer(404, "404 page not found", "Failed to parse error data");
        assert_eq!(
            CRDS.missing::<Gadget>(&bare()).as_deref(),
            Some("the CRD gadgets.example.com is not installed: kubectl apply -f crds")
        );
        assert!(CRDS.missing::<Widget>(&bare()).unwrap().starts_with("the CRD widgets.example.com "));
        assert!(!ApiError::from(bare()).to_string().contains("Failed to parse"));
        for other in [
            answer(404, "namespaces \"a\" not found", "NotFound"),
            answer(404, "404 page not found", "NotFound"),
            answer(404, "<html>nothing here</html>", "Failed to parse error data"),
            answer(503, "404 page not found", "Failed to parse error data"),
            kube::Error::Service("connection refused".into()),
        ] {
            assert_eq!(CRDS.missing::<Widget>(&other), None, "{other}");
        }
        assert_eq!(CRDS.missing::<Pod>(&bare()), None, "not a kind of this operator's");
    }
}
