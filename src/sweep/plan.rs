//! What a listing of a cloud means. Pure *(no client, no clock)*.
//!
//! What always holds:
//! - Nothing that a PeerPod records is an [`UntrackedFinding`], whether or not the PeerPod still has its finalizer.
//! - A VM that no PeerPod records, but whose name fits a Pod or the Pod of a PeerPod, is [`SweepVerdict::Spared`], whether or not
//!   that Pod is a peer pod: the Pod may run on it. When no such Pod exists any more, it counts as seen for the first time.
//!   Leftovers of such a VM are no finding at all.
//! - Something is a finding only after it was seen twice, an interval apart, and is as old as the grace period.
//! - [`SweepVerdict::Delete`] requires proof that it is this cluster's, and a deletion that deletes no user's data. Also, this
//!   process must have seen it, by its own clock, for as long as [`Patience::watch`] says. That is the grace period if no person
//!   watches. The cloud's clock may be off by any time.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use jiff::Timestamp;

use super::first_seen::FirstSeen;
use crate::{
    api::v1alpha1::PeerPod,
    peerpod::object::owner,
    provider::{
        Cloud, ClusterProof, InstanceId, Listed, PowerState, Resource, VmRef,
        ownership::{is_pod_vm, stem, stem_of},
    },
};

/// Something that a listing showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What it is, without its tags.
    pub listed: Listed,
    /// The proof that it is this cluster's, if there is one.
    pub proof: Option<ClusterProof>,
    /// Whether its tags say that it is another cluster's.
    pub is_of_another: bool,
}

/// Its kind and its identifier.
pub type Key = (Resource, String);

impl Found {
    /// What identifies it in a listing.
    pub fn key(&self) -> Key {
        (self.listed.kind, self.listed.id.clone())
    }

    /// Whether it may run, as far as the listing says.
    pub fn may_run(&self) -> bool {
        matches!(self.listed.state, PowerState::Running | PowerState::Unknown)
    }
}

/// What a listing showed and no PeerPod records. Its memory depends only on the listing, not on the number of PeerPods.
#[derive(Debug)]
pub struct Candidates<'a> {
    cloud: &'static Cloud,
    found: Vec<&'a Found>,
    /// The identifiers by which PeerPods may record these, and whether one does.
    ids: HashMap<&'a str, bool>,
    /// The stems of their names.
    stems: HashMap<&'a str, Stem>,
}

/// What is known of Pods by the stem of their VMs' names.
#[derive(Clone, Copy, Debug, Default)]
struct Stem {
    /// A Pod, or the Pod of a PeerPod, may have it.
    is_spared: bool,
    /// A PeerPod of such a Pod records a VM in a form that no list has.
    is_unclear: bool,
}

/// Something that no PeerPod records.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// What it is.
    pub found: &'a Found,
    /// Whether a Pod, or the Pod of a PeerPod, may have it by its name.
    pub is_spared: bool,
}

impl<'a> Candidates<'a> {
    /// The candidates of a complete listing, before it is known what PeerPods record.
    pub fn of(cloud: &'static Cloud, listing: &'a [Found]) -> Self {
        let vms: HashSet<&str> = listing
            .iter()
            .filter(|it| it.listed.kind == Resource::Vm)
            .flat_map(|it| [&*it.listed.id, &*it.listed.name])
            .collect();
        let may_be = |it: &&Found| match (&it.listed.kind, &it.listed.vm) {
            // Before a cloud knows the identifier of a VM, it is unknown whether a PeerPod records it.
            (Resource::Vm, _) => {
                it.listed.state != PowerState::Leaving
                    && is_pod_vm(&it.listed.name)
                    && InstanceId::of(cloud, &it.listed.id).is_ok()
            }
            // While its VM exists, only the VM counts.
            (_, Some(VmRef::Id(vm))) => !vms.contains(&**vm),
            (_, Some(VmRef::Name(vm))) => is_pod_vm(vm) && !vms.contains(&**vm),
            (_, None) => true,
        };
        let found: Vec<_> = listing.iter().filter(|it| !it.is_of_another).filter(may_be).collect();
        let ids = found.iter().flat_map(|it| ids(it)).map(|id| (id, false)).collect();
        let stems = found.iter().filter_map(|it| pod_stem(it)).map(|stem| (stem, Stem::default())).collect();
        Self { cloud, found, ids, stems }
    }

    /// A PeerPod. It counts whatever cloud it names, as the name of the cloud may be a mistake.
    pub fn track(&mut self, peerpod: &PeerPod) {
        let id = InstanceId::parse(self.cloud.name(), peerpod.instance_id());
        if let Ok(id) = &id {
            // Some lists have less of an identifier than a PeerPod records: the name after the last slash.
            let name = id.as_str().rsplit_once('/').map(|(_, name)| name);
            for id in name.into_iter().chain([id.as_str()]) {
                if let Some(is_recorded) = self.ids.get_mut(id) {
                    *is_recorded = true;
                }
            }
        }
        let stem = stem_by_owner(self.cloud, peerpod);
        if let Some(stem) = stem.and_then(|stem| self.stems.get_mut(&*stem)) {
            stem.is_spared = true;
            stem.is_unclear |= id.is_err();
        }
    }

    /// Whether the names of Pods may spare one more.
    pub fn needs_pods(&self) -> bool {
        self.untracked().filter_map(pod_stem).any(|stem| !self.stem(stem).is_spared)
    }

    /// A Pod with this name exists.
    pub fn spare_pod(&mut self, name: &str) {
        if let Some(stem) = self.stems.get_mut(&*stem_of(name, self.cloud.name_limit)) {
            stem.is_spared = true;
        }
    }

    /// All that no PeerPod records.
    pub fn all(&self) -> Vec<Candidate<'a>> {
        let is_spared = |it| pod_stem(it).is_some_and(|stem| self.stem(stem).is_spared);
        self.untracked().map(|found| Candidate { found, is_spared: is_spared(found) }).collect()
    }

    fn untracked(&self) -> impl Iterator<Item = &'a Found> {
        let is_recorded = |it: &Found| {
            ids(it).any(|id| self.ids.get(id).copied().unwrap_or(false))
                || pod_stem(it).is_some_and(|stem| self.stem(stem).is_unclear)
        };
        self.found.iter().copied().filter(move |it| !is_recorded(it))
    }

    fn stem(&self, stem: &str) -> Stem {
        self.stems.get(stem).copied().unwrap_or_default()
    }
}

/// The identifiers by which a PeerPod may record this, or the VM that it came with. Some lists have more of an identifier than a
/// PeerPod, which has the name alone.
fn ids(found: &Found) -> impl Iterator<Item = &str> {
    let Listed { id, name, vm, .. } = &found.listed;
    let vm = match vm {
        Some(VmRef::Id(vm)) => Some(&**vm),
        Some(VmRef::Name(_)) | None => None,
    };
    [Some(&**id), Some(&**name), vm].into_iter().flatten()
}

/// The stem of the names of the VMs of a PeerPod's Pod.
pub(super) fn stem_by_owner(cloud: &Cloud, peerpod: &PeerPod) -> Option<String> {
    owner(peerpod).map(|pod| stem_of(&pod.name, cloud.name_limit))
}

/// The stem of the name of the VM that this is, or came with.
fn pod_stem(found: &Found) -> Option<&str> {
    match (&found.listed.kind, &found.listed.vm) {
        (Resource::Vm, _) => stem(&found.listed.name),
        (_, Some(VmRef::Name(vm))) => stem(vm),
        _ => None,
    }
}

/// The name of the Pod that this was made for, as far as a VM's name contains it.
pub fn pod_of(found: &Found) -> Option<&str> {
    let stem = pod_stem(found)?;
    stem.strip_prefix(crate::provider::POD_VM)?.strip_suffix('-')
}

/// How long to wait until something is a finding.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// How old it must be.
    pub grace: Duration,
    /// How long its two sightings must be apart.
    pub interval: Duration,
    /// For how long this process must have seen it, by its own clock, before it is deleted.
    pub watch: Duration,
}

/// The time of a listing, by both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// This process' own clock.
    pub by_process: Instant,
    /// The time of day.
    pub by_day: Timestamp,
}

/// Something that no PeerPod records and that is old enough to be reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UntrackedFinding {
    /// What it is.
    pub found: Found,
    /// When it was made, or else when this process first saw it.
    pub since: Timestamp,
    /// What to do.
    pub verdict: SweepVerdict,
}

/// What to do about an [`UntrackedFinding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SweepVerdict {
    /// It is provably this cluster's, and old enough.
    Delete,
    /// The same, but this process has not seen it for long enough.
    Watch,
    /// Nothing proves that it is this cluster's.
    Unproven,
    /// It does not say which VM it came with, or it is a disk: a person has to look at it.
    ByHand,
    /// A Pod of this name exists and may run on it.
    Spared,
}

operator_kit::labels! {
    /// The metric label.
    pub SweepVerdict {
        Delete => "delete",
        Watch => "watch",
        Unproven => "unproven",
        ByHand => "by_hand",
        Spared => "spared",
    }
}

/// Which of these to report and to delete. Notes in `first_seen` what was seen.
pub fn findings(
    candidates: &[Candidate<'_>],
    first_seen: &mut FirstSeen,
    now: Moment,
    patience: Patience,
) -> Vec<UntrackedFinding> {
    let mut findings = Vec::new();
    for (&Candidate { found, is_spared }, seen) in candidates.iter().zip(first_seen.update(candidates, now)) {
        let seen_for = now.by_process.saturating_duration_since(seen.by_process);
        let since = found.listed.created.unwrap_or(seen.by_day);
        let age = Duration::try_from(now.by_day.duration_since(since)).unwrap_or_default();
        // What is left of a VM is no finding while a Pod may have that VM.
        let is_needed = is_spared && found.listed.kind != Resource::Vm;
        if is_needed || seen_for < patience.interval || age.max(seen_for) < patience.grace {
            continue;
        }
        let by_id = matches!(found.listed.vm, Some(VmRef::Id(_)));
        let verdict = match &found.proof {
            _ if is_spared => SweepVerdict::Spared,
            _ if found.listed.kind != Resource::Vm && !by_id => SweepVerdict::ByHand,
            _ if found.listed.kind == Resource::Disk => SweepVerdict::ByHand,
            None => SweepVerdict::Unproven,
            Some(_) if seen_for < patience.watch => SweepVerdict::Watch,
            Some(_) => SweepVerdict::Delete,
        };
        findings.push(UntrackedFinding { found: found.clone(), since, verdict });
    }
    findings.sort_by(|a, b| a.since.cmp(&b.since).then_with(|| a.found.listed.id.cmp(&b.found.listed.id)));
    findings
}
