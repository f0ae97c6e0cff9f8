//! Observes one PeerPod *(client required)*. In the cluster and at the cloud it only reads, and only what the decision needs.
//!
//! In memory it notes what it finds out about Pods: since when they terminate (`pod_states.rs`), and whether the Pod of a deleted
//! PeerPod has ended (`index.rs`). It requeues other PeerPods: those that may have been refused because of that Pod, and those whose own
//! reconcile must find out whether their Pod has ended (`claims.rs`).

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Api, Client, ResourceExt, runtime::reflector::Store};
use operator_kit::api_call::{self, ApiError};

use super::{
    decide::{
        Decision, Facts, InSandbox, Owner, PeerPodFinding, Phase, Sibling, VmState, is_left_by_an_ended_pod,
        is_superseded, wait_for_pod,
    },
    findings::PeerPodFindings,
    index::{Index, SiblingVm, Siblings},
    object::{created, deleted_at, has_finalizer, has_unread_finalizers, is_abandoned, key, owner},
    parking::Turn,
    pod::{PodState, PodView, state_of},
    pod_states::PodStates,
    relations::is_sibling,
    requeue::Requeues,
};
use crate::{
    api::v1alpha1::PeerPod,
    cluster::Cluster,
    provider::{
        self, Cloud, Clouds, Error, ErrorClass, IdProblem, InstanceId, NAME_LIMIT, Provider,
        ensure_this_cluster,
    },
};

/// The sources of the facts.
pub(super) struct Observer {
    pub(super) client: Client,
    pub(super) clouds: Clouds,
    pub(super) index: Arc<Index>,
    pub(super) store: Store<PeerPod>,
    pub(super) grace_periods: Arc<PodStates<Duration>>,
    /// Since when cloud-api-adaptor may clean up VMs itself, at clouds that reuse identifiers.
    pub(super) clean_ups: Arc<PodStates<bool>>,
    pub(super) cluster: Cluster,
    /// What the sweep found out.
    pub(super) findings: PeerPodFindings,
    pub(super) requeues: Requeues,
}

/// Why there are no facts to decide on.
pub(super) enum Interrupted {
    /// All slots of the cloud are taken, or it wants no calls for this time: the PeerPod is parked.
    Parked { paused_for: Option<Duration> },
    /// The API server failed.
    Failed(ApiError),
}

impl From<ApiError> for Interrupted {
    fn from(error: ApiError) -> Self {
        Self::Failed(error)
    }
}

impl Observer {
    /// Everything that the decision on `peerpod` depends on. What is read depends on the [`Phase`], as the decision does.
    pub(super) async fn observe(
        &self,
        peerpod: &PeerPod,
        provider: &Result<Arc<dyn Provider>, Error>,
        turn: &Turn<'_>,
    ) -> Result<Facts, Interrupted> {
        let siblings = self.index.siblings(peerpod);
        let mut facts = self.known(peerpod, &siblings);
        let observation = Observation { observer: self, peerpod, provider, turn, siblings };
        match Phase::of(&facts) {
            Phase::Decided(Decision::Release(_)) => {}
            // Whatever keeps a deleted PeerPod, it claims no VM once its Pod has ended.
            Phase::Decided(_) if facts.deleted.is_some() => {
                observation.note_end(&mut facts).await?;
            }
            Phase::Decided(_) => {}
            Phase::WithoutFinalizer => observation.without_finalizer(&mut facts).await?,
            Phase::Live => observation.live(&mut facts).await?,
            Phase::Deleting => observation.deleting(&mut facts).await?,
        }
        Ok(facts)
    }

    /// What is known without a read.
    fn known(&self, peerpod: &PeerPod, siblings: &Siblings) -> Facts {
        let cloud = peerpod.cloud_provider();
        Facts {
            deleted: deleted_at(peerpod),
            finalizer: has_finalizer(peerpod),
            unread_finalizers: has_unread_finalizers(peerpod),
            abandoned: is_abandoned(peerpod),
            recorded: siblings.recorded,
            age: Timestamp::now().duration_since(siblings.recorded),
            pod: owner(peerpod).map(|pod| pod.name.clone()),
            name_limit: Cloud::named(cloud).map_or(NAME_LIMIT, |cloud| cloud.name_limit),
            owner: Owner::Gone,
            clean_up: Duration::ZERO,
            pod_created: None,
            in_sandbox: InSandbox::Unknown,
            instance: InstanceId::parse(cloud, peerpod.instance_id()),
            has_younger: siblings.has_younger,
            siblings: Vec::new(),
            claimed_by: None,
            vm: VmState::NotAsked,
            finding: self.findings.of(peerpod.metadata.uid.as_deref()),
            developer_mode: self.clouds.developer_mode(cloud),
            deletion_accepted: false,
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

    /// For how much longer cloud-api-adaptor may itself clean up the VM of a PeerPod that is being deleted or has lost its finalizer:
    /// the time begins when this process first sees that, and once more when it sees that the Pod has ended.
    pub(super) fn clean_up(&self, peerpod: &PeerPod, pod: &OwnerReference, state: Owner) -> Duration {
        let time = self.clouds.clean_up_time(peerpod.cloud_provider());
        if time.is_zero() || deleted_at(peerpod).is_none() && has_finalizer(peerpod) {
            return Duration::ZERO;
        }
        let may_run = state.may_run().is_some();
        let known_for = self.clean_ups.known_for(&key(peerpod), &pod.uid, may_run, Instant::now());
        time.saturating_sub(known_for)
    }
}

/// The observation of one PeerPod. Each method adds to the facts what the decision depends on, and asks for nothing that would not
/// change it.
struct Observation<'a> {
    observer: &'a Observer,
    peerpod: &'a PeerPod,
    provider: &'a Result<Arc<dyn Provider>, Error>,
    turn: &'a Turn<'a>,
    siblings: Siblings,
}

impl Observation<'_> {
    /// A PeerPod without the finalizer matters only if it has a younger sibling. If its VM is absent, nothing else matters.
    async fn without_finalizer(&self, facts: &mut Facts) -> Result<(), Interrupted> {
        if !facts.has_younger || facts.instance.is_err() {
            return Ok(());
        }
        self.enter()?;
        facts.vm = self.vm_state(self.peerpod, facts.recorded).await;
        if let (VmState::Present(_), Some(pod)) = (&facts.vm, owner(self.peerpod)) {
            self.read_pod(pod, facts).await?;
            self.ask_for_siblings(facts).await?;
            facts.claimed_by = self.observer.claimant(self.peerpod, &facts.vm).await?;
        }
        Ok(())
    }

    /// A PeerPod that is not being deleted matters only if it may have newer siblings, or if its Pod may have left it.
    async fn live(&self, facts: &mut Facts) -> Result<(), Interrupted> {
        let Some(pod) = owner(self.peerpod) else { return Ok(()) };
        if self.siblings.newest.is_empty() && facts.finding != Some(PeerPodFinding::Ended) {
            return Ok(());
        }
        self.read_pod(pod, facts).await?;
        if !is_left_by_an_ended_pod(facts) {
            self.ask_for_siblings(facts).await?;
        }
        Ok(())
    }

    /// While the Pod of a deleted PeerPod may run, only a newer sibling can change the decision. Then the VM matters, and what else
    /// needs it.
    async fn deleting(&self, facts: &mut Facts) -> Result<(), Interrupted> {
        if !self.note_end(facts).await? {
            self.ask_for_siblings(facts).await?;
            if wait_for_pod(facts).is_some() {
                return Ok(());
            }
        }
        match facts.instance {
            Ok(_) => {
                if facts.vm == VmState::NotAsked {
                    self.enter()?;
                    facts.vm = self.vm_state(self.peerpod, facts.recorded).await;
                }
                facts.claimed_by = self.observer.claimant(self.peerpod, &facts.vm).await?;
            }
            Err(IdProblem::Empty) if facts.finding == Some(PeerPodFinding::NoVm) => {
                facts.vm = VmState::Absent;
            }
            Err(_) => {}
        }
        Ok(())
    }

    /// Reads the Pod of a deleted PeerPod, and notes whether it has ended. Without a Pod there is nothing to note.
    async fn note_end(&self, facts: &mut Facts) -> Result<bool, ApiError> {
        let Some(pod) = owner(self.peerpod) else { return Ok(true) };
        self.read_pod(pod, facts).await?;
        let has_ended = facts.owner.may_run().is_none();
        let Observer { index, requeues, .. } = self.observer;
        requeues.add(index.pod_has_ended(self.peerpod, has_ended));
        Ok(has_ended)
    }

    /// Takes a slot at the cloud, unless this turn has one. A cloud that cannot be asked answers at once and needs no slot.
    fn enter(&self) -> Result<(), Interrupted> {
        let Ok(provider) = self.provider else { return Ok(()) };
        let paused_for = provider.paused_for();
        let most = if paused_for.is_some() { Some(0) } else { provider.most_at_once() };
        if self.turn.enter(most) { Ok(()) } else { Err(Interrupted::Parked { paused_for }) }
    }

    /// What the decision depends on of the Pod.
    async fn read_pod(&self, pod: &OwnerReference, facts: &mut Facts) -> Result<(), ApiError> {
        let state = self.observer.pod_state(self.peerpod, pod).await?;
        facts.owner = state.owner;
        facts.clean_up = self.observer.clean_up(self.peerpod, pod, state.owner);
        facts.pod_created = state.created;
        facts.in_sandbox = match state.in_sandbox {
            _ if self.observer.index.is_kept_for_pod(self.peerpod) => InSandbox::BeforeAllNewer,
            Some(time) => InSandbox::By(time),
            None => InSandbox::Unknown,
        };
        Ok(())
    }

    /// Asks the cloud for the VMs of the PeerPod and of its newer siblings, the newest first, until a sibling supersedes it.
    async fn ask_for_siblings(&self, facts: &mut Facts) -> Result<(), Interrupted> {
        if self.siblings.newest.is_empty() {
            return Ok(());
        }
        self.enter()?;
        // One after the other: a reconcile that has several requests in the queue of a cloud makes all others wait longer.
        if facts.vm == VmState::NotAsked {
            facts.vm = self.vm_state(self.peerpod, facts.recorded).await;
        }
        for sibling in &self.siblings.newest {
            if is_superseded(facts) {
                return Ok(());
            }
            facts.siblings.push(self.sibling(sibling).await);
        }
        facts.siblings.extend(self.siblings.next.map(|recorded| Sibling { recorded, vm: VmState::NotAsked }));
        Ok(())
    }

    async fn sibling(&self, sibling: &SiblingVm) -> Sibling {
        let known = self.observer.store.get(&sibling.key);
        let known = known.filter(|other| !sibling.contested && is_sibling(other, self.peerpod));
        let vm = match known {
            Some(other) => self.vm_state(&other, sibling.recorded).await,
            None => VmState::NotAsked,
        };
        Sibling { recorded: sibling.recorded, vm }
    }

    /// What the cloud answers about a PeerPod's VM. A VM of another cluster counts as unknown.
    async fn vm_state(&self, peerpod: &PeerPod, recorded: Timestamp) -> VmState {
        let Observer { cluster, .. } = self.observer;
        match vm_state_of(peerpod, recorded, self.observer.is_contested(peerpod), self.provider).await {
            VmState::Present(vm) if vm.cluster_uid.is_some() => {
                let checked = ensure_this_cluster(vm, cluster.uid().await);
                checked.map_or_else(VmState::Unanswered, VmState::Present)
            }
            state => state,
        }
    }
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
            let deleted = deleted_at(peerpod);
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
