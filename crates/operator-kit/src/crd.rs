//! The custom resource definitions that an operator needs, which may not be installed yet.

use kube::{CustomResourceExt, Resource};
use serde_json::Value;

use crate::api_call::is_unknown_kind;

/// The kinds of one API group, for the text of a failure that a missing definition explains.
#[derive(Clone, Copy, Debug)]
pub struct Crds {
    /// Their API group.
    pub group: &'static str,
    /// The command that installs them, or what else to do.
    pub install: &'static str,
}

impl Crds {
    /// The advice if a watch, a list or a write of `K` failed because its definition is not installed. `None`: it failed for
    /// another reason, or `K` is not one of these kinds.
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
/// A schema that is derived from Rust types has formats such as `uint32`, about which API servers warn. It also lets optional
/// fields be null, and has descriptions with the line breaks of their comments. This one has none of these. And its numbers of 32
/// bits have bounds: API servers before 1.36 store any number for the format `int32`, and one object with a larger one would keep
/// all others from being read.
pub fn definition<K: CustomResourceExt>() -> serde_json::Result<Value> {
    let mut definition = serde_json::to_value(K::crd())?;
    for version in definition["spec"]["versions"].as_array_mut().into_iter().flatten() {
        if let Some(schema) = version.get_mut("schema") {
            adapt(schema);
        }
    }
    Ok(definition)
}

/// The fields of the wanted definition that the installed one lacks, such as `status.size`: it is older than the program. An API
/// server silently drops these fields from what is written, or refuses to apply them.
pub fn lacking(installed: &Value, wanted: &Value) -> Vec<String> {
    let versions =
        |definition: &Value| definition["spec"]["versions"].as_array().cloned().unwrap_or_default();
    let installed = versions(installed);
    let mut lacking = Vec::new();
    for wanted in versions(wanted) {
        let schema = |version: &Value| version["schema"]["openAPIV3Schema"].clone();
        let same = installed.iter().find(|it| it["name"] == wanted["name"]).map(schema).unwrap_or_default();
        compare(&same, &schema(&wanted), "", &mut lacking);
    }
    lacking
}

fn compare(installed: &Value, wanted: &Value, path: &str, lacking: &mut Vec<String>) {
    if installed["x-kubernetes-preserve-unknown-fields"] == Value::Bool(true) {
        return;
    }
    for (name, wanted) in wanted["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        match installed["properties"].get(name) {
            None => lacking.push(path),
            Some(installed) => compare(installed, wanted, &path, lacking),
        }
    }
    for (part, suffix) in [("items", "[]"), ("additionalProperties", ".*")] {
        if wanted[part].is_object() {
            compare(&installed[part], &wanted[part], &format!("{path}{suffix}"), lacking);
        }
    }
}

fn adapt(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let format = fields.get("format").and_then(Value::as_str).unwrap_or_default();
            let bounds = match format {
                "int32" => Some((f64::from(i32::MIN), f64::from(i32::MAX))),
                "uint32" => Some((0.0, f64::from(u32::MAX))),
                _ => None,
            };
            let is_integers = format.starts_with("int") || format.starts_with("uint");
            if is_integers && !matches!(format, "int32" | "int64") {
                fields.remove("format");
            }
            if let Some((minimum, maximum)) = bounds {
                fields.entry("minimum").or_insert(minimum.into());
                fields.entry("maximum").or_insert(maximum.into());
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
    use serde_json::json;

    use super::*;
    use crate::{
        api_call::ApiError,
        widget::{CRDS, Gadget, Widget},
    };

    #[test]
    fn a_definition_has_no_traces_of_rust() {
        let mut derived = json!({
            "size": { "description": "How\nlarge.\n\nIn metres.", "format": "uint32", "minimum": 0.0, "nullable": true },
            "depth": { "format": "int32" },
            "count": { "format": "int32", "minimum": 1.0, "maximum": 10.0 },
            "total": { "format": "int64" },
            "small": { "format": "int16", "minimum": -32768.0 },
            "ratio": [{ "format": "double", "nullable": false }],
        });
        adapt(&mut derived);
        let installed = json!({
            "size": { "description": "How large.\n\nIn metres.", "minimum": 0.0, "maximum": 4_294_967_295.0 },
            "depth": { "format": "int32", "minimum": -2_147_483_648.0, "maximum": 2_147_483_647.0 },
            "count": { "format": "int32", "minimum": 1.0, "maximum": 10.0 },
            "total": { "format": "int64" },
            "small": { "minimum": -32768.0 },
            "ratio": [{ "format": "double", "nullable": false }],
        });
        assert_eq!(derived, installed);
        assert_eq!(definition::<Widget>().unwrap()["metadata"]["name"], "widgets.example.com");
    }

    #[test]
    fn fields_that_the_installed_definition_lacks_are_named() {
        let definition = |schema: Value| json!({ "spec": { "versions": [{ "name": "v1", "schema": { "openAPIV3Schema": schema } }] } });
        let item = json!({ "type": "object", "properties": { "name": { "type": "string" } } });
        let parts = json!({ "type": "array", "items": item });
        let zones = json!({ "type": "object", "additionalProperties": item });
        let properties = json!({ "size": { "type": "integer" }, "parts": parts, "zones": zones });
        let status = json!({ "type": "object", "properties": properties });
        let wanted = definition(json!({ "properties": { "spec": {}, "status": status } }));
        let older = |properties: Value| {
            let status = json!({ "type": "object", "properties": properties });
            lacking(&definition(json!({ "properties": { "spec": {}, "status": status } })), &wanted)
        };
        assert_eq!(lacking(&wanted, &wanted), Vec::<String>::new());
        assert_eq!(older(json!({ "parts": parts, "zones": zones })), ["status.size"]);
        let parts_lack = older(json!({ "size": {}, "parts": { "items": {} }, "zones": zones }));
        assert_eq!(parts_lack, ["status.parts[].name"]);
        let zones_lack =
            older(json!({ "size": {}, "parts": parts, "zones": { "additionalProperties": {} } }));
        assert_eq!(zones_lack, ["status.zones.*.name"]);
        let open = json!({ "x-kubernetes-preserve-unknown-fields": true });
        assert_eq!(lacking(&definition(open), &wanted), Vec::<String>::new());
        assert_eq!(lacking(&json!({}), &wanted), ["spec", "status"]);
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
        assert_eq!(CRDS.missing::<Pod>(&bare()), None, "not a kind of this group");
    }
}
