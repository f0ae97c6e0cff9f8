//! The two writes that PeerPods see from here *(client required)*.

use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Preconditions},
};

use crate::{
    api::v1alpha1::{FINALIZER, PeerPod},
    runtime::{
        api_call::{self, ApiError},
        finalizer::{self, Written},
    },
};

/// Takes the finalizer away, if the object still is the one that was read and nobody else touched its finalizers.
pub(super) async fn release(client: &Client, peerpod: &PeerPod) -> Result<Written, ApiError> {
    finalizer::release(&api(client, peerpod), peerpod, FINALIZER).await
}

/// Deletes the PeerPod object itself, if it still is what was read. Its machine follows by the usual way.
pub(super) async fn supersede(client: &Client, peerpod: &PeerPod) -> Result<Written, ApiError> {
    let preconditions = Preconditions { uid: peerpod.uid(), resource_version: peerpod.resource_version() };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
    Written::by(api_call::bounded(api(client, peerpod).delete(&peerpod.name_any(), &params)).await)
}

fn api(client: &Client, peerpod: &PeerPod) -> Api<PeerPod> {
    Api::namespaced(client.clone(), &peerpod.namespace().unwrap_or_default())
}
