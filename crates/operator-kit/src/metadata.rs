//! Metadata of objects as the API server sends it *(no client)*.
//!
//! A user with the right to write an object may also write its `managedFields`, with times that an API server keeps and that a
//! [`Timestamp`] cannot hold, such as the last day of the year 9999. One unreadable object would keep all others of a list from
//! being read. So [`Stored`] leaves such a time out, and does not even decode the fields themselves, which are large and not
//! needed. All other times are the API server's own.

use std::{borrow::Cow, collections::BTreeMap, fmt, marker::PhantomData};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, OwnerReference, Time};
use kube::Resource;
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::Value;

/// The owner references of a new object of this controller. The garbage collector deletes the object after its owner, or before it if
/// the owner is deleted in the foreground. `None` if the owner has no name or uid: it was not read from an API server.
///
/// Where the API server runs the plugin `OwnerReferencesPermissionEnforcement`, as on OpenShift, it needs the right to `update` the
/// subresource `finalizers` of the owner.
pub fn controlled_by(owner: &impl Resource<DynamicType = ()>) -> Option<Vec<OwnerReference>> {
    let owner = owner.controller_owner_ref(&())?;
    Some(vec![OwnerReference { block_owner_deletion: Some(true), ..owner }])
}

/// Reads metadata: for `#[serde(with = …)]`.
#[derive(Deserialize)]
#[serde(remote = "ObjectMeta", rename_all = "camelCase", default = "ObjectMeta::default")]
pub struct Stored {
    annotations: Option<BTreeMap<String, String>>,
    creation_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    deletion_timestamp: Option<Time>,
    finalizers: Option<Vec<String>>,
    generate_name: Option<String>,
    generation: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    #[serde(deserialize_with = "writers")]
    managed_fields: Option<Vec<ManagedFieldsEntry>>,
    name: Option<String>,
    namespace: Option<String>,
    owner_references: Option<Vec<OwnerReference>>,
    resource_version: Option<String>,
    self_link: Option<String>,
    uid: Option<String>,
}

/// Which manager wrote to an object, and when, without the written fields.
fn writers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<ManagedFieldsEntry>>, D::Error> {
    #[derive(Deserialize)]
    struct Writer {
        manager: Option<String>,
        operation: Option<String>,
        subresource: Option<String>,
        #[serde(default, deserialize_with = "time")]
        time: Option<Time>,
    }
    let writers = Option::<Vec<Writer>>::deserialize(deserializer)?;
    let entry = |Writer { manager, operation, subresource, time }| ManagedFieldsEntry {
        manager,
        operation,
        subresource,
        time,
        ..ManagedFieldsEntry::default()
    };
    Ok(writers.map(|writers| writers.into_iter().map(entry).collect()))
}

/// Reads a time; `None` if a `Timestamp` cannot hold it. For `#[serde(default, deserialize_with = …)]`.
pub fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Time>, D::Error> {
    let text = Option::<Cow<str>>::deserialize(deserializer)?;
    Ok(text.and_then(|text| text.parse::<Timestamp>().ok()).map(Time))
}

/// Reads what others wrote in any form; `None` if it is unreadable. For `#[serde(default, deserialize_with = …)]`.
pub fn if_readable<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: DeserializeOwned,
    D: Deserializer<'de>,
{
    let value = Option::<Value>::deserialize(deserializer)?;
    Ok(value.and_then(|value| serde_json::from_value(value).ok()))
}

/// Reads what others wrote in any form; the default if it is unreadable. So one object that a user wrote does not keep a whole list
/// from being read. For `#[serde(default, deserialize_with = …)]`.
pub fn readable_or_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: DeserializeOwned + Default,
    D: Deserializer<'de>,
{
    Ok(if_readable(deserializer)?.unwrap_or_default())
}

/// An object of which only the metadata is requested.
#[derive(Deserialize)]
#[serde(bound = "")]
pub struct Metadata<K> {
    #[serde(default, with = "Stored")]
    metadata: ObjectMeta,
    #[serde(skip)]
    kind: PhantomData<K>,
}

impl<K> Clone for Metadata<K> {
    fn clone(&self) -> Self {
        Self { metadata: self.metadata.clone(), kind: PhantomData }
    }
}

impl<K> fmt::Debug for Metadata<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Metadata").field(&self.metadata).finish()
    }
}

impl<K: Resource> Resource for Metadata<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn metadata_api() -> bool {
        true
    }

    fn kind(type_: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(type_)
    }

    fn group(type_: &Self::DynamicType) -> Cow<'_, str> {
        K::group(type_)
    }

    fn version(type_: &Self::DynamicType) -> Cow<'_, str> {
        K::version(type_)
    }

    fn plural(type_: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(type_)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Condition};
    use serde_json::json;

    use super::*;

    fn read(metadata: &Value) -> ObjectMeta {
        serde_json::from_value::<Metadata<Pod>>(json!({ "metadata": metadata })).unwrap().metadata
    }

    #[test]
    fn everything_is_read_but_the_fields_that_a_writer_set() {
        let mut written = json!({
            "annotations": { "a": "b" }, "labels": { "c": "d" }, "finalizers": ["x/y"],
            "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-02T00:00:00Z",
            "deletionGracePeriodSeconds": 30, "generateName": "web-", "generation": 3, "name": "web-1",
            "namespace": "shop", "resourceVersion": "7", "selfLink": "/", "uid": "u",
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "v" }],
            "managedFields": [{
                "manager": "m", "operation": "Update", "subresource": "status", "time": "2026-01-01T00:00:00Z",
                "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": { "f:status": {} },
            }],
        });
        let text = serde_json::to_string(&json!({ "metadata": written })).unwrap();
        let read = serde_json::from_str::<Metadata<Pod>>(&text).unwrap().metadata;
        let entry = written["managedFields"][0].as_object_mut().unwrap();
        entry.retain(|name, _| !["apiVersion", "fieldsType", "fieldsV1"].contains(&name.as_str()));
        assert_eq!(json!(read), written);
    }

    #[test]
    fn an_unreadable_time_of_a_managed_field_is_read_as_none() {
        let time = |time: Value| read(&json!({ "managedFields": [{ "manager": "m", "time": time }] }));
        for (text, readable) in [
            (json!("2026-01-01T00:00:00Z"), true),
            (json!("9999-12-30T22:00:00Z"), true),
            (json!("9999-12-31T00:00:00Z"), false),
            (json!("yesterday"), false),
            (json!(null), false),
        ] {
            let entries = time(text.clone()).managed_fields.unwrap();
            assert_eq!(entries[0].manager.as_deref(), Some("m"));
            assert_eq!(entries[0].time.is_some(), readable, "{text}");
        }
    }

    #[test]
    fn unreadable_conditions_are_empty_and_the_rest_of_the_status_stays() {
        #[derive(Deserialize)]
        struct Status {
            size: u8,
            #[serde(default, deserialize_with = "readable_or_default")]
            conditions: Vec<Condition>,
        }
        let condition =
            |time: &str| json!([{ "type": "Ready", "status": "True", "lastTransitionTime": time }]);
        for (conditions, readable) in [
            (condition("2026-01-01T00:00:00Z"), 1),
            (condition("9999-12-31T00:00:00Z"), 0),
            (json!([{ "type": "Ready", "status": "True" }]), 0),
            (json!("none"), 0),
            (json!(null), 0),
        ] {
            let text = json!({ "size": 2, "conditions": conditions }).to_string();
            let status: Status = serde_json::from_str(&text).unwrap();
            assert_eq!((status.size, status.conditions.len()), (2, readable), "{text}");
        }
        let status: Status = serde_json::from_str(r#"{ "size": 2 }"#).unwrap();
        assert!(status.conditions.is_empty());
    }

    #[test]
    fn missing_and_null_fields_are_read_as_empty() {
        let nothing = json!(ObjectMeta::default());
        assert_eq!(json!(read(&json!({}))), nothing);
        assert_eq!(
            json!(read(&json!({ "managedFields": null, "creationTimestamp": null, "labels": null }))),
            nothing
        );
        assert_eq!(json!(serde_json::from_str::<Metadata<Pod>>("{}").unwrap().metadata), nothing);
    }
}
