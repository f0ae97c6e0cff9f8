//! Observes one PeerPod *(client required)*. It only reads, and only what the decision needs.

use std::{sync::Arc, time::Instant};

use futures::future::join;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Api, Client, ResourceExt, runtime::reflector::Store};
use operator_kit::{
    Message,
    api_call::{self, ApiError},
};

use super::{
    decide::{
        Facts, InSandbox, Owner, Sibling, VmState, is_left_by_an_ended_pod, is_superseded, wait_for_pod,
    },
    findings::{PeerPodFinding, PeerPodFindings},
    grace_periods::GracePeriods,
    index::{Index, Newer, Siblings, key},
    object::{created, has_finalizer, has_unread_finalizers, is_abandoned, owner},
    parking::Turn,
    pod::{PodState, PodView, state_of},
    relations::is_sibling,
    requeue::Requeues,
};
use crate::{
    api::v1alpha1::PeerPod,
    cluster::Cluster,
    provider::{
        self, CLUSTER_UID_TAG, Cloud, Clouds, Error, ErrorClass, IdProblem, InstanceId, NAME_LIMIT, Provider,
        Vm,
    },
};

/// The sources of the facts.
pub(super) struct Observer {
    pub(super) client: Client,
    pub(super) clouds: Clouds,
    pub(super) index: Arc<Index>,
    pub(super) store: Store<PeerPod>,
    pub(super) grace_periods: GracePeriods,
    pub(super) cluster: Cluster,
    /// What the sweep found out.
    pub(super) findings: PeerPodFindings,
    pub(super) requeues: Requeues,
}

impl Observer {
    /// Everything that the decision on `peerpod` depends on. `None`: it is parked, as its cloud has no free slot. Fails only when
    /// the API server fails.
    pub(super) async fn observe(
        &self,
        peerpod: &PeerPod,
        provider: &Result<Arc<dyn Provider>, Error>,
        turn: &Turn<'_>,
    ) -> Result<Option<Facts>, ApiError> {
        let pod = owner(peerpod);
        let deleted = peerpod.metadata.deletion_timestamp.as_ref().map(|time| time.0);
        let instance = InstanceId::parse(peerpod.cloud_provider(), peerpod.instance_id());
        let siblings = self.index.siblings(peerpod);
        let finding = self.findings.of(peerpod.metadata.uid.as_deref());
        let mut facts = Facts {
            deleted,
            finalizer: has_finalizer(peerpod),
            unread_finalizers: has_unread_finalizers(peerpod),
            abandoned: is_abandoned(peerpod),
            recorded: siblings.recorded,
            age: Timestamp::now().duration_since(siblings.recorded),
            pod: pod.map(|pod| pod.name.clone()),
            name_limit: Cloud::named(peerpod.cloud_provider()).map_or(NAME_LIMIT, |cloud| cloud.name_limit),
            owner: Owner::Gone,
            pod_created: None,
            in_sandbox: InSandbox::Unknown,
            instance,
            has_younger: siblings.has_younger,
            siblings: Vec::new(),
            claimed_by: None,
            vm: VmState::NotAsked,
            finding,
            developer_mode: self.clouds.developer_mode(peerpod.cloud_provider()),
            deletion_accepted: false,
        };
        let has_slot = || provider.is_err() || turn.enter();
        if facts.unread_finalizers || deleted.is_some() && (!facts.finalizer || facts.abandoned) {
            return Ok(Some(facts));
        }
        if !facts.finalizer {
            if facts.has_younger && facts.instance.is_ok() {
                if !has_slot() {
                    return Ok(None);
                }
                self.observe_released(peerpod, siblings, provider, &mut facts).await?;
            }
            return Ok(Some(facts));
        }
        if let Some(pod) = pod {
            let may_be_left = finding == Some(PeerPodFinding::Ended);
            if deleted.is_none() && siblings.newest.is_empty() && !may_be_left {
                return Ok(Some(facts));
            }
            self.observe_pod(peerpod, pod, &mut facts).await?;
            if deleted.is_none() && is_left_by_an_ended_pod(&facts) {
                return Ok(Some(facts));
            }
            if deleted.is_some() {
                self.requeues.add(self.index.pod_has_ended(peerpod, facts.owner.may_run().is_none()));
            }
            if deleted.is_none() || wait_for_pod(&facts).is_some() {
                if !siblings.newest.is_empty() && !has_slot() {
                    return Ok(None);
                }
                self.ask(peerpod, siblings, provider, &mut facts).await;
                if deleted.is_none() || wait_for_pod(&facts).is_some() {
                    return Ok(Some(facts));
                }
            }
        }
        if deleted.is_some() {
            if facts.instance == Err(IdProblem::Empty) && finding == Some(PeerPodFinding::NoVm) {
                facts.vm = VmState::Absent;
            } else if facts.vm == VmState::NotAsked {
                if facts.instance.is_ok() && !has_slot() {
                    return Ok(None);
                }
                facts.vm = self.vm_state(peerpod, facts.recorded, provider).await;
            }
            if facts.instance.is_ok() {
                facts.claimed_by = self.claimant(peerpod, &facts.vm).await?;
            }
        }
        Ok(Some(facts))
    }

    /// Everything that the decision on a PeerPod without the finalizer depends on. If its VM is absent, that is little.
    async fn observe_released(
        &self,
        peerpod: &PeerPod,
        siblings: Siblings,
        provider: &Result<Arc<dyn Provider>, Error>,
        facts: &mut Facts,
    ) -> Result<(), ApiError> {
        facts.vm = self.vm_state(peerpod, facts.recorded, provider).await;
        if let (VmState::Present(_), Some(pod)) = (&facts.vm, owner(peerpod)) {
            self.observe_pod(peerpod, pod, facts).await?;
            self.ask(peerpod, siblings, provider, facts).await;
            facts.claimed_by = self.claimant(peerpod, &facts.vm).await?;
        }
        Ok(())
    }

    /// What the decision depends on of the Pod.
    async fn observe_pod(
        &self,
        peerpod: &PeerPod,
        pod: &OwnerReference,
        facts: &mut Facts,
    ) -> Result<(), ApiError> {
        let state = self.pod_state(peerpod, pod).await?;
        facts.owner = state.owner;
        facts.pod_created = state.created;
        facts.in_sandbox = self.in_sandbox(peerpod, &state);
        Ok(())
    }

    fn in_sandbox(&self, peerpod: &PeerPod, state: &PodState) -> InSandbox {
        match state.in_sandbox {
            _ if self.index.is_doubted(peerpod) => InSandbox::Doubted,
            Some(time) => InSandbox::By(time),
            None => InSandbox::Unknown,
        }
    }

    /// Asks the cloud for the VMs of the PeerPod and of its newer siblings, the newest first, until a sibling supersedes it.
    async fn ask(
        &self,
        peerpod: &PeerPod,
        siblings: Siblings,
        provider: &Result<Arc<dyn Provider>, Error>,
        facts: &mut Facts,
    ) {
        let mut newest = siblings.newest.into_iter();
        let Some(first) = newest.next() else { return };
        let own = async {
            match &facts.vm {
                VmState::NotAsked => self.vm_state(peerpod, facts.recorded, provider).await,
                known => known.clone(),
            }
        };
        let (own, first) = join(own, self.sibling(peerpod, &first, provider)).await;
        facts.vm = own;
        facts.siblings.push(first);
        for sibling in newest {
            if is_superseded(facts) {
                return;
            }
            facts.siblings.push(self.sibling(peerpod, &sibling, provider).await);
        }
        facts.siblings.extend(siblings.next.map(|recorded| Sibling { recorded, vm: VmState::NotAsked }));
    }

    async fn sibling(
        &self,
        peerpod: &PeerPod,
        sibling: &Newer,
        provider: &Result<Arc<dyn Provider>, Error>,
    ) -> Sibling {
        let known =
            self.store.get(&sibling.key).filter(|other| !sibling.contested && is_sibling(other, peerpod));
        let vm = match known {
            Some(other) => self.vm_state(&other, sibling.recorded, provider).await,
            None => VmState::NotAsked,
        };
        Sibling { recorded: sibling.recorded, vm }
    }

    /// What the cloud answers about a PeerPod's VM. A VM of another cluster counts as unknown.
    async fn vm_state(
        &self,
        peerpod: &PeerPod,
        recorded: Timestamp,
        provider: &Result<Arc<dyn Provider>, Error>,
    ) -> VmState {
        match vm_state_of(peerpod, recorded, self.is_contested(peerpod), provider).await {
            VmState::Present(vm) if vm.cluster_uid.is_some() => in_cluster(vm, self.cluster.uid().await),
            state => state,
        }
    }

    pub(super) async fn pod_state(
        &self,
        peerpod: &PeerPod,
        pod: &OwnerReference,
    ) -> Result<PodState, ApiError> {
        let namespace = peerpod.namespace().unwrap_or_default();
        let api: Api<PodView> = Api::namespaced(self.client.clone(), &namespace);
        let found = api_call::get_opt(&api, &pod.name).await?;
        let key = key(peerpod);
        let known_for = |grace| self.grace_periods.known_for(&key, &pod.uid, grace, Instant::now());
        let state = state_of(found, &pod.uid, known_for);
        // No later event clears the entry of a PeerPod that was removed meanwhile.
        if !matches!(state.owner, Owner::Terminating { .. }) || !self.index.contains(&key) {
            self.grace_periods.forget(&key);
        }
        Ok(state)
    }
}

/// A VM that has the tag of its cluster, as the cluster with this UID sees it. A PeerPod that came from another cluster, as by a
/// backup, names a VM there.
fn in_cluster(vm: Vm, uid: Option<&str>) -> VmState {
    if vm.cluster_uid.as_deref() == uid {
        return VmState::Present(vm);
    }
    let problem = match uid {
        Some(_) => "is not this cluster's UID: the VM is another cluster's, or the tag in TAGS is wrong",
        None => "cannot be compared: the UID of the namespace kube-system is not known",
    };
    let message = Message::public(format!("the value of the VM's tag {CLUSTER_UID_TAG} {problem}"));
    VmState::Unanswered(Error::new(ErrorClass::Refused, message))
}

/// What the cloud answers about a PeerPod's VM. `contested`: see [`provider::Claim::contested`].
pub(super) async fn vm_state_of(
    peerpod: &PeerPod,
    recorded: Timestamp,
    contested: bool,
    provider: &Result<Arc<dyn Provider>, Error>,
) -> VmState {
    let Ok(id) = InstanceId::parse(peerpod.cloud_provider(), peerpod.instance_id()) else {
        return VmState::NotAsked;
    };
    let described = match provider {
        Ok(provider) => {
            let pod = owner(peerpod).map(|pod| pod.name.clone());
            let deleted = peerpod.metadata.deletion_timestamp.as_ref().map(|time| time.0);
            let claim = provider::Claim { pod, recorded, created: created(peerpod), deleted, contested };
            provider.describe(&id, &claim).await
        }
        Err(unavailable) => Err(unavailable.clone()),
    };
    match described {
        Ok(vm) => VmState::Present(vm),
        Err(error) if error.class == ErrorClass::NotFound => VmState::Absent,
        Err(error) => VmState::Unanswered(error),
    }
}

#[cfg(test)]
pub(super) mod tests;
