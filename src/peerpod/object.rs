//! What a PeerPod object says *(no client)*.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{ResourceExt, runtime::reflector::ObjectRef};

use crate::api::v1alpha1::{FINALIZER, PeerPod, RELEASE_ABANDON, RELEASE_ANNOTATION};

/// The PeerPod by its namespace and name.
pub(crate) fn key(peerpod: &PeerPod) -> ObjectRef<PeerPod> {
    ObjectRef::new(&peerpod.name_any()).within(&peerpod.namespace().unwrap_or_default())
}

/// The Pod that owns a PeerPod, by its reference.
pub(crate) fn owner(peerpod: &PeerPod) -> Option<&OwnerReference> {
    let pods =
        || peerpod.owner_references().iter().filter(|owner| owner.kind == "Pod" && owner.api_version == "v1");
    pods().find(|owner| owner.controller == Some(true)).or_else(|| pods().next())
}

/// The most finalizers that the operator reads, and the most bytes of their texts together: far more than clusters have. All of
/// them fit into [`MOST`](operator_kit::projection::MOST). They stay in memory, of thousands of PeerPods of one tenant.
pub(crate) const MOST_FINALIZERS: usize = 16;
const MOST_TEXT: usize = 1024;

/// Whether some finalizers may be unknown, so that the PeerPod may have the operator's even if it is not among these. A list is
/// read up to a limit only, and a text of great length reads as empty.
pub(crate) fn has_unread_finalizers(peerpod: &PeerPod) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    let is_whole = |finalizer: &String| !finalizer.is_empty() && finalizer.bytes().all(is_plain);
    let finalizers = peerpod.finalizers();
    finalizers.len() > MOST_FINALIZERS
        || finalizers.iter().map(String::len).sum::<usize>() > MOST_TEXT
        || !finalizers.iter().all(is_whole)
}

/// Whether the PeerPod has the finalizer that protects the VM.
pub(crate) fn has_finalizer(peerpod: &PeerPod) -> bool {
    peerpod.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
}

/// The creationTimestamp. An API server always sets it; an object without one counts as the oldest.
pub(crate) fn created(peerpod: &PeerPod) -> Timestamp {
    peerpod.creation_timestamp().map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}

/// The deletionTimestamp; `None` while it is not being deleted.
pub(crate) fn deleted_at(peerpod: &PeerPod) -> Option<Timestamp> {
    peerpod.metadata.deletion_timestamp.as_ref().map(|time| time.0)
}

/// The deletionTimestamp, while the finalizer delays the deletion; `None` if nothing waits for this operator.
pub(crate) fn delayed_since(peerpod: &PeerPod) -> Option<Timestamp> {
    deleted_at(peerpod).filter(|_| has_finalizer(peerpod))
}

/// Whether the annotation abandons the VM. Any other value means nothing.
pub(crate) fn is_abandoned(peerpod: &PeerPod) -> bool {
    peerpod.annotations().get(RELEASE_ANNOTATION).is_some_and(|value| value == RELEASE_ABANDON)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn peerpod(metadata: &Value) -> PeerPod {
        serde_json::from_value(json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPod", "metadata": metadata, "spec": {},
        }))
        .unwrap()
    }

    #[test]
    fn the_owner_is_a_pod_and_of_several_the_one_that_controls_it() {
        let owner = |name: &str, api_version: &str, kind: &str, controller: Option<bool>| json!({ "name": name, "apiVersion": api_version, "kind": kind, "controller": controller, "uid": name });
        let owner_of = |owners: &[Value]| {
            let peerpod = peerpod(&json!({ "ownerReferences": owners }));
            super::owner(&peerpod).map(|owner| owner.name.clone())
        };
        let others = [
            owner("set", "apps/v1", "ReplicaSet", Some(true)),
            owner("pod-of-another-kind", "example.com/v1", "Pod", None),
            owner("VM", "v1", "Node", Some(true)),
        ];
        let pods = [owner("first", "v1", "Pod", None), owner("second", "v1", "Pod", Some(false))];
        let controls = owner("controls", "v1", "Pod", Some(true));
        assert_eq!(owner_of(&[]), None);
        assert_eq!(owner_of(&others), None);
        assert_eq!(owner_of(&[&others[..], &pods].concat()).unwrap(), "first");
        assert_eq!(owner_of(&[&others[..], &pods, &[controls]].concat()).unwrap(), "controls");
    }

    #[test]
    fn only_its_own_finalizer_protects_the_vm() {
        let holds = |finalizers: &[&str]| has_finalizer(&peerpod(&json!({ "finalizers": finalizers })));
        assert!(holds(&["example.com/audit", FINALIZER]));
        assert!(!holds(&["example.com/audit"]));
        assert!(!holds(&[]));
    }

    #[test]
    fn only_the_documented_value_abandons_a_vm() {
        let abandoned = |annotations: Value| is_abandoned(&peerpod(&json!({ "annotations": annotations })));
        assert!(abandoned(json!({ "peerpods.confidentialcontainers.org/release": "abandon" })));
        for word in ["", "later", "false", "Abandon", "abandon ", "abandoned"] {
            assert!(!abandoned(json!({ "peerpods.confidentialcontainers.org/release": word })), "{word:?}");
        }
        assert!(!abandoned(json!({ "example.com/release": "abandon" })));
        assert!(!abandoned(Value::Null));
    }
}
