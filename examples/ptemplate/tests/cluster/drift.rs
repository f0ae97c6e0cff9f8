//! The operator reverts changes that other programs make by hand.

use std::{collections::BTreeSet, fmt::Debug};

use anyhow::{Context as _, Result, ensure};
use kube::{
    Api, Resource,
    api::{Patch, PatchParams},
};
use ptemplate::{daemon_set::daemon_set, module::module};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use stage::wait::{DEADLINE, present};

use super::test;

/// Fields by which lists are merged, and those that cannot change, or not alone.
const FIXED: [&str; 9] = [
    "/metadata/name",
    "/metadata/namespace",
    "/spec/selector/matchLabels/app",
    "/spec/template/metadata/labels/app",
    "/spec/template/spec/containers/0/name",
    "/spec/template/spec/containers/0/volumeMounts/0/mountPath",
    "/spec/template/spec/containers/0/volumeMounts/0/name",
    "/spec/template/spec/imagePullSecrets/0/name",
    "/spec/template/spec/volumes/0/name",
];

/// Sets each field to another value and waits until the operator has reverted it. `others`: values that the API server accepts, for
/// fields where it would refuse a generic one.
async fn drift<K>(api: &Api<K>, wanted: &K, others: &[(&str, Value)]) -> Result<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + 'static,
{
    let name = wanted.meta().name.clone().context("it has a name")?;
    let wanted = json!(wanted);
    let mut fields = Vec::new();
    leaves(&wanted, "", &mut fields);
    fields.retain(|(path, _)| !FIXED.contains(&&**path) && path != "/kind" && path != "/apiVersion");
    // The operator's watch selects by this label. It must have shown the object before another program takes the label away.
    fields.sort_by_key(|(path, _)| path.ends_with("managed-by"));
    let known: BTreeSet<_> = fields.iter().map(|(path, _)| path.as_str()).collect();
    for (path, _) in others {
        ensure!(known.contains(path), "{path} is not a field: {known:?}");
    }
    for (path, value) in fields {
        let other = match (others.iter().find(|(other, _)| *other == path), &value) {
            (Some((_, other)), _) => other.clone(),
            (None, Value::Bool(value)) => json!(!value),
            (None, _) => json!("drifted"),
        };
        let replace = json!([{ "op": "replace", "path": path, "value": other }]);
        let replace = Patch::<()>::Json(serde_json::from_value(replace)?);
        api.patch(&name, &PatchParams::default(), &replace).await.with_context(|| path.clone())?;
        let restored = |it: &K| json!(it).pointer(&path) == Some(&value);
        present(api, &name, &format!("{path} is {value} again"), DEADLINE, restored).await?;
    }
    Ok(())
}

/// The values of a document by their JSON pointers.
fn leaves(value: &Value, path: &str, found: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                leaves(value, &format!("{path}/{}", name.replace('/', "~1")), found);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                leaves(item, &format!("{path}/{index}"), found);
            }
        }
        leaf => found.push((path.to_owned(), leaf.clone())),
    }
}

#[test]
fn every_field_of_the_daemon_set_is_put_back() -> Result<()> {
    test(async |scene| {
        let ptemplate = scene.create("a", json!({ "imagePullSecret": { "name": "key" } })).await?;
        scene.told("a", "ConsumerApplied", "AsWanted").await?;
        let container = "/spec/template/spec/containers/0";
        let policy = format!("{container}/imagePullPolicy");
        let devices = format!("{container}/resources/limits/example.com~1ptemplate");
        let others = [(&*policy, json!("Never")), (&*devices, json!("9"))];
        drift(&scene.daemon_sets, &daemon_set(&ptemplate), &others).await
    })
}

#[test]
fn every_field_of_the_module_is_put_back() -> Result<()> {
    test(async |scene| {
        let spec = json!({ "imagePullSecret": { "name": "key" }, "defaultmsg": "hello" });
        let ptemplate = scene.create("a", spec).await?;
        scene.told("a", "ModuleApplied", "AsWanted").await?;
        drift(&scene.modules, &module(&ptemplate), &[]).await
    })
}
