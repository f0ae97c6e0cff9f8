//! The two writes to PeerPods *(client required)*.

use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Preconditions},
};
use operator_kit::{
    api_call::{self, ApiError, Written},
    finalizer,
    metadata::Metadata,
};

use crate::api::v1alpha1::{FIELD_MANAGER, FINALIZER, PeerPod};

/// Removes the finalizer, if the object is still the one that was read and its finalizers are unchanged.
pub(super) async fn release(client: &Client, peerpod: &PeerPod) -> Result<Written, ApiError> {
    finalizer::release(&api(client, peerpod), peerpod, FINALIZER, FIELD_MANAGER).await
}

/// Deletes the PeerPod object itself, if it is unchanged since it was read. Where it has the finalizer, the operator then deletes its
/// VM as for any other.
pub(super) async fn delete(client: &Client, peerpod: &PeerPod) -> Result<Written, ApiError> {
    let params = as_read(peerpod);
    let name = peerpod.name_any();
    Written::by(&name, api_call::bounded(api(client, peerpod).delete(&name, &params)).await)
}

/// Deletes exactly what was read: no successor of the same name, and no changed object.
fn as_read(peerpod: &PeerPod) -> DeleteParams {
    let preconditions = Preconditions { uid: peerpod.uid(), resource_version: peerpod.resource_version() };
    DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() }
}

fn api(client: &Client, peerpod: &PeerPod) -> Api<Metadata<PeerPod>> {
    Api::namespaced(client.clone(), &peerpod.namespace().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::{json, to_value};

    use super::*;

    #[test]
    fn an_object_is_deleted_only_as_it_was_read() {
        let mut peerpod = PeerPod::new("a", serde_json::from_value(json!({})).unwrap());
        peerpod.metadata.uid = Some("u-1".into());
        peerpod.metadata.resource_version = Some("17".into());
        let sent = to_value(as_read(&peerpod)).unwrap();
        assert_eq!(sent["preconditions"], json!({ "uid": "u-1", "resourceVersion": "17" }));
        assert_eq!(sent["propagationPolicy"], "Background");
    }
}
