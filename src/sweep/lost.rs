//! PeerPods whose VM is not as it should be, by a listing *(no client, no clock)*.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde::{Deserialize, Serialize};

use super::plan::Found;
use crate::{
    api::v1alpha1::PeerPod,
    peerpod::object::{has_finalizer, owner},
    provider::{
        Cloud, IdProblem, InstanceId, PowerState, Resource, VmRef,
        ownership::{stem, stem_of},
    },
};

/// What became of the VM of a Pod that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LostState {
    /// It is gone.
    Gone,
    /// It is off.
    Stopped,
}

impl LostState {
    /// All.
    pub const ALL: [Self; 2] = [Self::Gone, Self::Stopped];

    /// How `status` and the metrics name it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gone => "Gone",
            Self::Stopped => "Stopped",
        }
    }
}

/// The PeerPods that are not being deleted and whose VM the listing does not show, or shows as off. Those of a VM in another place
/// than the listing's are among them, and none whose Pod has a VM by its name that may run: whoever may write PeerPods could name
/// another VM.
pub fn suspects(
    cloud: &Cloud,
    listing: &[Found],
    peerpods: &[Arc<PeerPod>],
) -> Vec<(Arc<PeerPod>, LostState)> {
    let vms = listing.iter().filter(|it| it.listed.kind == Resource::Vm);
    let states: HashMap<&str, PowerState> = vms.clone().map(|it| (&*it.listed.id, it.listed.state)).collect();
    let may_run = |it: &&Found| matches!(it.listed.state, PowerState::Running | PowerState::Unknown);
    let running: HashSet<&str> = vms.filter(may_run).filter_map(|it| stem(&it.listed.name)).collect();
    let lost = |peerpod: &Arc<PeerPod>| {
        let id = InstanceId::parse(cloud.name(), peerpod.instance_id()).ok()?;
        let state = match states.get(id.as_str()) {
            None | Some(PowerState::Leaving) => LostState::Gone,
            Some(PowerState::Stopped) => LostState::Stopped,
            Some(PowerState::Running | PowerState::Unknown) => return None,
        };
        let runs = running.contains(&*stem_of(&owner(peerpod)?.name, cloud.name_limit));
        (!runs).then(|| (Arc::clone(peerpod), state))
    };
    of_cloud(cloud, peerpods).filter(|it| it.metadata.deletion_timestamp.is_none()).filter_map(lost).collect()
}

/// The UIDs of PeerPods whose VM the listing shows, perhaps running and by the name of their Pod.
pub fn sound(cloud: &Cloud, listing: &[Found], peerpods: &[Arc<PeerPod>]) -> Vec<String> {
    let vms = listing.iter().filter(|it| it.listed.kind == Resource::Vm);
    let runs = vms.filter(|it| matches!(it.listed.state, PowerState::Running | PowerState::Unknown));
    let stems: HashMap<&str, Option<&str>> = runs.map(|it| (&*it.listed.id, stem(&it.listed.name))).collect();
    let uid = |peerpod: &Arc<PeerPod>| {
        let id = InstanceId::parse(cloud.name(), peerpod.instance_id()).ok()?;
        let stem = (*stems.get(id.as_str())?)?;
        let is_its = stem == stem_of(&owner(peerpod)?.name, cloud.name_limit);
        peerpod.metadata.uid.clone().filter(|_| is_its)
    };
    of_cloud(cloud, peerpods).filter_map(uid).collect()
}

/// The PeerPods that are being deleted, record no VM, and whose Pod has none in the listing, nor anything that came with one.
pub fn without_vm(cloud: &Cloud, listing: &[Found], peerpods: &[Arc<PeerPod>]) -> Vec<Arc<PeerPod>> {
    let names = listing.iter().flat_map(|it| {
        let vm = it.listed.vm.as_ref().and_then(|vm| match vm {
            VmRef::Name(name) => Some(&**name),
            VmRef::Id(_) => None,
        });
        [Some(&*it.listed.name), vm].into_iter().flatten()
    });
    let stems: HashSet<&str> = names.filter_map(stem).collect();
    let has_none = |peerpod: &&Arc<PeerPod>| {
        let records_none = InstanceId::parse(cloud.name(), peerpod.instance_id()) == Err(IdProblem::Empty);
        let pod = owner(peerpod).map(|pod| stem_of(&pod.name, cloud.name_limit));
        records_none
            && peerpod.metadata.deletion_timestamp.is_some()
            && pod.is_some_and(|stem| !stems.contains(&*stem))
    };
    of_cloud(cloud, peerpods).filter(has_none).cloned().collect()
}

fn of_cloud<'a>(cloud: &Cloud, peerpods: &'a [Arc<PeerPod>]) -> impl Iterator<Item = &'a Arc<PeerPod>> {
    let name = cloud.name();
    peerpods.iter().filter(move |it| it.cloud_provider() == name && has_finalizer(it))
}

/// What the sweep found out about PeerPods, for their controller, by their UIDs. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct PeerPodFindings(Arc<Mutex<HashMap<String, (&'static str, PeerPodFinding)>>>);

/// What the sweep found out about one PeerPod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerPodFinding {
    /// Its Pod runs, and its VM does not.
    Lost(LostState),
    /// It records no VM, and its Pod, which has ended, has none.
    NoVm,
}

impl PeerPodFindings {
    /// What was found out about the PeerPod with this UID.
    pub fn of(&self, uid: Option<&str>) -> Option<PeerPodFinding> {
        self.lock().get(uid?).map(|(_, finding)| *finding)
    }

    /// Replaces what is known at this cloud. Returns the UIDs of those about which something else is known now.
    pub fn replace(&self, cloud: &'static str, findings: HashMap<String, PeerPodFinding>) -> HashSet<String> {
        let mut known = self.lock();
        let before: HashMap<_, _> = known.extract_if(|_, (of, _)| *of == cloud).collect();
        let changed = |uid: &&String| before.get(*uid).map(|(_, it)| it) != findings.get(*uid);
        let uids = before.keys().chain(findings.keys());
        let changed = uids.filter(changed).cloned().collect();
        known.extend(findings.into_iter().map(|(uid, finding)| (uid, (cloud, finding))));
        changed
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, (&'static str, PeerPodFinding)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
