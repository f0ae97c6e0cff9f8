//! How two PeerPods relate, by the objects alone *(no client)*.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;

use super::object::{created, has_finalizer, owner};
use crate::{api::v1alpha1::PeerPod, provider::InstanceId};

/// Whether `other` is another PeerPod of the same Pod that has the finalizer, is not being deleted and names a VM of the same
/// cloud.
pub(super) fn is_sibling(other: &PeerPod, peerpod: &PeerPod) -> bool {
    other.uid() != peerpod.uid()
        && other.metadata.deletion_timestamp.is_none()
        && has_finalizer(other)
        && other.cloud_provider() == peerpod.cloud_provider()
        && InstanceId::parse(other.cloud_provider(), other.instance_id()).is_ok()
        && are_of_one_pod(other, peerpod)
}

/// Whether one Pod owns both. A Pod owns nothing in another namespace, whatever an owner reference there says. The uid alone is
/// no proof: it can be copied into an object that is garbage-collected because there is no such Pod.
pub(super) fn are_of_one_pod(other: &PeerPod, peerpod: &PeerPod) -> bool {
    let pods = owner(other).zip(owner(peerpod));
    other.namespace() == peerpod.namespace()
        && pods.is_some_and(|(pod, own)| (&pod.uid, &pod.name) == (&own.uid, &own.name))
}

/// Whether `other` is another PeerPod, in any namespace, that names the same VM (this one's `id`) of the same cloud. If the two
/// spell it differently and it may be the same one, it counts as the same one.
pub(super) fn is_namesake(other: &PeerPod, peerpod: &PeerPod, id: &InstanceId) -> bool {
    let cloud = peerpod.cloud_provider();
    other.uid() != peerpod.uid()
        && other.cloud_provider() == cloud
        && InstanceId::parse(cloud, other.instance_id()).is_ok_and(|other| other.key() == id.key())
}

/// Whether a PeerPod keeps a VM that another PeerPod names too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ClaimVerdict<'a> {
    /// It is not being deleted, and whether its Pod runs does not matter.
    Living,
    /// It is being deleted, and its own Pod, which is not this one's, may still run on the VM.
    WhilePodRuns(&'a OwnerReference),
    /// It is being deleted, and its Pod is this one's or it has none: both PeerPods wait for the same things. Or it is of an earlier start
    /// of the same Pod.
    NoClaim,
}

/// Whether `other` is of an earlier start of the same Pod that failed: cloud-api-adaptor has released it. At a cloud that reuses identifiers
/// the Pod may have got the same VM again.
fn is_of_earlier_start(other: &PeerPod, peerpod: &PeerPod) -> bool {
    are_of_one_pod(other, peerpod) && !has_finalizer(other) && created(other) < created(peerpod)
}

/// Judges the claim of `namesake` on the VM that this PeerPod names too.
pub(super) fn judge_claim<'a>(namesake: &'a PeerPod, peerpod: &PeerPod) -> ClaimVerdict<'a> {
    if namesake.metadata.deletion_timestamp.is_none() {
        return if is_of_earlier_start(namesake, peerpod) {
            ClaimVerdict::NoClaim
        } else {
            ClaimVerdict::Living
        };
    }
    let another = owner(namesake).filter(|_| !are_of_one_pod(namesake, peerpod));
    another.map_or(ClaimVerdict::NoClaim, ClaimVerdict::WhilePodRuns)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api::v1alpha1::FINALIZER;

    const VM: &str = "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11";
    const ANOTHER: &str = "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a12";

    /// A PeerPod of the Pod `web`, with these fields merged into it, one patch after the other.
    fn peerpod(patches: &[&Value]) -> PeerPod {
        let mut object = json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPod",
            "metadata": { "name": "a", "namespace": "shop", "uid": "a", "finalizers": [FINALIZER] },
            "spec": { "cloudProvider": "libvirt", "instanceID": VM },
        });
        object["metadata"]["ownerReferences"] = json!([pod("web")]);
        for patch in patches {
            json_patch::merge(&mut object, patch);
        }
        serde_json::from_value(object).unwrap()
    }

    fn pod(uid: &str) -> Value {
        json!({ "apiVersion": "v1", "kind": "Pod", "name": "web", "uid": uid })
    }

    fn renamed() -> Value {
        let mut pod = pod("web");
        pod["name"] = json!("we-b");
        pod
    }

    fn deleted() -> Value {
        json!({ "metadata": { "uid": "b", "deletionTimestamp": "2026-01-01T00:00:00Z" } })
    }

    #[test]
    fn only_living_peerpods_of_the_same_pod_and_cloud_with_a_vm_are_siblings() {
        let own = peerpod(&[]);
        let is_sibling = |patch: &Value| {
            let other = json!({ "metadata": { "name": "b", "uid": "b" }, "spec": { "instanceID": ANOTHER } });
            is_sibling(&peerpod(&[&other, patch]), &own)
        };
        assert!(is_sibling(&json!({})));
        for (why, patch) in [
            ("this one", json!({ "metadata": { "uid": "a" } })),
            ("in another namespace", json!({ "metadata": { "namespace": "elsewhere" } })),
            ("being deleted", deleted()),
            ("without finalizer", json!({ "metadata": { "finalizers": ["example.com/audit"] } })),
            ("of another cloud", json!({ "spec": { "cloudProvider": "aws" } })),
            ("naming no VM", json!({ "spec": { "instanceID": "17" } })),
            ("of another Pod", json!({ "metadata": { "ownerReferences": [pod("other")] } })),
            ("of a Pod of another name", json!({ "metadata": { "ownerReferences": [renamed()] } })),
            ("of no Pod", json!({ "metadata": { "ownerReferences": null } })),
        ] {
            assert!(!is_sibling(&patch), "one {why}");
        }
    }

    #[test]
    fn every_other_peerpod_that_names_the_same_vm_is_a_namesake() {
        let own = peerpod(&[]);
        let id = InstanceId::parse("libvirt", VM).unwrap();
        let is_namesake = |patch: &Value| {
            is_namesake(&peerpod(&[&json!({ "metadata": { "uid": "b" } }), patch]), &own, &id)
        };
        for (why, patch) in [
            ("alike", json!({})),
            (
                "that spells it otherwise",
                json!({ "spec": { "instanceID": "0DD2F0C56A3D44A79B5E2F7A6C2F9A11" } }),
            ),
            ("in another namespace", json!({ "metadata": { "namespace": "elsewhere" } })),
            ("that goes", deleted()),
            (
                "without finalizer or Pod",
                json!({ "metadata": { "finalizers": null, "ownerReferences": null } }),
            ),
        ] {
            assert!(is_namesake(&patch), "one {why}");
        }
        for (why, patch) in [
            ("itself", json!({ "metadata": { "uid": "a" } })),
            ("of another cloud", json!({ "spec": { "cloudProvider": "aws" } })),
            ("naming another VM", json!({ "spec": { "instanceID": ANOTHER } })),
            ("naming none", json!({ "spec": { "instanceID": "" } })),
        ] {
            assert!(!is_namesake(&patch), "one {why}");
        }
    }

    #[test]
    fn a_namesake_may_name_a_vm_by_its_path() {
        let named = |instance: &str| json!({ "metadata": { "uid": instance }, "spec": { "cloudProvider": "gcp", "instanceID": instance } });
        let [name, path, elsewhere, another] = [
            "podvm-web-1a2b3c4d",
            "projects/p/zones/z/instances/podvm-web-1a2b3c4d",
            "projects/q/zones/z/instances/podvm-web-1a2b3c4d",
            "projects/p/zones/z/instances/podvm-web-5e6f7a8b",
        ];
        let are_namesakes = |one: &str, other: &str| {
            let id = InstanceId::parse("gcp", one).unwrap();
            is_namesake(&peerpod(&[&named(other)]), &peerpod(&[&named(one)]), &id)
        };
        assert!(are_namesakes(name, path) && are_namesakes(path, name));
        assert!(are_namesakes(path, elsewhere), "the name alone may be either");
        assert!(!are_namesakes(name, another) && !are_namesakes(path, another));
    }

    #[test]
    fn a_live_peerpod_claims_the_vm_and_a_deleted_one_only_for_its_own_pod() {
        let own = peerpod(&[]);
        let with = |mut patch: Value, pods: Value| {
            patch["metadata"]["ownerReferences"] = pods;
            peerpod(&[&patch])
        };
        for pods in [json!(null), json!([pod("web")]), json!([pod("other")])] {
            let stays = with(json!({ "metadata": { "uid": "b" } }), pods);
            assert_eq!(judge_claim(&stays, &own), ClaimVerdict::Living);
        }
        assert_eq!(judge_claim(&with(deleted(), json!(null)), &own), ClaimVerdict::NoClaim);
        assert_eq!(judge_claim(&with(deleted(), json!([pod("web")])), &own), ClaimVerdict::NoClaim);
        let mut elsewhere = deleted();
        elsewhere["metadata"]["namespace"] = json!("elsewhere");
        for (patch, pods) in [(deleted(), pod("other")), (deleted(), renamed()), (elsewhere, pod("web"))] {
            let goes = with(patch, json!([pods]));
            assert_eq!(judge_claim(&goes, &own), ClaimVerdict::WhilePodRuns(&goes.owner_references()[0]));
        }
    }
}
