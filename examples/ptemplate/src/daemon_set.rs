//! The DaemonSet of the consumers *(no client)*.

use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetSpec};
use k8s_openapi::api::core::v1::{Container, HostPathVolumeSource, PodSpec, PodTemplateSpec};
use k8s_openapi::api::core::v1::{ResourceRequirements, SecurityContext, Volume, VolumeMount};
use k8s_openapi::apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::LabelSelector};
use kube::{ResourceExt, api::ObjectMeta};

use crate::api::{Ptemplate, PtemplateSpec};
use crate::owned::{APP, labels, metadata};

/// What the name of a consumer's DaemonSet ends with.
pub const SUFFIX: &str = "-consumer";

/// The volume of the node's devices.
const DEVICES: &str = "dev";

/// The DaemonSet of a Ptemplate.
pub fn daemon_set(ptemplate: &Ptemplate) -> DaemonSet {
    let path = "/dev".to_owned();
    let host_path = Some(HostPathVolumeSource { path, ..HostPathVolumeSource::default() });
    let pod = PodSpec {
        containers: vec![container(&ptemplate.spec)],
        image_pull_secrets: ptemplate.spec.pull_secret().map(|secret| vec![secret]),
        node_selector: Some(ptemplate.spec.selector.clone()),
        volumes: Some(vec![Volume { name: DEVICES.to_owned(), host_path, ..Volume::default() }]),
        ..PodSpec::default()
    };
    let pod_metadata = ObjectMeta { labels: Some(labels(ptemplate)), ..ObjectMeta::default() };
    // A DaemonSet can never change it.
    let selector = Some([(APP.to_owned(), ptemplate.name_any())].into());
    DaemonSet {
        metadata: metadata(ptemplate, SUFFIX),
        spec: Some(DaemonSetSpec {
            selector: LabelSelector { match_labels: selector, ..LabelSelector::default() },
            template: PodTemplateSpec { metadata: Some(pod_metadata), spec: Some(pod) },
            ..DaemonSetSpec::default()
        }),
        status: None,
    }
}

/// It may use all devices of the node, which needs its privileges.
fn container(spec: &PtemplateSpec) -> Container {
    let limits = [("example.com/ptemplate".to_owned(), Quantity(spec.required_devices.to_string()))];
    let (name, mount_path) = (DEVICES.to_owned(), "/hostdev".to_owned());
    Container {
        name: "consumer".to_owned(),
        image: Some(spec.consumer_image().to_owned()),
        image_pull_policy: Some("Always".to_owned()),
        resources: Some(ResourceRequirements { limits: Some(limits.into()), ..Default::default() }),
        security_context: Some(SecurityContext { privileged: Some(true), ..SecurityContext::default() }),
        volume_mounts: Some(vec![VolumeMount { name, mount_path, ..VolumeMount::default() }]),
        ..Container::default()
    }
}
