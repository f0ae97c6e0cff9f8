//! The two writes to PeerPods *(client required)*.

use kube::{Api, Client, ResourceExt};
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
    let deleted = api_call::delete_as_read(&api(client, peerpod), peerpod).await;
    Written::by(&peerpod.name_any(), deleted)
}

fn api(client: &Client, peerpod: &PeerPod) -> Api<Metadata<PeerPod>> {
    Api::namespaced(client.clone(), &peerpod.namespace().unwrap_or_default())
}
