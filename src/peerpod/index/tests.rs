mod changes;
mod claims;
mod properties;
mod siblings;

use super::*;
use crate::{
    api::v1alpha1::{FINALIZER, PeerPodSpec, PeerPodStatus},
    metrics::Population,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference};

fn peerpod(name: &str, pod_uid: &str, instance: &str) -> PeerPod {
    let spec = PeerPodSpec { cloud_provider: Some("libvirt".into()), instance_id: Some(instance.into()) };
    let mut peerpod = PeerPod::new(name, spec);
    let metadata = &mut peerpod.metadata;
    metadata.namespace = Some("shop".into());
    metadata.uid = Some(name.into());
    metadata.finalizers = Some(vec![FINALIZER.into()]);
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "Pod".into(),
        name: "web".into(),
        ..OwnerReference::default()
    };
    metadata.owner_references = Some(vec![OwnerReference { uid: pod_uid.into(), ..owner }]);
    peerpod
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn vm(number: u64) -> String {
    uuid::Uuid::from_u64_pair(7, number).to_string()
}

/// One that was made in this second.
fn made(name: &str, pod_uid: &str, instance: &str, second: i64) -> PeerPod {
    let mut peerpod = peerpod(name, pod_uid, instance);
    peerpod.metadata.creation_timestamp = Some(at(second).into());
    peerpod
}

fn deleted(mut peerpod: PeerPod) -> PeerPod {
    peerpod.metadata.deletion_timestamp = Some(at(1000).into());
    peerpod
}

/// Without the finalizer, as cloud-api-adaptor leaves one after a start that failed.
fn without_finalizer(mut peerpod: PeerPod) -> PeerPod {
    peerpod.metadata.finalizers = None;
    peerpod
}

fn of_another_pod(mut peerpod: PeerPod) -> PeerPod {
    peerpod.metadata.owner_references.as_mut().unwrap()[0].uid.push('x');
    peerpod
}

fn names<'a>(keys: impl IntoIterator<Item = &'a Key>) -> Vec<String> {
    let mut names: Vec<_> = keys.into_iter().map(|key| key.name.clone()).collect();
    names.sort();
    names.dedup();
    names
}

fn population(index: &Index) -> Population {
    index.state.lock().current.clouds["libvirt"].population()
}

/// The names of those that an event requeues.
fn requeued(index: &Index, event: &Event<PeerPod>) -> Vec<String> {
    names(&index.apply(event).others)
}

/// The names, the newest first, of those whose VMs are asked for.
fn asked(index: &Index, peerpod: &PeerPod) -> Vec<String> {
    index.siblings(peerpod).newest.iter().map(|it| it.key.name.clone()).collect()
}

const UUID: &str = "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11";

#[test]
fn a_list_replaces_what_was_known_when_it_is_whole() {
    let index = Index::default();
    index.apply(&Event::Apply(peerpod("old", "pod-1", "")));
    index.apply(&Event::Init);
    let new = deleted(peerpod("new", "pod-1", ""));
    let arriving = index.apply(&Event::InitApply(new));
    assert!(!arriving.matters && arriving.others.is_empty(), "it is looked at when the list is whole");
    let known = || ["old", "new"].map(|name| index.contains(&key(&peerpod(name, "pod-1", ""))));
    assert_eq!(known(), [true, false]);
    assert_eq!(names(&index.apply(&Event::InitDone).others), ["new"]);
    assert_eq!(known(), [false, true]);
    assert_eq!(population(&index).peerpods, 1);
}
