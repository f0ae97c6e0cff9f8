//! What the last sweep found, as `status` shows it *(no client)*.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{
    Mode,
    candidates::{Found, pod_of},
    plan::{SweepVerdict, UntrackedFinding},
};
use crate::{peerpod::LostState, provider::Resource};

/// What is known of all clouds. The operator serializes it as the answer to `GET /sweep`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// Whether this process leads. A process that does not lead knows no cloud.
    pub leads: bool,
    /// Each cloud of the settings.
    pub clouds: Vec<CloudSnapshot>,
    /// What is wrong with the mounted settings, by the name that `/readyz` has for them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
}

/// What is known of one cloud.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CloudSnapshot {
    /// Its name.
    pub cloud: String,
    /// When the last complete listing began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listed: Option<Timestamp>,
    /// Why the newest listing failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// How many pod VMs there are.
    pub vms: usize,
    /// What no PeerPod tracks, the oldest first, at most [`MOST_SHOWN`].
    pub untracked: Vec<Untracked>,
    /// How many more there are.
    pub more_untracked: usize,
    /// PeerPods of running Pods whose VM is gone or off, at most [`MOST_SHOWN`].
    pub lost: Vec<LostVm>,
    /// How many more there are.
    pub more_lost: usize,
}

/// A VM, or what came with one, that no PeerPod records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Untracked {
    /// What it is: `vm`, `disk`, `address` or `interface`.
    pub kind: String,
    /// Its identifier at the cloud.
    pub id: String,
    /// Its name.
    pub name: String,
    /// When it was made, or else when the operator first saw it.
    pub since: Timestamp,
    /// The name of the Pod that it was made for, as far as the VM's name contains it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// What proves that it is this cluster's. None: nothing does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<String>,
    /// What the sweep does about it, as in the metric.
    pub verdict: String,
    /// What that means for who reads it.
    pub action: String,
}

/// A PeerPod whose Pod runs and whose VM does not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LostVm {
    /// The PeerPod's namespace.
    pub namespace: String,
    /// The PeerPod's name.
    pub name: String,
    /// The VM's identifier.
    pub id: String,
    /// What became of it.
    pub state: LostState,
    /// When the operator first saw it so.
    pub since: Timestamp,
}

impl CloudSnapshot {
    /// A complete listing that began at `listed` showed this.
    pub(super) fn show(
        &mut self,
        listed: Timestamp,
        deleter: Deleter,
        listing: &[Found],
        untracked: &[UntrackedFinding],
        mut lost: Vec<LostVm>,
    ) {
        self.listed = Some(listed);
        self.vms = listing.iter().filter(|it| it.listed.kind == Resource::Vm).count();
        self.more_untracked = untracked.len().saturating_sub(MOST_SHOWN);
        self.untracked = untracked.iter().take(MOST_SHOWN).map(|it| Untracked::of(it, deleter)).collect();
        self.more_lost = lost.len().saturating_sub(MOST_SHOWN);
        lost.truncate(MOST_SHOWN);
        self.lost = lost;
    }
}

impl Untracked {
    pub(super) fn of(finding: &UntrackedFinding, deleter: Deleter) -> Self {
        let UntrackedFinding { found, since, verdict } = finding;
        Self {
            kind: found.listed.kind.as_str().to_owned(),
            id: found.listed.id.clone(),
            name: found.listed.name.clone(),
            since: *since,
            pod: pod_of(found).map(str::to_owned),
            proof: found.proof.as_ref().map(ToString::to_string),
            verdict: verdict.as_str().to_owned(),
            action: action(*verdict, deleter).to_owned(),
        }
    }
}

/// What deletes things that are provably this cluster's.
#[derive(Clone, Copy, Debug)]
pub(super) enum Deleter {
    /// The sweep of a running operator.
    Sweep,
    /// The command `sweep`.
    #[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "it is part of the command line"))]
    Command { dry_run: bool },
    /// Nothing: the sweep reports.
    Nothing,
    /// Nothing, in developer mode.
    DeveloperMode,
}

impl Deleter {
    /// That of a running operator.
    pub(super) const fn of(mode: Mode, is_developer_mode: bool) -> Self {
        match mode {
            _ if is_developer_mode => Self::DeveloperMode,
            Mode::Delete => Self::Sweep,
            Mode::Report | Mode::Off => Self::Nothing,
        }
    }
}

/// What happens to something untracked, and what a person can do. The proof of a VM, such as a tag, may be none of its addresses.
const fn action(verdict: SweepVerdict, deleter: Deleter) -> &'static str {
    match (verdict, deleter) {
        (SweepVerdict::Delete, Deleter::DeveloperMode) => "kept: developer mode is on",
        (SweepVerdict::Delete, Deleter::Sweep) => {
            "the sweep deletes it; what it leaves gets a verdict of its own"
        }
        (SweepVerdict::Delete, Deleter::Nothing) => {
            "kept; --sweep=delete deletes it; what it leaves gets a verdict of its own"
        }
        (SweepVerdict::Delete, Deleter::Command { dry_run: true }) => {
            "kept; without --dry-run, this command deletes it, up to --max; what it leaves gets a verdict of its own"
        }
        (SweepVerdict::Delete, Deleter::Command { dry_run: false }) => {
            "this command deletes it, up to --max; what it leaves gets a verdict of its own"
        }
        (SweepVerdict::Watch, Deleter::Sweep) => "the sweep deletes it when it has seen it for --sweep-grace",
        (SweepVerdict::Watch, Deleter::Nothing | Deleter::DeveloperMode) => {
            "kept; not seen for --sweep-grace yet"
        }
        (SweepVerdict::Watch, Deleter::Command { .. }) => "kept; not seen for --pause yet",
        (SweepVerdict::Unproven, _) => {
            "kept: nothing proves that it is this cluster's; find out whose it is before you delete it"
        }
        (SweepVerdict::Spared, _) => {
            "kept: the Pod of this name may run on it; nothing deletes it while that Pod exists"
        }
        (SweepVerdict::ByHand, _) => {
            "kept: it may hold data, or does not say which VM it belongs to; look at it in the cloud"
        }
    }
}

/// The most of each kind that are shown for a cloud. The metrics count all.
pub const MOST_SHOWN: usize = 1000;

/// The newest [`Snapshot`], shared by the sweep and its readers. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Published(Arc<Mutex<Snapshot>>);

impl Published {
    /// The newest one.
    pub fn current(&self) -> Snapshot {
        self.0.lock().clone()
    }

    /// This process begins to lead, or does not lead. It knows no cloud yet.
    pub(super) fn begin(&self, leads: bool) {
        let mut snapshot = self.0.lock();
        snapshot.leads = leads;
        snapshot.clouds.clear();
    }

    /// Replaces what is wrong with the settings of this name. The text is shown to everyone who may read the answer.
    pub fn show_settings(&self, name: &str, problem: Option<&str>) {
        let mut snapshot = self.0.lock();
        match problem {
            Some(problem) => snapshot.settings.insert(name.to_owned(), problem.to_owned()),
            None => snapshot.settings.remove(name),
        };
    }

    /// Replaces what is known of a cloud.
    pub(super) fn show(&self, cloud: CloudSnapshot) {
        let mut snapshot = self.0.lock();
        match snapshot.clouds.binary_search_by(|it| it.cloud.cmp(&cloud.cloud)) {
            Ok(place) => snapshot.clouds[place] = cloud,
            Err(place) => snapshot.clouds.insert(place, cloud),
        }
    }

    /// Forgets a cloud.
    pub(super) fn hide(&self, cloud: &str) {
        self.0.lock().clouds.retain(|it| it.cloud != cloud);
    }
}
