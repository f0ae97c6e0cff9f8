//! What is kept in memory of a PeerPod *(no client)*. A user who may create PeerPods may create thousands, each as large as an API
//! server accepts.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;

use super::object::{has_unread_finalizers, owner};
use crate::api::v1alpha1::{PeerPod, RELEASE_ANNOTATION};

/// The longest name of a Pod.
const LONGEST_NAME: usize = 253;
/// The longest uid of a Pod: an API server makes it, of 36 bytes.
const LONGEST_UID: usize = 128;

/// The most owners, and the most bytes of their texts together, that are certainly read: six bytes of JSON for each byte of text, and
/// what the elements and their members count, are less than [`MOST`](operator_kit::projection::MOST).
const MOST_OWNERS: usize = 16;
const MOST_TEXT: usize = 1024;

/// How much is kept of the annotation that may abandon the VM, in characters. Any change of it has the PeerPod reconciled.
const LONGEST_RELEASE: usize = 32;

/// Drops what no decision reads: every owner except the Pod that counts, and every annotation except the one that may abandon the VM.
///
/// An owner that can be no Pod counts as none, so the operator does not delete the VM. The same holds if not all owners were read,
/// because a later one may be the Pod that counts. If not all finalizers were read, one without a name remains, and
/// [`has_unread_finalizers`] still says so.
pub(crate) fn trim(peerpod: &mut PeerPod) {
    let may_exist = |name: &str, uid: &str| is_pod_name(name) && uid.len() <= LONGEST_UID;
    let owner = owner(peerpod).filter(|owner| may_exist(&owner.name, &owner.uid));
    let owner = owner.filter(|_| are_all_read(peerpod.owner_references())).cloned();
    let release = peerpod
        .annotations()
        .get(RELEASE_ANNOTATION)
        .map(|text| text.chars().take(LONGEST_RELEASE).collect());
    peerpod.metadata.annotations = release.map(|text| [(RELEASE_ANNOTATION.to_owned(), text)].into());
    peerpod.metadata.owner_references = owner.map(|owner| vec![owner]);
    if has_unread_finalizers(peerpod) {
        peerpod.metadata.finalizers = Some(vec![String::new()]);
    }
}

/// Whether a Pod may have this name. An API server accepts any text as the name of an owner, and no request can ask for a Pod of most of
/// them.
fn is_pod_name(name: &str) -> bool {
    let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
    name.len() <= LONGEST_NAME && name.bytes().all(is_allowed) && name.bytes().any(|byte| byte != b'.')
}

/// Whether these are all owners of the object, with all their texts. The API server accepts no empty text here: one reads as empty, or
/// as missing, if it was cut.
fn are_all_read(owners: &[OwnerReference]) -> bool {
    let texts = || owners.iter().flat_map(|it| [&it.api_version, &it.kind, &it.name, &it.uid]);
    owners.len() <= MOST_OWNERS
        && texts().all(|text| !text.is_empty())
        && texts().map(String::len).sum::<usize>() <= MOST_TEXT
}

#[cfg(test)]
mod tests {
    use operator_kit::testing::read_and_projected;
    use serde_json::{Value, json};

    use super::{
        super::{
            controller::PEERPOD,
            object::{MOST_FINALIZERS, has_finalizer},
        },
        *,
    };
    use crate::api::v1alpha1::{FINALIZER, RELEASE_ABANDON};

    #[test]
    fn the_projection_keeps_what_decisions_read() {
        let pod = |name: &str, controller| json!({ "apiVersion": "v1", "kind": "Pod", "name": name, "uid": name, "controller": controller });
        let set = json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "set", "uid": "s" });
        let condition = json!({
            "type": "Stalled", "status": "True", "reason": "r", "message": "m", "observedGeneration": 1,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let mut written = json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPod",
            "metadata": {
                "name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7", "generation": 2,
                "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-02T00:00:00Z",
                "finalizers": ["peer.pod/finalizer", "x/y"], "annotations": { (RELEASE_ANNOTATION): "abandon", "fat": "x" },
                "ownerReferences": [set, pod("first", false), pod("own", true)],
                "labels": { "fat": "x" }, "managedFields": [{ "manager": "m", "fieldsV1": { "f:spec": {} } }],
            },
            "spec": { "cloudProvider": "libvirt", "instanceID": "i" },
            "status": { "conditions": [condition], "observedGeneration": 2 },
        });
        let [_, mut kept] = read_and_projected::<PeerPod>(&PEERPOD, &written);
        trim(&mut kept);
        let metadata = written["metadata"].as_object_mut().unwrap();
        metadata.retain(|name, _| !["labels", "managedFields"].contains(&name.as_str()));
        metadata["annotations"] = json!({ (RELEASE_ANNOTATION): "abandon" });
        metadata["ownerReferences"] = json!([pod("own", true)]);
        assert_eq!(json!(kept), written);
    }

    /// What is kept of a PeerPod with this metadata.
    fn kept(metadata: &Value) -> PeerPod {
        let written = json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPod", "metadata": metadata,
            "spec": { "cloudProvider": "libvirt", "instanceID": "i" },
        });
        let [_, mut kept] = read_and_projected::<PeerPod>(&PEERPOD, &written);
        trim(&mut kept);
        kept
    }

    #[test]
    fn finalizers_that_are_not_all_read_are_marked_as_unread_and_keep_no_memory() {
        let longest = |index: usize| format!("{}/{index:063}", "d".repeat(253));
        let short = |index: usize| format!("example.com/{index:030}");
        let many = |count: usize, name: &dyn Fn(usize) -> String| -> Vec<_> {
            (0..count).map(name).chain([FINALIZER.to_owned()]).collect()
        };
        for finalizers in [
            many(2730, &|_| "abc".to_owned()),
            many(MOST_FINALIZERS, &|_| "abc".to_owned()),
            many(1, &|_| "x".repeat(40_000)),
            many(1, &|_| "x".repeat(20_000)),
            many(2, &|_| "x".repeat(9_000)),
            // Four of 317 bytes are more than 1 KiB.
            many(4, &longest),
            // Each of these takes six bytes on the wire.
            many(MOST_FINALIZERS - 1, &|_| "\u{1}".repeat(300)),
        ] {
            let kept = kept(&json!({ "name": "a", "finalizers": finalizers }));
            assert!(has_unread_finalizers(&kept), "{}", finalizers.len());
            assert!(!has_finalizer(&kept), "it may be there, and it may not");
            assert_eq!(kept.metadata.finalizers, Some(vec![String::new()]));
        }
        for finalizers in [vec![], many(0, &longest), many(3, &longest), many(MOST_FINALIZERS - 1, &short)] {
            let kept = kept(&json!({ "name": "a", "finalizers": finalizers }));
            assert!(!has_unread_finalizers(&kept));
            assert_eq!(has_finalizer(&kept), !finalizers.is_empty());
            assert_eq!(kept.metadata.finalizers.unwrap_or_default(), finalizers);
        }
    }

    #[test]
    fn an_owner_that_cannot_be_a_pod_is_dropped_and_no_other_replaces_it() {
        let owner = |name: usize, uid: usize| json!({ "apiVersion": "v1", "kind": "Pod", "name": "n".repeat(name), "uid": "u".repeat(uid), "controller": true });
        let other = json!({ "apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "u" });
        for (name, uid, stays) in [(253, 128, true), (254, 36, false), (3, 129, false), (32_000, 36, false)] {
            let kept = kept(&json!({ "name": "a", "ownerReferences": [owner(name, uid), other] }));
            let owners = kept.metadata.owner_references.unwrap_or_default();
            let expected = stays.then(|| owner(name, uid));
            assert_eq!(json!(owners), json!(expected.as_slice()), "{name} {uid}");
        }
    }

    #[test]
    fn an_owner_whose_name_no_pod_can_have_is_dropped() {
        for (name, stays) in [
            ("web-0.a", true),
            ("web 0", false),
            ("web/0", false),
            ("web?0", false),
            ("web#0", false),
            ("WEB", false),
            ("..", false),
        ] {
            let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": name, "uid": "u" });
            let kept = kept(&json!({ "name": "a", "ownerReferences": [owner] }));
            assert_eq!(kept.owner_references().len(), usize::from(stays), "{name}");
        }
    }

    #[test]
    fn an_incompletely_read_list_of_owners_counts_as_empty() {
        let owner =
            |name: &str, kind: &str| json!({ "apiVersion": "v1", "kind": kind, "name": name, "uid": "u" });
        let own = owner("web", "Pod");
        let longest = "\u{1}".repeat(MOST_TEXT - 13);
        for (others, are_read) in [
            (vec![owner("set", "ReplicaSet"); MOST_OWNERS - 1], true),
            (vec![owner("set", "ReplicaSet"); MOST_OWNERS], false),
            (vec![owner(&longest, "A")], true),
            (vec![owner(&longest, "AB")], false),
            (vec![owner("set", &"x".repeat(40_000))], false),
        ] {
            let owners: Vec<_> = [own.clone()].into_iter().chain(others).collect();
            let written = json!({ "metadata": { "ownerReferences": owners }, "spec": {} });
            let [_, projected] = read_and_projected::<PeerPod>(&PEERPOD, &written);
            assert!(!are_read || projected.owner_references().len() == owners.len());
            let kept = kept(&json!({ "ownerReferences": owners }));
            assert_eq!(kept.owner_references().len(), usize::from(are_read), "{}", owners.len());
        }
    }

    #[test]
    fn the_annotation_that_may_abandon_the_vm_is_kept_in_short() {
        let release = |value: &str| {
            let kept =
                kept(&json!({ "name": "a", "annotations": { (RELEASE_ANNOTATION): value, "fat": "x" } }));
            assert_eq!(kept.annotations().len(), 1);
            kept.annotations()[RELEASE_ANNOTATION].clone()
        };
        for value in ["", "later", RELEASE_ABANDON] {
            assert_eq!(release(value), value, "its change is noticed");
        }
        assert_eq!(release(&"x".repeat(9000)).len(), LONGEST_RELEASE);
        assert!(release(&"x".repeat(30_000)).is_empty());
        assert_eq!(kept(&json!({ "name": "a", "annotations": { "fat": "x" } })).metadata.annotations, None);
    }
}
