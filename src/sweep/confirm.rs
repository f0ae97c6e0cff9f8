//! Asks the cloud and the Pod whether a PeerPod's VM is lost, or left by a Pod that has ended *(client required)*. It changes nothing.

use kube::{Api, Client, ResourceExt};
use operator_kit::{
    api_call::{self, ApiError},
    projection::reading,
};
use tracing::warn;

use crate::{
    api::v1alpha1::PeerPod,
    peerpod::{
        LostState, PeerPodFinding,
        decide::Owner,
        object::{created, owner},
        pod::{POD, PodView, owner_by},
    },
    provider::{Claim, Error, ErrorClass, InstanceId, Provider, Stage, Target, ownership},
};

/// What may be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Suspicion {
    /// The Pod runs, and its VM does not.
    Lost(LostState),
    /// The PeerPod records no VM, and there is none.
    NoVm,
    /// The Pod has ended.
    Ended,
}

/// It could not be found out.
pub(super) struct Unknown;

impl From<Error> for Unknown {
    fn from(_: Error) -> Self {
        Self
    }
}

impl From<ApiError> for Unknown {
    fn from(error: ApiError) -> Self {
        warn!(%error, "the sweep could not read a Pod");
        Self
    }
}

/// What is wrong with the PeerPod, if the suspicion is right. Only reads.
pub(super) async fn inspect(
    client: &Client,
    target: &Target,
    peerpod: &PeerPod,
    suspicion: Suspicion,
) -> Result<Option<PeerPodFinding>, Unknown> {
    let Some(pod) = owner(peerpod) else { return Ok(None) };
    let pods: Api<PodView> = Api::namespaced(reading(client, &POD), &peerpod.namespace().unwrap_or_default());
    let owner = owner_by(api_call::get_opt(&pods, &pod.name).await?, &pod.uid);
    let provider = target.provider.as_ref().map_err(Clone::clone)?;
    Ok(match suspicion {
        Suspicion::Ended => (owner == Owner::Finished).then_some(PeerPodFinding::Ended),
        Suspicion::NoVm => owner.may_run().is_none().then_some(PeerPodFinding::NoVm),
        // The VM of a Pod that ends disappears first.
        Suspicion::Lost(_) if owner != Owner::Running => None,
        Suspicion::Lost(state) => {
            let is_lost = is_lost(target, &**provider, peerpod, &pod.name, state).await?;
            is_lost.then_some(PeerPodFinding::Lost(state))
        }
    })
}

/// Whether the cloud confirms it when it is asked for the VM itself, in every place where the VM may be. If the cloud shows the
/// VM, its name must be the Pod's.
async fn is_lost(
    target: &Target,
    provider: &dyn Provider,
    peerpod: &PeerPod,
    pod: &str,
    state: LostState,
) -> Result<bool, Error> {
    let Ok(id) = InstanceId::of(target.cloud, peerpod.instance_id().trim()) else { return Ok(false) };
    let recorded = created(peerpod);
    let claim = Claim { pod: Some(pod.to_owned()), recorded, created: recorded, ..Claim::default() };
    // A machine that is back in the pool, or another Pod's, is not this Pod's now. Only a release waits until that can no longer be undone.
    let is_gone = |error: &Error| match error.class {
        ErrorClass::NotFound => true,
        ErrorClass::Unsettled { .. } => target.cloud.reuses_ids,
        _ => false,
    };
    match provider.describe(&id, &claim).await {
        Err(gone) if is_gone(&gone) => Ok(state == LostState::Gone),
        Err(error) => Err(error),
        Ok(vm) => {
            let is_it = (vm.stage == Stage::Present) == (state == LostState::Stopped);
            // A PeerPod may name a VM of another tenant, whose state is private.
            Ok(is_it && ownership::verify(vm, pod, target.cloud.name_limit).is_ok())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        provider::contract::memory::{CLOUD, Memory},
        sweep::search::tests::{settings, target},
    };

    #[tokio::test]
    async fn a_vm_is_lost_only_if_the_cloud_says_so_of_itself() {
        let cloud = Memory::default();
        let there = cloud.vm("web").id;
        let none = "a0000000-0000-4000-8000-00000000ffff".to_owned();
        let target = target(&CLOUD, settings(&[]), cloud.clone());
        let is_lost = async |id: &str, state| {
            let peerpod = serde_json::from_value(json!({
                "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPod", "metadata": {},
                "spec": { "cloudProvider": "memory", "instanceID": id },
            }));
            super::is_lost(&target, &cloud, &peerpod.unwrap(), "web", state).await.unwrap()
        };
        assert!(!is_lost(&there, LostState::Gone).await, "a list may lag");
        assert!(is_lost(&none, LostState::Gone).await);
        assert!(!is_lost(&none, LostState::Stopped).await);
    }
}
