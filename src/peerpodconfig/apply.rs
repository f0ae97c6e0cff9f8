//! Makes objects as wanted *(client required)*: one write for each that differs, none for the others.

use std::{
    collections::{HashMap, HashSet},
    time::Instant,
};

use futures::future::try_join_all;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{
        ApiResource, DeleteParams, DynamicObject, ListParams, PartialObjectMeta, Patch, PatchParams,
        Preconditions, TypeMeta,
    },
};
use operator_kit::api_call::{self, ApiError};
use serde::Serialize;
use serde_json::Value;
use tracing::info;

use super::{
    drift::{Drifts, Key},
    resources::{CLASS_ANNOTATION, CONFIG_LABEL, MANAGED_BY, MANAGER, differs},
};
use crate::api::v1alpha1::FIELD_MANAGER;

/// An object that is wanted.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    resource: ApiResource,
    namespace: Option<String>,
    name: String,
    object: Value,
}

impl Wanted {
    /// Of a typed object. Fails only if it could not be written as JSON.
    pub(super) fn of<K: Resource<DynamicType = ()> + Serialize>(object: &K) -> serde_json::Result<Self> {
        let mut value = serde_json::to_value(object)?;
        value["apiVersion"] = K::api_version(&()).into();
        value["kind"] = K::kind(&()).into();
        Ok(Self::new(ApiResource::erase::<K>(&()), value))
    }

    /// Of an object that has its kind.
    pub(super) fn new(resource: ApiResource, object: Value) -> Self {
        let text = |path: &str| object.pointer(path).and_then(Value::as_str).map(str::to_owned);
        let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name").unwrap_or_default());
        Self { resource, namespace, name, object }
    }

    /// Whether it is of this kind.
    pub(super) fn is_a(&self, kind: &Kind) -> bool {
        self.resource.kind == kind.resource.kind
    }

    fn key(&self, config: Option<&str>) -> Key {
        let (kind, name) = (self.resource.kind.clone(), self.name.clone());
        Key { config: config.map(str::to_owned), kind, name }
    }

    fn api(&self, client: &Client) -> Api<DynamicObject> {
        api(client, &self.resource, self.namespace.as_deref())
    }
}

/// A kind of a configuration's objects.
#[derive(Clone, Debug)]
pub(super) struct Kind {
    pub(super) resource: ApiResource,
    /// None for one that is cluster-scoped.
    pub(super) namespace: Option<String>,
}

fn api(client: &Client, resource: &ApiResource, namespace: Option<&str>) -> Api<DynamicObject> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        None => Api::all_with(client.clone(), resource),
    }
}

/// The result of making objects as wanted.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The objects as they are now, by kind and name.
    pub(super) objects: HashMap<(String, String), DynamicObject>,
    /// Those of them that were just created or corrected.
    pub(super) applied: HashSet<(String, String)>,
    /// Objects with a wanted name that this operator did not create, as `Kind name`. They stay unchanged.
    pub(super) unmanaged: Vec<String>,
}

impl Found {
    /// One of them, as its type.
    pub(super) fn get<K>(&self, name: &str) -> Option<K>
    where
        K: Resource<DynamicType = ()> + serde::de::DeserializeOwned,
    {
        let object = self.objects.get(&(K::kind(&()).into_owned(), name.to_owned()))?;
        // An API server returns objects of their kind; anything else reads as absent.
        serde_json::to_value(object).ok().and_then(|value| serde_json::from_value(value).ok())
    }
}

/// Creates what is missing, corrects what differs, and removes objects of `kinds` that were created for the configuration and are
/// no longer wanted. It keeps objects that got the label otherwise, as by `kubectl expose`. It leaves objects that others keep
/// changing for a while, as `drifts` says.
pub(super) async fn bring(
    client: &Client,
    drifts: &Drifts,
    config: &str,
    kinds: &[Kind],
    wanted: &[Wanted],
) -> Result<Found, ApiError> {
    let reads = kinds.iter().map(|kind| async move {
        let mut there = labelled(client, config, kind).await?;
        let of_kind = wanted.iter().filter(|wanted| wanted.is_a(kind));
        let reads = of_kind.map(|wanted| read(client, wanted, there.remove(&wanted.name)));
        let states = try_join_all(reads.collect::<Vec<_>>()).await?;
        Ok::<_, ApiError>((kind, states, there))
    });
    // The reads run together; the writes follow the order of the kinds.
    let looked = try_join_all(reads).await?;
    let mut found = Found::default();
    for (kind, states, unwanted) in looked {
        for (wanted, state) in states {
            let key = (kind.resource.kind.clone(), wanted.name.clone());
            match state {
                State::AsWanted(object) => {
                    drifts.settled(&wanted.key(Some(config)));
                    found.objects.insert(key, *object);
                }
                State::Due(there) => match apply(client, drifts, Some(config), wanted).await? {
                    Some(object) => {
                        found.objects.insert(key.clone(), object);
                        found.applied.insert(key);
                    }
                    None => found.objects.extend(there.map(|object| (key, *object))),
                },
                State::Unmanaged => found.unmanaged.push(format!("{} {}", key.0, key.1)),
            }
        }
        let of_kind = api(client, &kind.resource, kind.namespace.as_deref());
        for object in unwanted.into_values().filter(is_ours) {
            remove(&of_kind, &object, DeleteParams::background()).await?;
        }
    }
    Ok(found)
}

/// The state of a wanted object.
enum State {
    AsWanted(Box<DynamicObject>),
    /// It is missing, or differs.
    Due(Option<Box<DynamicObject>>),
    /// An object that this operator did not create has its name.
    Unmanaged,
}

/// `there`: the object, if it has the configuration's label.
async fn read<'a>(
    client: &Client,
    wanted: &'a Wanted,
    there: Option<DynamicObject>,
) -> Result<(&'a Wanted, State), ApiError> {
    let state = match there {
        Some(object) if !differs(&as_value(&object), &wanted.object, FIELD_MANAGER) => {
            State::AsWanted(Box::new(object))
        }
        Some(object) => State::Due(Some(Box::new(object))),
        None => match api_call::get_opt(&wanted.api(client), &wanted.name).await? {
            Some(object) if !is_ours(&object) => State::Unmanaged,
            object => State::Due(object.map(Box::new)),
        },
    };
    Ok((wanted, state))
}

/// All objects of this kind that have the configuration's label, by name.
async fn labelled(
    client: &Client,
    config: &str,
    kind: &Kind,
) -> Result<HashMap<String, DynamicObject>, ApiError> {
    let of_kind = api(client, &kind.resource, kind.namespace.as_deref());
    let params = ListParams::default().labels(&format!("{CONFIG_LABEL}={config}"));
    let objects = api_call::bounded(of_kind.list(&params)).await?.into_iter();
    Ok(objects.map(|object| (object.name_any(), typed(object, &kind.resource))).collect())
}

/// Whether this operator created it, whatever labels it has.
fn is_ours(object: &DynamicObject) -> bool {
    object.managed_fields().iter().any(|fields| fields.manager.as_deref() == Some(FIELD_MANAGER))
}

/// Corrects an object that this operator did not create and that all configurations share, if it exists and differs.
pub(super) async fn adjust(client: &Client, drifts: &Drifts, wanted: &Wanted) -> Result<bool, ApiError> {
    let Some(object) = api_call::get_opt(&wanted.api(client), &wanted.name).await? else {
        return Ok(false);
    };
    if differs(&as_value(&object), &wanted.object, FIELD_MANAGER) {
        apply(client, drifts, None, wanted).await?;
    } else {
        drifts.settled(&wanted.key(None));
    }
    Ok(true)
}

/// Writes an object, unless others keep changing it.
async fn apply(
    client: &Client,
    drifts: &Drifts,
    config: Option<&str>,
    wanted: &Wanted,
) -> Result<Option<DynamicObject>, ApiError> {
    let key = wanted.key(config);
    if !drifts.admit(&key, &wanted.object, Instant::now()) {
        return Ok(None);
    }
    info!(kind = wanted.resource.kind, name = wanted.name, "applying");
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let patch = Patch::Apply(&wanted.object);
    let applied = api_call::bounded(wanted.api(client).patch(&wanted.name, &params, &patch)).await;
    if applied.is_err() {
        drifts.not_written(&key);
    }
    applied.map(Some)
}

/// Deletes all objects of these kinds that this operator created for the configuration: in the background, or each after all that
/// it owns. Returns whether any was left.
pub(super) async fn clear(
    client: &Client,
    config: &str,
    kinds: &[Kind],
    how: &DeleteParams,
) -> Result<bool, ApiError> {
    let mut any = false;
    for kind in kinds {
        let of_kind = api(client, &kind.resource, kind.namespace.as_deref());
        let params = ListParams::default().labels(&format!("{CONFIG_LABEL}={config}"));
        for object in api_call::bounded(of_kind.list(&params)).await?.into_iter().filter(is_ours) {
            any = true;
            remove(&of_kind, &object, how.clone()).await?;
        }
    }
    Ok(any)
}

/// Whether there is an object of these kinds that has the configuration's label and is not being deleted.
pub(super) async fn any(client: &Client, config: &str, kinds: &[Kind]) -> Result<bool, ApiError> {
    let staying = try_join_all(kinds.iter().map(|kind| staying(client, config, kind))).await?;
    Ok(staying.iter().any(|objects| !objects.is_empty()))
}

/// The runtime class of the Pods that objects of these kinds which stay lead to the admission of a configuration, if there
/// are any, and the kind of those that do. What it asks for now may be another class.
pub(super) async fn class_served<'k>(
    client: &Client,
    config: &str,
    kinds: &'k [Kind],
) -> Result<Option<(String, &'k Kind)>, ApiError> {
    for kind in kinds.iter().filter(|kind| kind.namespace.is_none()) {
        let found = staying(client, config, kind).await?;
        let class = found.iter().find_map(|object| object.annotations().get(CLASS_ANNOTATION));
        if let Some(class) = class {
            return Ok(Some((class.clone(), kind)));
        }
    }
    Ok(None)
}

async fn staying(
    client: &Client,
    config: &str,
    kind: &Kind,
) -> Result<Vec<PartialObjectMeta<DynamicObject>>, ApiError> {
    let of_kind = api(client, &kind.resource, kind.namespace.as_deref());
    let params = ListParams::default().labels(&format!("{CONFIG_LABEL}={config}"));
    let mut found = api_call::bounded(of_kind.list_metadata(&params)).await?.items;
    found.retain(|object| object.metadata.deletion_timestamp.is_none());
    Ok(found)
}

/// All objects of this kind that this operator created, for any configuration. Objects that merely have the label are not
/// included.
pub(super) async fn made(client: &Client, kind: &Kind) -> Result<Vec<DynamicObject>, ApiError> {
    let of_kind = api(client, &kind.resource, kind.namespace.as_deref());
    let params = ListParams::default().labels(&format!("{CONFIG_LABEL},{MANAGED_BY}={MANAGER}"));
    let objects = api_call::bounded(of_kind.list(&params)).await?;
    Ok(objects.into_iter().filter(is_ours).map(|object| typed(object, &kind.resource)).collect())
}

/// Removes an object, unless it changed since it was read.
pub(super) async fn remove_unchanged(
    client: &Client,
    kind: &Kind,
    object: &DynamicObject,
) -> Result<(), ApiError> {
    let resource_version = object.resource_version();
    let preconditions = Some(Preconditions { uid: object.uid(), resource_version });
    let how = DeleteParams { preconditions, ..DeleteParams::background() };
    remove(&api(client, &kind.resource, kind.namespace.as_deref()), object, how).await
}

/// Removes an object, if it is still the same one.
async fn remove(api: &Api<DynamicObject>, object: &DynamicObject, how: DeleteParams) -> Result<(), ApiError> {
    if object.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    info!(
        kind = object.types.as_ref().map(|types| types.kind.as_str()),
        name = object.name_any(),
        "removing"
    );
    let same = || Preconditions { uid: object.uid(), resource_version: None };
    let params = DeleteParams { preconditions: how.preconditions.or_else(|| Some(same())), ..how };
    let name = object.name_any();
    match api_call::bounded(api.delete(&name, &params)).await {
        // It was removed or replaced meanwhile.
        Err(error) if !error.is_gone_or_changed(&name) => Err(error),
        _ => Ok(()),
    }
}

/// Items of a list have no kind.
fn typed(mut object: DynamicObject, resource: &ApiResource) -> DynamicObject {
    let (api_version, kind) = (resource.api_version.clone(), resource.kind.clone());
    object.types.get_or_insert(TypeMeta { api_version, kind });
    object
}

/// A dynamic object consists of JSON, so this always succeeds.
fn as_value(object: &DynamicObject) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}
