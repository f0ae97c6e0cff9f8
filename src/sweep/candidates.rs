//! What a listing of a cloud showed and no PeerPod records. Pure *(no client, no clock)*.

use std::collections::{HashMap, HashSet};

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
