//! What a test leaves on a cluster that the next one has to itself.

use anyhow::Result;
use k8s_openapi::api::{apps::v1::Deployment, coordination::v1::Lease, core::v1::ConfigMap};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use peerpod_operator::{
    NAMESPACE,
    api::v1alpha1::{PeerPod, PeerPodConfig},
    names::PLACES,
};
use serde_json::json;
use testbed::{
    Caa, Testbed,
    wait::{self, DEADLINE},
};

/// Puts a cluster back: everything is installed that the operator needs and known to the garbage collector, nobody holds a
/// lease, no place is recorded, and there is no PeerPod, no `PeerPodConfig`, and no Deployment in the operator's namespace.
pub async fn clear(testbed: &mut Testbed) -> Result<()> {
    testbed.install_objects().await?;
    testbed.collect_new_kinds().await?;
    let caa = Caa::install(testbed).await?;
    let leases: Api<Lease> = Api::namespaced(testbed.client(), NAMESPACE);
    leases.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    let config_maps: Api<ConfigMap> = Api::namespaced(testbed.client(), NAMESPACE);
    if config_maps.get_opt(PLACES).await?.is_some() {
        config_maps.delete(PLACES, &DeleteParams::default()).await?;
    }
    let all: Api<PeerPod> = Api::all(testbed.client());
    for left in all.list(&ListParams::default()).await? {
        let namespace = left.namespace().unwrap_or_default();
        let api: Api<PeerPod> = Api::namespaced(testbed.client(), &namespace);
        if !left.finalizers().is_empty() {
            caa.release(&left).await?;
        }
        testbed
            .cluster()
            .kubectl(&["delete", "peerpod", &left.name_any(), "-n", &namespace, "--ignore-not-found"])
            .await?;
        wait::gone(&api, &left.name_any(), DEADLINE).await?;
    }
    // No operator runs that could release them.
    let all: Api<PeerPodConfig> = Api::all(testbed.client());
    for left in all.list(&ListParams::default()).await? {
        let (name, namespace) = (left.name_any(), left.namespace().unwrap_or_default());
        let configs: Api<PeerPodConfig> = Api::namespaced(testbed.client(), &namespace);
        let released = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        configs.patch(&name, &PatchParams::default(), &released).await?;
        testbed
            .cluster()
            .kubectl(&["delete", "peerpodconfig", &name, "-n", &namespace, "--ignore-not-found"])
            .await?;
        wait::gone(&configs, &name, DEADLINE).await?;
    }
    // What keeps the operator learns a moment later that there are none.
    let deployments: Api<Deployment> = Api::namespaced(testbed.client(), NAMESPACE);
    wait::eventually("no Deployment is left", DEADLINE, async || {
        deployments.delete_collection(&DeleteParams::background(), &ListParams::default()).await?;
        Ok(())
    })
    .await
}
