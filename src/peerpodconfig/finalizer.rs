//! The finalizer of a configuration *(client required)*. While it is there, objects or advertised VMs may exist for the
//! configuration. The operator removes the finalizer after it has removed all of these.

use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use operator_kit::{
    api_call::{self, ApiError},
    finalizer,
    metadata::Metadata,
};
use serde_json::json;

use super::FINALIZER;
use crate::api::v1alpha1::{FIELD_MANAGER, PeerPodConfig};

/// Sets the finalizer. False if the configuration was removed or another one has its name: then nothing may be created for it,
/// because nothing would clean it up. Server-side apply leaves the finalizers of others alone.
pub(super) async fn add(client: &Client, config: &PeerPodConfig) -> Result<bool, ApiError> {
    let patch = json!({
        "apiVersion": "confidentialcontainers.org/v1alpha1",
        "kind": "PeerPodConfig",
        "metadata": { "uid": config.uid(), "finalizers": [FINALIZER] },
    });
    let params = PatchParams::apply(&format!("{FIELD_MANAGER}-finalizer")).force();
    let (api, name) = (api(client, config), config.name_any());
    let applied = api_call::bounded(api.patch(&name, &params, &Patch::Apply(patch))).await;
    Ok(api_call::if_unchanged(&name, applied)?.is_some())
}

/// Removes the finalizer. If the configuration changed since it was read, the change requeues it.
pub(super) async fn release(client: &Client, config: &PeerPodConfig) -> Result<(), ApiError> {
    finalizer::release(&api(client, config), config, FINALIZER, FIELD_MANAGER).await.map(drop)
}

fn api(client: &Client, config: &PeerPodConfig) -> Api<Metadata<PeerPodConfig>> {
    Api::namespaced(client.clone(), &config.namespace().unwrap_or_default())
}
