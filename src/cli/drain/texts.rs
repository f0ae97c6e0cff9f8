//! How objects are named for people.

use std::sync::Arc;

use kube::{Resource, ResourceExt};
use operator_kit::text::listed;

use crate::{api::v1alpha1::PeerPod, peerpod::object::owner};

/// The objects' names for people: the first of them.
pub(super) fn names<K: Resource<DynamicType = ()>>(objects: &[Arc<K>]) -> String {
    sorted(objects.iter().map(|it| qualified(&**it)))
}

/// These PeerPods, each with its finalizers.
pub(super) fn with_finalizers(peerpods: &[Arc<PeerPod>]) -> String {
    let named = |it: &Arc<PeerPod>| format!("{} ({})", qualified(&**it), it.finalizers().join(", "));
    sorted(peerpods.iter().map(named))
}

/// The Pods of these PeerPods, each with its PeerPod.
pub(super) fn with_pods(peerpods: &[Arc<PeerPod>]) -> String {
    let named = |peerpod: &Arc<PeerPod>| {
        let (namespace, name) = (peerpod.namespace().unwrap_or_default(), peerpod.name_any());
        match owner(peerpod) {
            Some(pod) => format!("{namespace}/{} (PeerPod {name})", pod.name),
            None => format!("the PeerPod {namespace}/{name}, which no Pod owns"),
        }
    };
    sorted(peerpods.iter().map(named))
}

fn qualified(object: &impl ResourceExt) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}

/// The first of these.
fn sorted(names: impl Iterator<Item = String>) -> String {
    let mut names: Vec<_> = names.collect();
    names.sort();
    listed(&names)
}
