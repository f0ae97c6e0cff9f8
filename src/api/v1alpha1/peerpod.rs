//! The `PeerPod` custom resource.

// Each printer column repeats the attribute `type_`.
#![allow(clippy::duplicated_attributes)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::{CustomResource, KubeSchema};
use operator_kit::metadata;
use serde::{Deserialize, Deserializer, Serialize};

/// Text that no terminal obeys: neither white space nor control or format characters.
const PRINTABLE: &str = r"self.matches('^[^\\s\\p{C}\\p{Z}]*$')";

/// Records the VM that cloud-api-adaptor created for a Pod. The operator deletes the VM when the Pod is deleted and
/// cloud-api-adaptor has not deleted it. cloud-api-adaptor creates PeerPods, and the Pod owns its PeerPod. Users do not
/// create PeerPods.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[kube(
    group = "confidentialcontainers.org",
    version = "v1alpha1",
    kind = "PeerPod",
    plural = "peerpods",
    namespaced,
    status = "PeerPodStatus",
    derive = "PartialEq",
    // As kube writes the object's own `Deserialize`, and takes `serde` in no other way.
    attr = "cfg_attr(all(), serde(from = \"StoredPeerPod\"), schemars(!from))",
    doc = "PeerPod records the virtual machine that cloud-api-adaptor made for a Pod, so that the operator can delete the VM when the Pod is gone.",
    // The rule of the spec holds only while there is one.
    validation = Rule::new("!has(oldSelf.spec) || has(self.spec)").message(
        "spec cannot be removed: it records a VM that exists; delete the PeerPod instead"
    ),
    printcolumn(name = "Provider", type_ = "string", json_path = ".spec.cloudProvider"),
    printcolumn(name = "Instance", type_ = "string", json_path = ".spec.instanceID"),
    printcolumn(
        name = "State",
        type_ = "string",
        json_path = r#".status.conditions[?(@.status=="True")].reason"#,
        description = "Why the PeerPod waits or is stuck; empty or PodIsOlder when nothing needs attention"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(validation = Rule::new("self == oldSelf").message(
    "spec cannot be changed: it records a VM that exists; delete the PeerPod instead"
))]
#[serde(rename_all = "camelCase")]
pub struct PeerPodSpec {
    /// The cloud that runs the VM, as in cloud-api-adaptor's `CLOUD_PROVIDER`: libvirt, aws, azure, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new(PRINTABLE).message("cloudProvider must not contain white space or control characters"))]
    pub cloud_provider: Option<String>,

    /// The VM's identifier in that cloud, for instance a libvirt domain's UUID. Empty if cloud-api-adaptor did not learn
    /// it.
    #[serde(default, rename = "instanceID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    #[x_kube(validation = Rule::new(PRINTABLE).message("instanceID must not contain white space or control characters"))]
    pub instance_id: Option<String>,
}

/// An object without `spec`, which older schemas allow, must not keep all others from being read: it reads as one that
/// records nothing.
impl<'de> Deserialize<'de> for PeerPodSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Fields {
            cloud_provider: Option<String>,
            #[serde(rename = "instanceID")]
            instance_id: Option<String>,
        }
        // serde reads a missing field as `None`.
        let Fields { cloud_provider, instance_id } =
            Option::<Fields>::deserialize(deserializer)?.unwrap_or_default();
        Ok(Self { cloud_provider, instance_id })
    }
}

/// An object with malformed parts must not keep all others from being read: unreadable parts count as absent.
#[derive(Deserialize)]
struct StoredPeerPod {
    #[serde(default, with = "metadata::Stored")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: PeerPodSpec,
    #[serde(default, deserialize_with = "metadata::if_readable")]
    status: Option<PeerPodStatus>,
}

impl From<StoredPeerPod> for PeerPod {
    fn from(StoredPeerPod { metadata, spec, status }: StoredPeerPod) -> Self {
        Self { metadata, spec, status }
    }
}

/// What the operator waits for, or what is wrong. Absent if nothing ever was.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerPodStatus {
    /// `Reconciling`: True while the operator waits and no person needs to act. `Stalled`: True while a person needs to
    /// act. `KeptForPod`: True if no newer PeerPod replaces this one as long as its Pod lives. The reason and the message say
    /// why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,

    /// The `metadata.generation` that the conditions describe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

impl PeerPod {
    /// The cloud's name as recorded; empty if there is none.
    pub fn cloud_provider(&self) -> &str {
        self.spec.cloud_provider.as_deref().unwrap_or_default()
    }

    /// The VM's identifier as recorded; empty if there is none.
    pub fn instance_id(&self) -> &str {
        self.spec.instance_id.as_deref().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::CustomResourceExt;

    #[test]
    fn an_object_as_cloud_api_adaptor_writes_it_is_read_and_written_back_unchanged() {
        let written = serde_json::json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1",
            "kind": "PeerPod",
            "metadata": { "name": "web-resource-x7k2p", "namespace": "shop", "finalizers": ["peer.pod/finalizer"] },
            "spec": { "cloudProvider": "libvirt", "instanceID": "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11" },
        });
        let read: PeerPod = serde_json::from_value(written.clone()).unwrap();
        assert_eq!(read.cloud_provider(), "libvirt");
        assert_eq!(serde_json::to_value(&read).unwrap(), written);
    }

    #[test]
    fn an_object_without_spec_as_the_older_schema_allows_is_read_all_the_same() {
        let written = serde_json::json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1",
            "kind": "PeerPod",
            "metadata": { "name": "a" },
            "status": { "cleand": true },
        });
        let read: PeerPod = serde_json::from_value(written).unwrap();
        assert_eq!((read.cloud_provider(), read.instance_id()), ("", ""));
    }

    #[test]
    fn an_unreadable_time_hides_only_the_part_that_contains_it() {
        let far = "9999-12-31T00:00:00Z";
        let condition = |since| serde_json::json!({ "type": "Stalled", "status": "True", "reason": "r", "message": "", "lastTransitionTime": since });
        let read = |since| -> PeerPod {
            serde_json::from_value(serde_json::json!({
                "apiVersion": "confidentialcontainers.org/v1alpha1",
                "kind": "PeerPod",
                "metadata": { "name": "a", "uid": "u", "managedFields": [{ "manager": "m", "time": far }] },
                "spec": { "cloudProvider": "libvirt" },
                "status": { "conditions": [condition(since)] },
            }))
            .unwrap()
        };
        assert_eq!(read("2026-01-01T00:00:00Z").status.unwrap().conditions.len(), 1);
        let read = read(far);
        assert_eq!((read.metadata.uid.as_deref(), read.cloud_provider()), (Some("u"), "libvirt"));
        assert_eq!(read.status, None);
    }

    #[test]
    fn an_empty_instance_id_is_an_empty_one_however_it_is_spelled() {
        for spec in [serde_json::json!({}), serde_json::json!({ "instanceID": "" })] {
            let spec: PeerPodSpec = serde_json::from_value(spec).unwrap();
            assert_eq!(PeerPod::new("a", spec).instance_id(), "");
        }
    }

    #[test]
    fn the_schema_has_map_conditions_and_rules_with_messages() {
        let crd = serde_json::to_string(&PeerPod::crd()).unwrap();
        assert!(crd.contains(r#""x-kubernetes-list-type":"map""#), "{crd}");
        assert!(crd.contains("spec cannot be changed") && crd.contains("spec cannot be removed"), "{crd}");
    }
}
