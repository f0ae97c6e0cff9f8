//! Cleans a cluster up, for the next test that has it to itself.

use std::fmt::Debug;

use anyhow::{Result, ensure};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::Deployment,
        coordination::v1::Lease,
        core::v1::ConfigMap,
        node::v1::RuntimeClass,
        rbac::v1::{Role, RoleBinding},
    },
};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{DeleteParams, ListParams},
};
use peerpod_operator::{
    NAMESPACE,
    api::v1alpha1::{PeerPod, PeerPodConfig},
    names::PLACES,
};
use serde::de::DeserializeOwned;
use testbed::{
    Testbed,
    byom_pool::POOL,
    wait::{self, DEADLINE},
};

/// The roles, and their bindings, that tests of byom add to the operator's objects.
const RIGHTS: [&str; 2] = ["cloud-api-adaptor-byom", "peerpod-operator-byom"];

/// Restores a cluster. Afterwards the operator's objects are installed and known to the garbage collector, every lease is free, no
/// place and no pool is recorded, there are no rights for a pool, and there is no PeerPod, no `PeerPodConfig`, no runtime class, and no
/// Deployment in the operator's namespace.
pub async fn clear(testbed: &mut Testbed) -> Result<()> {
    testbed.install_objects().await?;
    testbed.collect_new_kinds().await?;
    let leases: Api<Lease> = Api::namespaced(testbed.client(), NAMESPACE);
    leases.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    deleted::<ConfigMap>(testbed, [PLACES, POOL]).await?;
    deleted::<Role>(testbed, RIGHTS).await?;
    deleted::<RoleBinding>(testbed, RIGHTS).await?;
    removed::<PeerPod>(testbed).await?;
    removed::<PeerPodConfig>(testbed).await?;
    let classes: Api<RuntimeClass> = Api::all(testbed.client());
    classes.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    // The policy that keeps the operator notices a moment later that no configuration is left.
    let deployments: Api<Deployment> = Api::namespaced(testbed.client(), NAMESPACE);
    wait::eventually("no Deployment is left", DEADLINE, async || {
        deployments.delete_collection(&DeleteParams::background(), &ListParams::default()).await?;
        Ok(())
    })
    .await
}

/// Deletes those of these objects that exist in the operator's namespace.
async fn deleted<K>(testbed: &Testbed, names: [&str; 2]) -> Result<()>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let all: Api<K> = Api::namespaced(testbed.client(), NAMESPACE);
    for name in names {
        if all.get_opt(name).await?.is_some() {
            all.delete(name, &DeleteParams::default()).await?;
        }
    }
    Ok(())
}

/// Removes all objects of a kind, and waits until the API server shows none.
async fn removed<K>(testbed: &Testbed) -> Result<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    testbed.remove_all::<K>().await?;
    let all: Api<K> = Api::all(testbed.client());
    wait::eventually(&format!("no {} are left", K::plural(&())), DEADLINE, async || {
        let left = all.list_metadata(&ListParams::default().limit(1)).await?.items;
        ensure!(left.is_empty(), "{} is left", left[0].name_any());
        Ok(())
    })
    .await
}
