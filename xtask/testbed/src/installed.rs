//! The objects of the installation, applied again only where they are not as they were.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams},
};
use serde_json::Value;

/// How many kinds are asked for, or objects applied, at a time.
const AT_A_TIME: usize = 8;

/// The field manager of `kubectl apply --server-side`, as which a user applies them.
const FIELD_MANAGER: &str = "kubectl";

/// The label of every object of the installation. One that has lost it is applied again.
const LABEL: &str = "app.kubernetes.io/part-of=peer-pods";

/// Kind, namespace and name.
type Key = [String; 3];

/// The resource versions that the objects had after they were applied.
///
/// Most tests change none of them, and to apply them all again costs the API server more than what many tests ask of it.
#[derive(Debug, Default)]
pub(crate) struct Installed(BTreeMap<Key, String>);

impl Installed {
    /// Applies those that are missing, or that any program has written to since. Tells whether there was any.
    pub(crate) async fn apply(&mut self, client: &Client, objects: &[DynamicObject]) -> Result<bool> {
        // What is in a namespace comes after it.
        let (namespaces, others): (Vec<_>, Vec<_>) =
            objects.iter().partition(|object| kind(object) == "Namespace");
        let mut changed = false;
        for mut objects in [namespaces, others] {
            let there = versions(client, &objects).await?;
            objects.retain(|object| {
                let key = key(object);
                there.get(&key).is_none_or(|version| self.0.get(&key) != Some(version))
            });
            let applied = stream::iter(objects).map(|object| apply_once(client, object));
            let applied: Vec<_> = applied.buffer_unordered(AT_A_TIME).try_collect().await?;
            changed |= !applied.is_empty();
            self.0.extend(applied);
        }
        Ok(changed)
    }
}

/// The resource versions of the installation's objects of these kinds.
async fn versions(client: &Client, objects: &[&DynamicObject]) -> Result<BTreeMap<Key, String>> {
    let kinds: BTreeMap<_, _> = objects.iter().map(|object| (kind(object), *object)).collect();
    let lists = stream::iter(kinds.into_values()).map(|object| versions_of_kind(client, object));
    let lists: Vec<_> = lists.buffer_unordered(AT_A_TIME).try_collect().await?;
    Ok(lists.into_iter().flatten().collect())
}

/// The same for the kind of this object, in all namespaces.
async fn versions_of_kind(client: &Client, object: &DynamicObject) -> Result<Vec<(Key, String)>> {
    let all: Api<DynamicObject> = Api::all_with(client.clone(), &resource(object)?);
    let kind = kind(object);
    let found = all.list_metadata(&ListParams::default().labels(LABEL)).await;
    let found = found.with_context(|| format!("listing the objects of the kind {kind}"))?;
    let versions = found.into_iter().filter_map(|it| {
        let key = [kind.to_owned(), it.namespace().unwrap_or_default(), it.name_any()];
        Some((key, it.resource_version()?))
    });
    Ok(versions.collect())
}

/// Applies an object. Gives its key and its resource version then.
async fn apply_once(client: &Client, object: &DynamicObject) -> Result<(Key, String)> {
    let written = apply(client, object).await?;
    Ok((key(object), written.resource_version().context("an object without a resource version")?))
}

/// Applies an object, also where other field managers changed it. A field that its kind does not have is an error.
pub(crate) async fn apply(client: &Client, object: &DynamicObject) -> Result<DynamicObject> {
    let params = PatchParams::apply(FIELD_MANAGER).force().validation_strict();
    let written = api(client, object)?.patch(&object.name_any(), &params, &Patch::Apply(object)).await;
    written.with_context(|| format!("applying {:?}", key(object)))
}

/// Where the objects of its kind are.
fn api(client: &Client, object: &DynamicObject) -> Result<Api<DynamicObject>> {
    let resource = resource(object)?;
    Ok(match object.namespace() {
        Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    })
}

fn resource(object: &DynamicObject) -> Result<ApiResource> {
    let types = object.types.as_ref().context("an object without a kind")?;
    Ok(ApiResource::from_gvk(&types.try_into().context("an object without a version")?))
}

fn key(object: &DynamicObject) -> Key {
    [kind(object).to_owned(), object.namespace().unwrap_or_default(), object.name_any()]
}

fn kind(object: &DynamicObject) -> &str {
    object.types.as_ref().map_or("", |types| &types.kind)
}

/// The object of a manifest.
pub(crate) fn dynamic(manifest: Value) -> Result<DynamicObject> {
    serde_json::from_value(manifest).context("reading a manifest")
}
