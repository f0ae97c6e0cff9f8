//! The fields of a PeerPodConfig, from the schema of its CRD.

use anyhow::{Context as _, Result};
use peerpod_operator::install;
use serde_json::Value;

use super::{code, table};

pub(super) fn page() -> Result<String> {
    let crd = install::peerpodconfig_crd()?;
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let mut rows = Vec::new();
    for part in ["spec", "status"] {
        rows.extend(fields(part, &schema["properties"][part])?);
    }
    Ok("# Fields of a PeerPodConfig

API version `confidentialcontainers.org/v1alpha1`. See [PeerPodConfig](../configuration/peerpodconfig.md). `kubectl explain
peerpodconfig.spec` has the fields of nested objects of Kubernetes as well.

"
    .to_owned()
        + &table(["field", "type", "default", "meaning"], rows))
}

/// The fields of an object. Objects with a default are this operator's own. Others are Kubernetes' own, which `kubectl explain` documents.
fn fields(path: &str, object: &Value) -> Result<Vec<[String; 4]>> {
    let mut rows = Vec::new();
    let properties = object["properties"].as_object().with_context(|| format!("{path} has no fields"))?;
    for (name, schema) in properties {
        let path = format!("{path}.{name}");
        let own = schema["properties"].is_object() && schema["default"].is_object();
        let default = match &schema["default"] {
            Value::Null | Value::Object(_) => String::new(),
            Value::String(text) => code(text),
            other => code(&other.to_string()),
        };
        let kind = match schema["x-kubernetes-int-or-string"].as_bool() {
            Some(true) => "integer or string",
            _ => schema["type"].as_str().unwrap_or_default(),
        };
        let description = schema["description"].as_str().unwrap_or_default();
        rows.push([code(&path), kind.to_owned(), default, description.to_owned()]);
        if own {
            rows.extend(fields(&path, schema)?);
        }
    }
    Ok(rows)
}
