//! PeerPods whose VM is not as expected, by a listing *(no client, no clock)*.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
    sync::Arc,
    time::Instant,
};

use super::candidates::{Found, stem_by_owner};
use crate::{
    api::v1alpha1::PeerPod,
    peerpod::{
        LostState,
        object::{has_finalizer, owner},
    },
    provider::{Cloud, IdProblem, InstanceId, PowerState, Resource, VmRef, ownership::stem},
};

/// The PeerPods that are not being deleted and whose VM the listing does not show, or shows as off. This includes PeerPods of a
/// VM in another place than the listing's. It excludes PeerPods whose Pod may have another VM that runs: one with the Pod's name,
/// unless only PeerPods of other Pods record it, or its tags name another cluster. A tenant could name another VM in a PeerPod.
pub fn suspects(
    cloud: &Cloud,
    listing: &[Found],
    peerpods: &[Arc<PeerPod>],
) -> Vec<(Arc<PeerPod>, LostState)> {
    let vms = listing.iter().filter(|it| it.listed.kind == Resource::Vm);
    let states: HashMap<&str, PowerState> = vms.clone().map(|it| (&*it.listed.id, it.listed.state)).collect();
    let lost = |peerpod: &Arc<PeerPod>| {
        let id = InstanceId::parse(cloud.name(), peerpod.instance_id()).ok()?;
        let state = match states.get(id.as_str()) {
            None | Some(PowerState::Leaving) => LostState::Gone,
            Some(PowerState::Stopped) => LostState::Stopped,
            Some(PowerState::Running | PowerState::Unknown) => return None,
        };
        Some((Arc::clone(peerpod), state))
    };
    let mut lost: Vec<_> = live(cloud, peerpods).filter_map(lost).collect();
    let stems: HashSet<_> = lost.iter().filter_map(|(it, _)| stem_by_owner(cloud, it)).collect();
    // The stems of the running VMs with these names, by identifier.
    let running: HashMap<&str, &str> = vms
        .filter(|it| it.may_run() && !it.is_of_another)
        .filter_map(|it| Some((&*it.listed.id, stem(&it.listed.name)?)))
        .filter(|(_, stem)| stems.contains(*stem))
        .collect();
    let (mut unrecorded, mut recorded_for) = (running.clone(), HashSet::<(&str, &str)>::new());
    if !running.is_empty() {
        // One without the finalizer is a record, too: cloud-api-adaptor may have removed that by mistake.
        for peerpod in peerpods.iter().filter(|it| it.cloud_provider() == cloud.name()) {
            let id = InstanceId::parse(cloud.name(), peerpod.instance_id()).ok();
            let vm = id.and_then(|id| running.get_key_value(id.as_str()));
            if let (Some((id, stem)), Some(pod)) = (vm, owner(peerpod)) {
                unrecorded.remove(id);
                recorded_for.insert((stem, &pod.uid));
            }
        }
    }
    let unrecorded: HashSet<&str> = unrecorded.into_values().collect();
    lost.retain(|(peerpod, _)| {
        let (Some(pod), Some(stem)) = (owner(peerpod), stem_by_owner(cloud, peerpod)) else { return true };
        !unrecorded.contains(&*stem) && !recorded_for.contains(&(&*stem, &*pod.uid))
    });
    lost
}

/// The PeerPods that are not being deleted.
pub fn live<'a>(cloud: &Cloud, peerpods: &'a [Arc<PeerPod>]) -> impl Iterator<Item = &'a Arc<PeerPod>> {
    of_cloud(cloud, peerpods).filter(|it| it.metadata.deletion_timestamp.is_none())
}

/// The PeerPods whose VM the listing shows, perhaps running and by the name of their Pod.
pub fn sound<'a>(cloud: &Cloud, listing: &[Found], peerpods: &'a [Arc<PeerPod>]) -> Vec<&'a Arc<PeerPod>> {
    let vms = listing.iter().filter(|it| it.listed.kind == Resource::Vm);
    let may_run = vms.filter(|it| it.may_run());
    let stems: HashMap<&str, Option<&str>> =
        may_run.map(|it| (&*it.listed.id, stem(&it.listed.name))).collect();
    let shows = |peerpod: &PeerPod| {
        let id = InstanceId::parse(cloud.name(), peerpod.instance_id()).ok()?;
        let stem = (*stems.get(id.as_str())?)?;
        Some(stem == stem_by_owner(cloud, peerpod)?)
    };
    of_cloud(cloud, peerpods).filter(|it| shows(it) == Some(true)).collect()
}

/// The PeerPods that are being deleted and record no VM, if the listing shows no VM of their Pod and nothing that came with one. There
/// are none at a cloud whose list may lack a VM that was just made, or one that it hides.
pub fn without_vm(cloud: &Cloud, listing: &[Found], peerpods: &[Arc<PeerPod>]) -> Vec<Arc<PeerPod>> {
    if cloud.settles_late || cloud.may_hide_vms {
        return Vec::new();
    }
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
        records_none
            && peerpod.metadata.deletion_timestamp.is_some()
            && stem_by_owner(cloud, peerpod).is_some_and(|stem| !stems.contains(&*stem))
    };
    of_cloud(cloud, peerpods).filter(has_none).cloned().collect()
}

/// These in the order in which to look at them. `looked`: when that was last done. Namespaces take turns, the one that has waited
/// longest first, and so do the PeerPods of a namespace. So thousands of PeerPods of one namespace delay no other.
pub fn in_turn<T, N: Clone + Eq + Hash>(
    mut items: Vec<T>,
    namespace: impl Fn(&T) -> N,
    looked: impl Fn(&T) -> Option<Instant>,
) -> Vec<T> {
    items.sort_by_key(|item| looked(item));
    let mut namespaces = HashMap::<N, (usize, Option<Instant>)>::new();
    let mut turns = Vec::with_capacity(items.len());
    for item in &items {
        let (turn, newest) = namespaces.entry(namespace(item)).or_default();
        *turn += 1;
        *newest = looked(item);
        turns.push(*turn);
    }
    let mut items: Vec<_> = turns.into_iter().zip(items).collect();
    items.sort_by_key(|(turn, item)| (*turn, namespaces[&namespace(item)].1));
    items.into_iter().map(|(_, item)| item).collect()
}

fn of_cloud<'a>(cloud: &Cloud, peerpods: &'a [Arc<PeerPod>]) -> impl Iterator<Item = &'a Arc<PeerPod>> {
    let name = cloud.name();
    peerpods.iter().filter(move |it| it.cloud_provider() == name && has_finalizer(it))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::provider::Listed;

    const VM: &str = "i-0123456789abcdef0";

    #[test]
    fn namespaces_take_turns_and_the_one_that_waits_longest_is_first() {
        let start = Instant::now();
        let at = |seconds: Option<u64>| seconds.map(|it| start + Duration::from_secs(it));
        let crowd = (0..50).map(|_| ("crowd", None));
        let others = [("late", Some(9)), ("early", Some(1)), ("crowd", Some(5)), ("new", None)];
        let ordered = in_turn(crowd.chain(others).collect(), |it| it.0, |it| at(it.1));
        let first: Vec<_> = ordered.iter().map(|it| it.0).take(5).collect();
        assert_eq!(first, ["new", "early", "crowd", "late", "crowd"]);
        assert_eq!(ordered[2].1, None, "what was never looked at comes first in its namespace");
        assert_eq!(ordered.len(), 54);
    }

    fn peerpod(pod: &str) -> Arc<PeerPod> {
        recording(VM, pod, "u")
    }

    fn recording(id: &str, pod: &str, uid: &str) -> Arc<PeerPod> {
        let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid });
        let metadata = json!({ "name": "p", "uid": "p", "finalizers": ["peer.pod/finalizer"], "ownerReferences": [owner] });
        let spec = json!({ "cloudProvider": "aws", "instanceID": id });
        Arc::new(serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap())
    }

    fn found(id: &str, name: &str, state: PowerState) -> Found {
        let listed = Listed { state, ..Listed::new(Resource::Vm, id, name) };
        Found { listed, proof: None, is_of_another: false }
    }

    #[test]
    fn a_pod_of_the_same_name_elsewhere_hides_no_lost_vm() {
        const OTHER: &str = "i-00000000000000001";
        let cloud = Cloud::named("aws").unwrap();
        let other = found(OTHER, "podvm-a-00000001", PowerState::Running);
        let lost = |listing: &[Found], records: &[Arc<PeerPod>]| suspects(cloud, listing, records).len();
        let listing = [other.clone()];
        assert_eq!(lost(&listing, &[peerpod("a"), recording(OTHER, "a", "v")]), 1, "another Pod has it");
        let both = [peerpod("a"), recording(OTHER, "a", "v"), recording(OTHER, "a", "u")];
        assert_eq!(lost(&listing, &both), 0, "this Pod may have it, too");
        let of_another = Found { is_of_another: true, ..other };
        assert_eq!(lost(&[of_another], &[peerpod("a")]), 1, "another cluster has it");
    }

    #[test]
    fn a_peerpod_without_a_vm_is_released_only_where_a_list_hides_no_vm() {
        let released = |cloud: &str, listing: &[Found]| {
            let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "u" });
            let metadata = json!({
                "name": "p", "finalizers": ["peer.pod/finalizer"], "ownerReferences": [owner],
                "deletionTimestamp": "2026-11-23T06:00:00Z",
            });
            let spec = json!({ "cloudProvider": cloud, "instanceID": "" });
            let peerpod: PeerPod =
                serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap();
            without_vm(Cloud::named(cloud).unwrap(), listing, &[Arc::new(peerpod)]).len()
        };
        let of_pod = [found("vm-1", "podvm-a-00000001", PowerState::Running)];
        assert_eq!((released("libvirt", &[]), released("libvirt", &of_pod)), (1, 0));
        for (cloud, why) in
            [("aws", "its VM may be younger than the list"), ("vsphere", "or in another folder")]
        {
            assert_eq!(released(cloud, &[]), 0, "{why}");
        }
    }

    #[test]
    fn a_vm_is_lost_without_another_vm_of_its_pod_and_sound_only_by_its_name() {
        let cloud = Cloud::named("aws").unwrap();
        let lost = |listing: &[Found]| suspects(cloud, listing, &[peerpod("a")]).len();
        assert_eq!(lost(&[]), 1);
        assert_eq!(lost(&[found("i-00000000000000001", "podvm-b-00000001", PowerState::Running)]), 1);
        assert_eq!(lost(&[found("i-00000000000000001", "podvm-a-00000001", PowerState::Running)]), 0);
        assert_eq!(lost(&[found(VM, "podvm-a-00000001", PowerState::Stopped)]), 1);
        let is_sound =
            |name| sound(cloud, &[found(VM, name, PowerState::Running)], &[peerpod("a")]).len() == 1;
        assert!(is_sound("podvm-a-00000001") && !is_sound("podvm-b-00000001"));
    }
}
