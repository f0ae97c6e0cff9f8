//! The finalizer of a configuration *(client required)*. While it is there, objects or advertised VMs may exist for the
//! configuration. The operator removes the finalizer after it has removed all of these.

use kube::{Api, Client, ResourceExt};
use operator_kit::{api_call::ApiError, finalizer, metadata::Metadata};

use super::FINALIZER;
use crate::api::v1alpha1::{FIELD_MANAGER, PeerPodConfig};

/// Sets the finalizer. False if the configuration was removed or another one has its name: then nothing may be created for it,
/// because nothing would clean it up.
pub(super) async fn add(client: &Client, config: &PeerPodConfig) -> Result<bool, ApiError> {
    finalizer::add(&api(client, config), config, FINALIZER, &format!("{FIELD_MANAGER}-finalizer")).await
}

/// Removes the finalizer. If the configuration changed since it was read, the change requeues it.
pub(super) async fn release(client: &Client, config: &PeerPodConfig) -> Result<(), ApiError> {
    finalizer::release(&api(client, config), config, FINALIZER, FIELD_MANAGER).await.map(drop)
}

fn api(client: &Client, config: &PeerPodConfig) -> Api<Metadata<PeerPodConfig>> {
    Api::namespaced(client.clone(), &config.namespace().unwrap_or_default())
}
