//! The objects of the installation, applied again only where they are not as they were.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
};
use serde_json::Value;

/// How many objects are asked for or applied at a time.
const AT_A_TIME: usize = 8;

/// The field manager of `kubectl apply --server-side`, as which a user applies them.
const FIELD_MANAGER: &str = "kubectl";

/// The resource versions that the objects had after they were applied, by name in the order of [`key`].
///
/// Most tests change none of them, and to apply them all again costs the API server more than what many tests ask of it.
#[derive(Debug, Default)]
pub(crate) struct Installed(BTreeMap<[String; 3], String>);

impl Installed {
    /// Applies those that are missing, or that any program has written to since. Tells whether there was any.
    pub(crate) async fn apply(&mut self, client: &Client, objects: Vec<DynamicObject>) -> Result<bool> {
        // What is in a namespace comes after it.
        let (namespaces, others): (Vec<_>, Vec<_>) =
            objects.into_iter().partition(|object| kind(object) == "Namespace");
        let mut changed = false;
        for objects in [namespaces, others] {
            let versions: Vec<_> = stream::iter(objects)
                .map(|object| apply_changed(client, object, &self.0))
                .buffer_unordered(AT_A_TIME)
                .try_collect()
                .await?;
            for (key, version) in versions.into_iter().flatten() {
                self.0.insert(key, version);
                changed = true;
            }
        }
        Ok(changed)
    }
}

/// Applies this one if it is not as it was; gives its key and its resource version then.
async fn apply_changed(
    client: &Client,
    object: DynamicObject,
    applied: &BTreeMap<[String; 3], String>,
) -> Result<Option<([String; 3], String)>> {
    let key = key(&object);
    if let Some(version) = applied.get(&key) {
        let there = api(client, &object)?.get_metadata_opt(&object.name_any()).await;
        let there = there.with_context(|| format!("reading {key:?}"))?;
        if there.and_then(|there| there.resource_version()).as_ref() == Some(version) {
            return Ok(None);
        }
    }
    let written = apply(client, &object).await?;
    Ok(Some((key, written.resource_version().context("an object without a resource version")?)))
}

/// Applies an object, also where other field managers changed it. A field that its kind does not have is an error.
pub(crate) async fn apply(client: &Client, object: &DynamicObject) -> Result<DynamicObject> {
    let params = PatchParams::apply(FIELD_MANAGER).force().validation_strict();
    let written = api(client, object)?.patch(&object.name_any(), &params, &Patch::Apply(object)).await;
    written.with_context(|| format!("applying {:?}", key(object)))
}

/// Where the objects of its kind are.
fn api(client: &Client, object: &DynamicObject) -> Result<Api<DynamicObject>> {
    let types = object.types.as_ref().context("an object without a kind")?;
    let resource = ApiResource::from_gvk(&types.try_into().context("an object without a version")?);
    Ok(match object.namespace() {
        Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    })
}

/// Kind, namespace and name.
fn key(object: &DynamicObject) -> [String; 3] {
    [kind(object).to_owned(), object.namespace().unwrap_or_default(), object.name_any()]
}

fn kind(object: &DynamicObject) -> &str {
    object.types.as_ref().map_or("", |types| &types.kind)
}

/// The object of a manifest.
pub(crate) fn dynamic(manifest: Value) -> Result<DynamicObject> {
    serde_json::from_value(manifest).context("reading a manifest")
}
