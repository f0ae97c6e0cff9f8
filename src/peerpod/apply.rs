//! The two writes that PeerPods see from here *(client required)*.

use json_patch::{
    Patch as JsonPatch, PatchOperation, RemoveOperation, ReplaceOperation, TestOperation, jsonptr::PointerBuf,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::Value;

use crate::{
    api::v1alpha1::{FIELD_MANAGER, FINALIZER, PeerPod},
    runtime::api_call::{self, ApiError},
};

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// It took place.
    Done,
    /// The object was gone already, which is as good.
    Gone,
    /// The object is no longer as it was read.
    Outdated,
}

/// Takes the finalizer away, if the object still is the one that was read and nobody else touched its finalizers.
pub(super) async fn release(client: &Client, peerpod: &PeerPod) -> Result<Written, ApiError> {
    let patch = Patch::<()>::Json(release_patch(peerpod));
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
    written(
        api_call::bounded(api(client, peerpod).patch_metadata(&peerpod.name_any(), &params, &patch)).await,
    )
}

/// Deletes the PeerPod object itself, if it still is what was read. Its machine follows by the usual way.
pub(super) async fn supersede(client: &Client, peerpod: &PeerPod) -> Result<Written, ApiError> {
    let preconditions = Preconditions { uid: peerpod.uid(), resource_version: peerpod.resource_version() };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
    written(api_call::bounded(api(client, peerpod).delete(&peerpod.name_any(), &params)).await)
}

fn api(client: &Client, peerpod: &PeerPod) -> Api<PeerPod> {
    Api::namespaced(client.clone(), &peerpod.namespace().unwrap_or_default())
}

/// A failed test or precondition (409) means that the object changed; whatever else is refused is an error to be told.
fn written<T>(answer: Result<T, ApiError>) -> Result<Written, ApiError> {
    match answer {
        Ok(_) => Ok(Written::Done),
        Err(error) => match error.code() {
            Some(404) => Ok(Written::Gone),
            Some(409) => Ok(Written::Outdated),
            _ if error.is_failed_test() => Ok(Written::Outdated),
            _ => Err(error),
        },
    }
}

/// Removes our finalizer and no other. The tests pin the object and the very list that was read.
fn release_patch(peerpod: &PeerPod) -> JsonPatch {
    let path = PointerBuf::from_tokens(["metadata", "finalizers"]);
    let others: Vec<_> =
        peerpod.finalizers().iter().filter(|finalizer| *finalizer != FINALIZER).cloned().collect();
    let change = if others.is_empty() {
        PatchOperation::Remove(RemoveOperation { path: path.clone() })
    } else {
        PatchOperation::Replace(ReplaceOperation { path: path.clone(), value: others.into() })
    };
    let uid = PointerBuf::from_tokens(["metadata", "uid"]);
    JsonPatch(vec![
        PatchOperation::Test(TestOperation {
            path: uid,
            value: peerpod.uid().map_or(Value::Null, Value::from),
        }),
        PatchOperation::Test(TestOperation { path, value: peerpod.finalizers().into() }),
        change,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn released(finalizers: &[&str]) -> Value {
        let document =
            json!({ "metadata": { "name": "a", "uid": "u-1", "finalizers": finalizers }, "spec": {} });
        let mut changed = serde_json::to_value(&document).unwrap();
        let peerpod: PeerPod = serde_json::from_value(json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPod",
            "metadata": document["metadata"], "spec": {},
        }))
        .unwrap();
        json_patch::patch(&mut changed, &release_patch(&peerpod)).unwrap();
        changed["metadata"].clone()
    }

    #[test]
    fn only_our_finalizer_goes() {
        assert_eq!(released(&[FINALIZER]), json!({ "name": "a", "uid": "u-1" }));
        assert_eq!(released(&["x/y", FINALIZER])["finalizers"], json!(["x/y"]));
    }

    #[test]
    fn a_changed_list_or_object_fails_the_patch() {
        let mut peerpod = PeerPod::new("a", serde_json::from_value(json!({})).unwrap());
        peerpod.metadata.uid = Some("u-1".into());
        peerpod.metadata.finalizers = Some(vec![FINALIZER.into()]);
        let patch = release_patch(&peerpod);
        for metadata in [json!({ "uid": "u-2", "finalizers": [FINALIZER] }), json!({ "uid": "u-1" })] {
            assert!(json_patch::patch(&mut json!({ "metadata": metadata }), &patch).is_err());
        }
    }
}
