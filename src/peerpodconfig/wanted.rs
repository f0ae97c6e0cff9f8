//! Objects that are wanted, and what is found of them *(no client)*.

use std::collections::HashMap;

use kube::{
    Api, Client, Resource,
    api::{ApiResource, DynamicObject},
};
use operator_kit::apply::document;
use serde::Serialize;
use serde_json::Value;

use super::{
    conditions::{Finding, Reason},
    drift::Key,
};

/// An object that is wanted.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) resource: ApiResource,
    namespace: Option<String>,
    pub(super) name: String,
    pub(super) object: Value,
    /// The annotation that tells the time of a write.
    time: Option<&'static str>,
}

impl Wanted {
    /// Of a typed object. Fails only if it could not be written as JSON.
    pub(super) fn of<K: Resource<DynamicType = ()> + Serialize>(object: &K) -> serde_json::Result<Self> {
        Ok(Self::new(ApiResource::erase::<K>(&()), document(object)?))
    }

    /// Of an object that has its kind.
    pub(super) fn new(resource: ApiResource, object: Value) -> Self {
        let text = |path: &str| object.pointer(path).and_then(Value::as_str).map(str::to_owned);
        let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name").unwrap_or_default());
        Self { resource, namespace, name, object, time: None }
    }

    /// Notes that this annotation tells the time of a write.
    pub(super) fn with_time(self, annotation: &'static str) -> Self {
        Self { time: Some(annotation), ..self }
    }

    /// All of the object but the time of the write, which would make each write a new one.
    pub(super) fn content(&self) -> Value {
        let mut content = self.object.clone();
        let annotations = content.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
        if let (Some(time), Some(annotations)) = (self.time, annotations) {
            annotations.remove(time);
        }
        content
    }

    /// Whether it is of this kind.
    pub(super) fn is_a(&self, kind: &Kind) -> bool {
        self.resource.kind == kind.resource.kind
    }

    pub(super) fn key(&self, config: Option<&str>) -> Key {
        let (kind, name) = (self.resource.kind.clone(), self.name.clone());
        Key { config: config.map(str::to_owned), kind, name }
    }

    pub(super) fn api(&self, client: &Client) -> Api<DynamicObject> {
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

impl Kind {
    /// A kind of objects in this namespace.
    pub(super) fn namespaced<K: Resource<DynamicType = ()>>(namespace: &str) -> Self {
        Self { resource: ApiResource::erase::<K>(&()), namespace: Some(namespace.to_owned()) }
    }

    /// A kind of objects without namespace.
    pub(super) fn cluster_scoped(resource: ApiResource) -> Self {
        Self { resource, namespace: None }
    }

    pub(super) fn api(&self, client: &Client) -> Api<DynamicObject> {
        api(client, &self.resource, self.namespace.as_deref())
    }
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
    /// Those of them that were just written, and whether each was missing before.
    pub(super) applied: HashMap<(String, String), bool>,
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
        // An API server returns objects of their kind; anything else reads as absent. Text, as kube reads it, and not a `Value`: the
        // code that reads a Pod's spec from one is 400 KB.
        serde_json::to_string(object).ok().and_then(|text| serde_json::from_str(&text).ok())
    }

    /// Adds what another write found.
    pub(super) fn add(&mut self, other: Self) {
        self.objects.extend(other.objects);
        self.applied.extend(other.applied);
        self.unmanaged.extend(other.unmanaged);
    }

    /// The condition about wanted names that objects of others have.
    pub(super) fn name_taken(&self) -> Option<Finding> {
        (!self.unmanaged.is_empty()).then(|| {
            let names = self.unmanaged.join(", ");
            let message = format!(
                "this operator needs the name of {names}, and did not create that: remove it, or create the PeerPodConfig with another name"
            );
            Finding::new(Reason::NameTaken, message)
        })
    }
}
