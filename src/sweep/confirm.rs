//! Asks the cloud and the Pod whether a PeerPod's VM is lost, or left by a Pod that has ended *(client required)*.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, EvictParams, Preconditions},
    runtime::{events::EventType, reflector::ObjectRef},
};
use operator_kit::{
    api_call::{self, ApiError},
    projection::reading,
};
use tracing::{info, warn};
use uuid::Uuid;

use super::{
    LostVm, LostVms,
    controller::Sweeper,
    lost::{in_turn, sound, suspects, without_vm},
    plan::{Found, Moment},
};
use crate::{
    api::v1alpha1::PeerPod,
    peerpod::{
        LostState, PeerPodFinding,
        conditions::Reason,
        decide::Owner,
        object::{created, owner},
        pod::{POD, PodView, owner_by},
    },
    provider::{Claim, Error, ErrorClass, InstanceId, Provider, Stage, Target, ownership},
};

/// The number of PeerPods of each kind that one round inspects. Tenants may write PeerPods that name VMs that do not exist, so
/// all of them take turns.
const INSPECTIONS: usize = 32;

/// PeerPods whose VM a listing did not show as expected. The keys are their UIDs as numbers, because tenants may write thousands of
/// such PeerPods.
#[derive(Default)]
pub(super) struct Suspects {
    known: HashMap<u128, Suspect>,
    /// PeerPods whose VM an earlier listing showed, running and with its Pod's name. Only their Pods are evicted, because a
    /// tenant may write a PeerPod that names a VM which never existed.
    sound: HashSet<u128>,
}

struct Suspect {
    wrong: Wrong,
    first: Moment,
    inspected: Option<Instant>,
    finding: Option<PeerPodFinding>,
}

/// What may be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Lost(LostState),
    NoVm,
    Ended,
}

impl Suspects {
    /// One round: takes the listing's suspects and those of Pods that have `ended` (if `None`, those of the last round), and verifies those that were suspects an
    /// interval ago, too. Returns those that lost their VM.
    pub(super) async fn round(
        &mut self,
        sweeper: &Sweeper,
        target: &Target,
        listing: &[Found],
        (peerpods, ended): (&[Arc<PeerPod>], Option<Vec<Arc<PeerPod>>>),
        now: Moment,
        interval: Duration,
    ) -> Vec<LostVm> {
        let was_ended = |it: &&Arc<PeerPod>| self.of(it).is_some_and(|it| it.wrong == Wrong::Ended);
        let ended = ended.unwrap_or_else(|| peerpods.iter().filter(was_ended).cloned().collect());
        let has_ended: HashSet<_> = ended.iter().filter_map(|it| number(it)).collect();
        let ended = ended.into_iter().map(|peerpod| (peerpod, Wrong::Ended));
        let lost = suspects(target.cloud, listing, peerpods).into_iter();
        let lost = lost.filter(|(peerpod, _)| number(peerpod).is_none_or(|uid| !has_ended.contains(&uid)));
        let lost = lost.map(|(peerpod, state)| (peerpod, Wrong::Lost(state)));
        // No listing shows a VM at a place that the settings named before. It may not show a VM that was just made either.
        let shows_all = !target.has_former_places && !target.cloud.settles_late;
        let unrecorded = if shows_all { without_vm(target.cloud, listing, peerpods) } else { Vec::new() };
        let unrecorded = unrecorded.into_iter().map(|peerpod| (peerpod, Wrong::NoVm));
        let mut current: Vec<_> = lost.chain(ended).chain(unrecorded).collect();
        let mut before = std::mem::replace(&mut self.known, HashMap::with_capacity(current.len()));
        for (peerpod, wrong) in &current {
            let Some(uid) = number(peerpod) else { continue };
            let known = before.remove(&uid).filter(|it| it.wrong == *wrong);
            let new = || Suspect { wrong: *wrong, first: now, inspected: None, finding: None };
            self.known.insert(uid, known.unwrap_or_else(new));
        }
        drop(before);
        let is_due = |it: &Suspect| now.by_process.saturating_duration_since(it.first.by_process) >= interval;
        current.retain(|(peerpod, _)| self.of(peerpod).is_some_and(is_due));
        let inspected = |(peerpod, _): &(Arc<PeerPod>, Wrong)| self.of(peerpod).and_then(|it| it.inspected);
        current = in_turn(current, |(peerpod, _)| peerpod.namespace(), inspected);
        let (begun, mut evictions) = (Instant::now(), 0);
        let evicts = sweeper.options.lost_vms == LostVms::DeletePod && !target.has_former_places;
        for (peerpod, wrong) in current.iter().take(INSPECTIONS).take_while(|_| begun.elapsed() < interval) {
            let found = sweeper.inspect(target, peerpod, *wrong).await;
            let Some(uid) = number(peerpod) else { continue };
            let Some(suspect) = self.known.get_mut(&uid) else { continue };
            suspect.inspected = Some(Instant::now());
            // What could not be found out stays as it was.
            let Ok(finding) = found else { continue };
            if let (Some(PeerPodFinding::Lost(state)), true) = (finding, finding != suspect.finding) {
                sweeper.emit_pod_event(peerpod, state).await;
            }
            suspect.finding = finding;
            let is_lost = matches!(finding, Some(PeerPodFinding::Lost(_)));
            let was_sound = self.sound.contains(&uid);
            if evicts && is_lost && was_sound && evictions < sweeper.options.most {
                evictions += usize::from(sweeper.evict(peerpod).await);
            }
        }
        if evicts {
            let exists: HashSet<_> = peerpods.iter().filter_map(|it| number(it)).collect();
            let shown = sound(target.cloud, listing, peerpods).into_iter().filter_map(|it| number(it));
            let shown: Vec<_> = shown.collect();
            self.sound.retain(|uid| exists.contains(uid));
            self.sound.extend(shown);
        }
        self.publish(sweeper, target, peerpods);
        self.lost(&current)
    }

    fn of(&self, peerpod: &PeerPod) -> Option<&Suspect> {
        self.known.get(&number(peerpod)?)
    }

    /// Passes the findings to the controller of PeerPods.
    fn publish(&self, sweeper: &Sweeper, target: &Target, peerpods: &[Arc<PeerPod>]) {
        let findings = peerpods.iter().filter_map(|it| {
            let finding = self.of(it)?.finding?;
            Some((it.uid()?, finding))
        });
        let changed = sweeper.shared.findings.replace(target.cloud.name(), findings.collect());
        if changed.is_empty() {
            return;
        }
        let is_changed =
            |it: &&Arc<PeerPod>| it.metadata.uid.as_ref().is_some_and(|uid| changed.contains(uid));
        let key =
            |it: &Arc<PeerPod>| ObjectRef::new(&it.name_any()).within(&it.namespace().unwrap_or_default());
        sweeper.shared.requeue(peerpods.iter().filter(is_changed).map(key));
    }

    fn lost(&self, current: &[(Arc<PeerPod>, Wrong)]) -> Vec<LostVm> {
        let lost = current.iter().filter_map(|(peerpod, _)| {
            let suspect = self.of(peerpod)?;
            let Some(PeerPodFinding::Lost(state)) = suspect.finding else { return None };
            Some(LostVm {
                namespace: peerpod.namespace().unwrap_or_default(),
                name: peerpod.name_any(),
                id: peerpod.instance_id().to_owned(),
                state,
                since: suspect.first.by_day,
            })
        });
        let mut lost: Vec<_> = lost.collect();
        lost.sort_by(|a, b| (a.since, &a.namespace, &a.name).cmp(&(b.since, &b.namespace, &b.name)));
        lost
    }
}

/// It could not be found out.
struct Unknown;

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

/// The UID as a number. The API server makes UIDs of this form alone.
fn number(peerpod: &PeerPod) -> Option<u128> {
    Uuid::try_parse(peerpod.metadata.uid.as_deref()?).ok().map(|uid| uid.as_u128())
}

impl Sweeper {
    async fn inspect(
        &self,
        target: &Target,
        peerpod: &PeerPod,
        wrong: Wrong,
    ) -> Result<Option<PeerPodFinding>, Unknown> {
        let Some(pod) = owner(peerpod) else { return Ok(None) };
        let pods: Api<PodView> =
            Api::namespaced(reading(&self.search.client, &POD), &peerpod.namespace().unwrap_or_default());
        let owner = owner_by(api_call::get_opt(&pods, &pod.name).await?, &pod.uid);
        let provider = target.provider.as_ref().map_err(Clone::clone)?;
        Ok(match wrong {
            Wrong::Ended => (owner == Owner::Finished).then_some(PeerPodFinding::Ended),
            Wrong::NoVm => owner.may_run().is_none().then_some(PeerPodFinding::NoVm),
            // The VM of a Pod that ends disappears first.
            Wrong::Lost(_) if owner != Owner::Running => None,
            Wrong::Lost(state) => {
                let is_lost = is_lost(target, &**provider, peerpod, &pod.name, state).await?;
                is_lost.then_some(PeerPodFinding::Lost(state))
            }
        })
    }

    /// Evicts the Pod, which a disruption budget may refuse. A later round tries again. Returns whether the Pod is evicted now.
    async fn evict(&self, peerpod: &PeerPod) -> bool {
        let (Some(pod), Some(namespace)) = (owner(peerpod), peerpod.namespace()) else { return false };
        let preconditions = Preconditions { uid: Some(pod.uid.clone()), resource_version: None };
        let options = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let eviction = EvictParams { delete_options: Some(options), ..EvictParams::default() };
        let pods: Api<Pod> = Api::namespaced(self.search.client.clone(), &namespace);
        match api_call::bounded(pods.evict(&pod.name, &eviction)).await {
            Ok(_) => {
                info!(namespace, pod = pod.name, "evicted a Pod, because its VM is lost");
                true
            }
            Err(error) => {
                warn!(namespace, pod = pod.name, %error, "a Pod whose VM is lost could not be evicted");
                false
            }
        }
    }

    /// An event on the Pod, for its user.
    async fn emit_pod_event(&self, peerpod: &PeerPod, state: LostState) {
        let Some(owner) = owner(peerpod) else { return };
        let metadata = ObjectMeta {
            name: Some(owner.name.clone()),
            namespace: peerpod.namespace(),
            uid: Some(owner.uid.clone()),
            ..ObjectMeta::default()
        };
        let pod = Pod { metadata, ..Pod::default() };
        let (reason, note) = match state {
            LostState::Gone => (Reason::VMGone, "the VM of this Pod no longer exists in the cloud"),
            LostState::Stopped => (Reason::VMStopped, "the VM of this Pod is off"),
        };
        let note = format!("{note}; delete the Pod so that its controller creates it again");
        self.publisher.event(&pod, EventType::Warning, reason.as_str(), &note).await;
    }
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
    // A machine that is back in the pool is no Pod's now. Only a release waits until that can no longer be undone.
    let is_gone = |error: &Error| match error.class {
        ErrorClass::NotFound => true,
        ErrorClass::Unsettled { .. } => target.cloud.reuses_ids,
        _ => false,
    };
    match (provider.describe(&id, &claim).await, state) {
        (Err(gone), _) if is_gone(&gone) => Ok(state == LostState::Gone),
        (Err(error), _) => Err(error),
        (Ok(vm), _) => {
            let is_it = (vm.stage == Stage::Present) == (state == LostState::Stopped);
            // A PeerPod may name a VM of another tenant, whose state is private.
            Ok(is_it && ownership::verify(vm, pod, target.cloud.name_limit).is_ok())
        }
    }
}
