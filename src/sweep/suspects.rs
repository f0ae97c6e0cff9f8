//! PeerPods whose VM is not as expected, from one listing to the next *(client required)*.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use kube::ResourceExt;
use uuid::Uuid;

use super::{
    LostVm, LostVms,
    candidates::Found,
    confirm::{Suspicion, Unknown, inspect},
    first_seen::Moment,
    lost::{in_turn, sound, suspects, without_vm},
    lost_pods::{Lost, LostPods},
    sweeper::Sweeper,
};
use crate::{
    api::v1alpha1::PeerPod,
    peerpod::{PeerPodFinding, object::key},
    provider::Target,
};

/// The number of PeerPods that one round inspects, of all kinds together. Tenants may write PeerPods that name VMs that do not exist,
/// so all of them take turns.
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
    suspicion: Suspicion,
    first: Moment,
    inspected: Option<Instant>,
    finding: Option<PeerPodFinding>,
}

/// A PeerPod, and what may be wrong with it.
type Suspected = (Arc<PeerPod>, Suspicion);

/// The input of one round.
pub(super) struct Round<'a> {
    pub(super) sweeper: &'a Sweeper,
    pub(super) target: &'a Target,
    pub(super) listing: &'a [Found],
    pub(super) peerpods: &'a [Arc<PeerPod>],
    pub(super) now: Moment,
    /// How long a PeerPod must have been a suspect before it is inspected. The inspections of a round take no longer either.
    pub(super) interval: Duration,
}

impl Round<'_> {
    /// Whether Pods that lost their VM are evicted. A VM may also be at a place that other settings name.
    fn evicts(&self) -> bool {
        self.sweeper.options.lost_vms == LostVms::DeletePod && !self.target.may_miss_vms
    }
}

impl Suspects {
    /// One round: inspects those that have been suspects for an interval, acts on Pods that lost their VM, and publishes what was found
    /// out. `ended`: the PeerPods of Pods that have ended; if `None`, those of the last round. Returns the VMs that are lost.
    pub(super) async fn round(&mut self, round: &Round<'_>, ended: Option<Vec<Arc<PeerPod>>>) -> Vec<LostVm> {
        let suspected = self.suspected(round, ended);
        self.remember(&suspected, round.now);
        let due = self.due(suspected, round);
        self.inspect_and_act(&due, round).await;
        self.remember_sound(round);
        self.publish(round);
        self.lost(&due)
    }

    /// The PeerPods that may be lost or left, by the listing and the Pods that have ended.
    fn suspected(&self, round: &Round<'_>, ended: Option<Vec<Arc<PeerPod>>>) -> Vec<Suspected> {
        let Round { target, listing, peerpods, .. } = *round;
        let ended_before =
            |it: &&Arc<PeerPod>| self.of(it).is_some_and(|it| it.suspicion == Suspicion::Ended);
        let ended = ended.unwrap_or_else(|| peerpods.iter().filter(ended_before).cloned().collect());
        let has_ended: HashSet<_> = ended.iter().filter_map(|it| number(it)).collect();
        let ended = ended.into_iter().map(|peerpod| (peerpod, Suspicion::Ended));
        let lost = suspects(target.cloud, listing, peerpods).into_iter();
        let lost = lost.filter(|(peerpod, _)| number(peerpod).is_none_or(|uid| !has_ended.contains(&uid)));
        let lost = lost.map(|(peerpod, state)| (peerpod, Suspicion::Lost(state)));
        // No listing shows a VM at a place that other settings name.
        let unrecorded =
            if target.may_miss_vms { Vec::new() } else { without_vm(target.cloud, listing, peerpods) };
        let unrecorded = unrecorded.into_iter().map(|peerpod| (peerpod, Suspicion::NoVm));
        lost.chain(ended).chain(unrecorded).collect()
    }

    /// Remembers these suspects, and forgets all others.
    fn remember(&mut self, suspected: &[Suspected], now: Moment) {
        let mut before = std::mem::replace(&mut self.known, HashMap::with_capacity(suspected.len()));
        for (peerpod, suspicion) in suspected {
            let Some(uid) = number(peerpod) else { continue };
            let known = before.remove(&uid).filter(|it| it.suspicion == *suspicion);
            let new = || Suspect { suspicion: *suspicion, first: now, inspected: None, finding: None };
            self.known.insert(uid, known.unwrap_or_else(new));
        }
    }

    /// Those that have been suspects for an interval, in the order in which to inspect them.
    fn due(&self, mut suspected: Vec<Suspected>, round: &Round<'_>) -> Vec<Suspected> {
        let now = round.now.by_process;
        let is_due = |it: &Suspect| now.saturating_duration_since(it.first.by_process) >= round.interval;
        suspected.retain(|(peerpod, _)| self.of(peerpod).is_some_and(is_due));
        let inspected = |(peerpod, _): &Suspected| self.of(peerpod).and_then(|it| it.inspected);
        in_turn(suspected, |(peerpod, _)| peerpod.namespace(), inspected)
    }

    /// Inspects the first of these, and acts on a Pod that lost its VM before the next inspection: the inspections together may take
    /// an interval, and the VM may be back by then.
    async fn inspect_and_act(&mut self, due: &[Suspected], round: &Round<'_>) {
        let Round { sweeper, target, interval, .. } = *round;
        let (begun, mut lost_pods) = (Instant::now(), LostPods::new(sweeper, round.evicts()));
        for (peerpod, suspicion) in due.iter().take(INSPECTIONS).take_while(|_| begun.elapsed() < interval) {
            let found = inspect(&sweeper.search.client, target, peerpod, *suspicion).await;
            if let Some(lost) = self.note(peerpod, found) {
                lost_pods.act(peerpod, lost).await;
            }
        }
    }

    /// Notes what an inspection found out. Returns how the VM is lost, if it is.
    fn note(&mut self, peerpod: &PeerPod, found: Result<Option<PeerPodFinding>, Unknown>) -> Option<Lost> {
        let uid = number(peerpod)?;
        let suspect = self.known.get_mut(&uid)?;
        suspect.inspected = Some(Instant::now());
        // What could not be found out stays as it was.
        let finding = found.ok()?;
        let before = std::mem::replace(&mut suspect.finding, finding);
        let Some(PeerPodFinding::Lost(state)) = finding else { return None };
        Some(Lost { state, is_new: finding != before, was_sound: self.sound.contains(&uid) })
    }

    /// Remembers for later rounds which VMs this listing showed as sound.
    fn remember_sound(&mut self, round: &Round<'_>) {
        if !round.evicts() {
            return;
        }
        let exists: HashSet<_> = round.peerpods.iter().filter_map(|it| number(it)).collect();
        self.sound.retain(|uid| exists.contains(uid));
        let shown = sound(round.target.cloud, round.listing, round.peerpods);
        self.sound.extend(shown.into_iter().filter_map(|it| number(it)));
    }

    /// Passes the findings to the controller of PeerPods.
    fn publish(&self, round: &Round<'_>) {
        let Round { sweeper, target, peerpods, .. } = *round;
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
        sweeper.shared.requeue(peerpods.iter().filter(is_changed).map(|it| key(it)));
    }

    fn lost(&self, due: &[Suspected]) -> Vec<LostVm> {
        let lost = due.iter().filter_map(|(peerpod, _)| {
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

    fn of(&self, peerpod: &PeerPod) -> Option<&Suspect> {
        self.known.get(&number(peerpod)?)
    }
}

/// The UID as a number. The API server makes UIDs of this form alone.
fn number(peerpod: &PeerPod) -> Option<u128> {
    Uuid::try_parse(peerpod.metadata.uid.as_deref()?).ok().map(|uid| uid.as_u128())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use operator_kit::testing::ApiServer;
    use serde_json::json;

    use super::*;
    use crate::{
        provider::{Cloud, contract::memory::Memory},
        sweep::{
            Options,
            search::tests::{settings, sweeper, target},
        },
    };

    /// A PeerPod that is being deleted and records no VM.
    fn going_without_id() -> Arc<PeerPod> {
        let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "u" });
        let metadata = json!({
            "name": "p", "finalizers": ["peer.pod/finalizer"], "ownerReferences": [owner],
            "deletionTimestamp": "2026-11-23T06:00:00Z",
        });
        let spec = json!({ "cloudProvider": "libvirt", "instanceID": "" });
        Arc::new(serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap())
    }

    #[tokio::test]
    async fn a_list_that_may_miss_vms_neither_releases_a_peerpod_nor_evicts_a_pod() {
        let server = ApiServer::expecting([]);
        let sweeper = sweeper(server.client(), Options { lost_vms: LostVms::DeletePod, ..Options::off() });
        for may_miss_vms in [false, true] {
            let target = target(Cloud::named("libvirt").unwrap(), settings(&[]), Memory::default());
            let round = Round {
                sweeper: &sweeper,
                target: &Target { may_miss_vms, ..target },
                listing: &[],
                peerpods: &[going_without_id()],
                now: Moment { by_process: Instant::now(), by_day: Timestamp::UNIX_EPOCH },
                interval: Duration::from_secs(300),
            };
            let suspected = Suspects::default().suspected(&round, Some(Vec::new()));
            let is_released = suspected.iter().any(|(_, suspicion)| *suspicion == Suspicion::NoVm);
            assert_eq!((is_released, round.evicts()), (!may_miss_vms, !may_miss_vms));
        }
    }
}
