//! What to do for a PodSet, from what there is *(no client)*.

use std::{cmp::Reverse, collections::BTreeMap};

use k8s_openapi::api::core::v1::{Capabilities, Container, Pod, PodSpec, SeccompProfile, SecurityContext};
use kube::{ResourceExt, api::ObjectMeta};
use operator_kit::metadata::controlled_by;

use crate::api::PodSet;

/// The label by which the operator watches Pods. Every Pod of every PodSet has it.
pub const WATCHED_LABEL: &str = "version";
/// Its value.
pub const WATCHED_VALUE: &str = "v0.1";

/// The changes that bring a PodSet to its number of Pods.
#[derive(Debug, Default, PartialEq)]
pub struct Plan {
    /// The names of the Pods that stay.
    pub keep: Vec<String>,
    /// How many Pods to create.
    pub create: usize,
    /// The names of the Pods to delete.
    pub delete: Vec<String>,
}

impl Plan {
    /// Whether the PodSet is as wanted.
    pub fn is_done(&self) -> bool {
        self.create == 0 && self.delete.is_empty()
    }

    /// `pods`: any Pods; those of other owners, and those that have ended or are being deleted, do not count.
    pub fn of<'a>(podset: &PodSet, pods: impl IntoIterator<Item = &'a Pod>) -> Self {
        let mut pods: Vec<_> = pods.into_iter().filter(|pod| counts(podset, pod)).collect();
        // The plan deletes the least useful Pod first: one that is not ready before one that is, and of these the newest.
        pods.sort_by_cached_key(|pod| (Reverse(is_ready(pod)), pod.creation_timestamp(), pod.name_any()));
        let wanted = usize::try_from(podset.spec.replicas).unwrap_or_default();
        let mut keep: Vec<_> = pods.into_iter().map(ResourceExt::name_any).collect();
        let delete = keep.split_off(wanted.min(keep.len()));
        keep.sort_unstable();
        Self { create: wanted - keep.len(), keep, delete }
    }
}

/// Whether this is a living Pod of this PodSet.
pub fn counts(podset: &PodSet, pod: &Pod) -> bool {
    // Labels alone prove nothing: anyone may set them. A Pod with another owner or none is never counted, changed or deleted.
    let uid = podset.metadata.uid.as_ref();
    let owned = pod.owner_references().iter().any(|it| it.controller == Some(true) && Some(&it.uid) == uid);
    let alive = pod.metadata.deletion_timestamp.is_none() && matches!(phase(pod), "Pending" | "Running");
    // The cache has the Pods of all PodSets. Labels are built only for the few that are left.
    owned && alive && labels(podset).iter().all(|(name, value)| pod.labels().get(name) == Some(value))
}

/// The phase of a Pod.
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Whether a Pod serves.
fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|it| it.type_ == "Ready" && it.status == "True")
}

/// The labels of the Pods of a PodSet.
fn labels(podset: &PodSet) -> BTreeMap<String, String> {
    [("app".to_owned(), podset.name_any()), (WATCHED_LABEL.to_owned(), WATCHED_VALUE.to_owned())].into()
}

/// The labels of the Pods of a PodSet, as a selector.
pub fn selector(podset: &PodSet) -> String {
    let labels = labels(podset).into_iter().map(|(name, value)| format!("{name}={value}"));
    labels.collect::<Vec<_>>().join(",")
}

/// A new Pod of a PodSet. The API server completes its name.
pub fn pod(podset: &PodSet) -> Pod {
    Pod {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-pod", podset.name_any())),
            labels: Some(labels(podset)),
            owner_references: controlled_by(podset),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers: vec![Container {
                name: "fancy-alpine".to_owned(),
                image: Some("quay.io/amacdona/strauss".to_owned()),
                command: Some(vec!["sleep".to_owned(), "3600".to_owned()]),
                security_context: Some(restricted()),
                ..Container::default()
            }],
            ..PodSpec::default()
        }),
        status: None,
    }
}

/// The restricted profile: only the rights that the container needs.
fn restricted() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), ..Capabilities::default() }),
        run_as_non_root: Some(true),
        // The kubelet refuses root, and a user of the image that is no number.
        run_as_user: Some(65_532),
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".to_owned(),
            ..SeccompProfile::default()
        }),
        ..SecurityContext::default()
    }
}

#[cfg(test)]
mod tests;
