//! What users write themselves, to begin with.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::{Resource, api::ObjectMeta};
use serde_json::{Error, Value, from_value, json, to_value};

use super::{Component, Options};
use crate::api::v1alpha1::{PeerPodConfig, RUNTIME_CLASS};

/// The name of the sample of a `PeerPodConfig`.
pub const CONFIG: &str = "config";

/// A `PeerPodConfig` that lets the nodes labelled as workers run ten VMs. Fails only if it were none.
pub fn peer_pod_config(options: &Options) -> Result<Value, Error> {
    let object = json!({
        "apiVersion": PeerPodConfig::api_version(&()),
        "kind": PeerPodConfig::kind(&()),
        "metadata": Component::Adaptor.namespaced(CONFIG, options),
        "spec": { "limit": 10, "nodeSelector": { "node.kubernetes.io/worker": "" } },
    });
    // Omitted fields have their defaults. The type would print more than users want to read, but the object must be valid.
    from_value::<PeerPodConfig>(object.clone())?;
    Ok(object)
}

/// A Pod that runs in a VM of its own. Only its runtime class makes it a peer pod. Its VM gets what the Pod requests. Fails only
/// if the type could not be written as JSON.
pub fn peer_pod() -> Result<Value, Error> {
    let requests = [("cpu", "1"), ("memory", "512Mi")];
    let requests = requests.map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned())));
    to_value(Pod {
        metadata: ObjectMeta { name: Some("peer-pod".to_owned()), ..ObjectMeta::default() },
        spec: Some(PodSpec {
            runtime_class_name: Some(RUNTIME_CLASS.to_owned()),
            containers: vec![Container {
                name: "main".to_owned(),
                image: Some("busybox:stable".to_owned()),
                command: Some(vec!["sleep".to_owned(), "infinity".to_owned()]),
                resources: Some(ResourceRequirements {
                    requests: Some(requests.into()),
                    ..ResourceRequirements::default()
                }),
                ..Container::default()
            }],
            ..PodSpec::default()
        }),
        ..Pod::default()
    })
}
