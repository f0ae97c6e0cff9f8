//! The names of a configuration's objects, and the labels that link them to it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{Resource as _, ResourceExt as _, api::ObjectMeta};

use super::Owner;
use crate::{
    api::v1alpha1::PeerPodConfig,
    names::{ADAPTOR_COMPONENT, COMPONENT_LABEL, NAME_LABEL, OPERATOR, WEBHOOK_COMPONENT},
};

/// The label of every object that was created for a configuration: the configuration's name.
pub const CONFIG_LABEL: &str = "peerpods.confidentialcontainers.org/config";

/// The annotation of a registration or policy: the runtime class of its Pods. It stays when the configuration names another class.
pub const CLASS_ANNOTATION: &str = "peerpods.confidentialcontainers.org/runtime-class";

/// The label of every object that names its creator.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// See [`MANAGED_BY`].
pub const MANAGER: &str = "peerpod-operator";

/// The label that names the configuration: one of those that Kubernetes recommends for people and other programs.
const INSTANCE: &str = "app.kubernetes.io/instance";

/// The names of one configuration's objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The DaemonSet of cloud-api-adaptor.
    pub adaptor: String,
    /// The webhook's Deployment, Service and PodDisruptionBudget.
    pub webhook: String,
    /// The cluster-scoped objects: the webhook configuration, or the policy and its binding.
    pub cluster_scoped: String,
}

impl Names {
    /// The names for this configuration.
    pub fn of(config: &PeerPodConfig) -> Self {
        let base = base(&config.name_any());
        Self {
            adaptor: format!("{base}-cloud-api-adaptor"),
            webhook: format!("{base}-webhook"),
            cluster_scoped: format!("peer-pods-{base}"),
        }
    }
}

/// A configuration may have a name that a Service may not have: with dots, or with a digit at the beginning. Such a name is replaced
/// by its letters and a hash of the full name, because `a.b` and `a-b` differ.
fn base(name: &str) -> String {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(plain) {
        return name.to_owned();
    }
    let letters = name.replace(|c| !plain(c), "-");
    format!("c-{letters}-{:08x}", fnv1a(name))
}

/// FNV-1a: short, and the same in every version of every library.
fn fnv1a(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// The program of a configuration that an object belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// cloud-api-adaptor.
    Adaptor,
    /// The admission webhook.
    Webhook,
}

impl Part {
    /// The labels that select the Pods of this part. They never change, because a selector is immutable.
    pub(super) fn selector_labels(self, config: &PeerPodConfig) -> BTreeMap<String, String> {
        let (name, component) = match self {
            Self::Adaptor => ("cloud-api-adaptor", ADAPTOR_COMPONENT),
            Self::Webhook => (OPERATOR, WEBHOOK_COMPONENT),
        };
        [(NAME_LABEL, name), (COMPONENT_LABEL, component), (CONFIG_LABEL, &config.name_any())]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into()
    }

    /// The same labels, as the API server and kubectl take them.
    pub fn label_selector(self, config: &PeerPodConfig) -> String {
        let labels = self.selector_labels(config);
        let labels: Vec<_> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        labels.join(",")
    }

    /// The command that shows why its Pods do not run or were not created. For several objects kubectl shows events only on request.
    pub fn diagnosis(self, config: &PeerPodConfig, namespace: &str) -> String {
        let kinds = match self {
            Self::Adaptor => "daemonsets,pods",
            Self::Webhook => "deployments,replicasets,pods",
        };
        let labels = self.label_selector(config);
        format!("`kubectl -n {namespace} describe --show-events {kinds} -l {labels}` shows why")
    }

    /// The labels of every object of this part in the namespace.
    pub(super) fn labels(self, config: &PeerPodConfig) -> BTreeMap<String, String> {
        let further = [
            (INSTANCE, config.name_any()),
            ("app.kubernetes.io/part-of", "peer-pods".to_owned()),
            (MANAGED_BY, MANAGER.to_owned()),
        ];
        let further = further.map(|(key, value)| (key.to_owned(), value));
        further.into_iter().chain(self.selector_labels(config)).collect()
    }

    /// Selects the Pods of this part.
    pub(super) fn selector(self, config: &PeerPodConfig) -> LabelSelector {
        LabelSelector { match_labels: Some(self.selector_labels(config)), ..LabelSelector::default() }
    }

    /// The metadata of an object in the namespace. It is garbage-collected with its configuration.
    pub(super) fn metadata(self, owner: &Owner, name: String) -> ObjectMeta {
        ObjectMeta {
            name: Some(name),
            namespace: Some(owner.namespace.to_owned()),
            labels: Some(self.labels(owner.config)),
            owner_references: owner.config.controller_owner_ref(&()).map(|reference| vec![reference]),
            ..ObjectMeta::default()
        }
    }

    /// The metadata of a cluster-scoped object. A configuration, which has a namespace, cannot own it; the operator finds it by its
    /// label. Argo CD prunes objects without owner that have the label [`INSTANCE`] of an application and are not part of it.
    pub(super) fn cluster_scoped(self, owner: &Owner) -> ObjectMeta {
        let class = owner.config.spec.admission.runtime_class_name.clone();
        let mut labels = self.labels(owner.config);
        labels.remove(INSTANCE);
        ObjectMeta {
            name: Some(Names::of(owner.config).cluster_scoped),
            labels: Some(labels),
            annotations: Some([(CLASS_ANNOTATION.to_owned(), class)].into()),
            ..ObjectMeta::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(name: &str) -> Names {
        Names::of(&PeerPodConfig::new(name, crate::api::v1alpha1::PeerPodConfigSpec::default()))
    }

    #[test]
    fn objects_are_named_after_their_configuration() {
        let names = names("config");
        assert_eq!(names.adaptor, "config-cloud-api-adaptor");
        assert_eq!(
            (names.webhook.as_str(), names.cluster_scoped.as_str()),
            ("config-webhook", "peer-pods-config")
        );
    }

    #[test]
    fn service_names_are_valid_and_distinct_names_stay_distinct() {
        for name in ["a.b", "a-b", "1a", "c-a-b", &"9".repeat(40), &"x".repeat(40)] {
            let service = names(name).webhook;
            assert!(service.len() <= 63, "{service}");
            assert!(service.starts_with(|c: char| c.is_ascii_lowercase()), "{service}");
            assert!(!service.contains('.'), "{service}");
        }
        assert_ne!(names("a.b"), names("a-b"));
        assert_ne!(names("a.b-c"), names("a-b.c"));
        assert_eq!(names("a.b").webhook, "c-a-b-108bf50c-webhook");
    }
}
