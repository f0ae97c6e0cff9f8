//! Names and labels of what is installed.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::ObjectMeta;

use super::{NAME, Options};
use crate::names::{ADAPTOR_COMPONENT, COMPONENT_LABEL, NAME_LABEL, OPERATOR_COMPONENT, WEBHOOK_COMPONENT};

/// The annotations that keep Flux and Argo CD from deleting an object. Both repeat a deletion until nothing refuses it. So they must
/// not delete the policies that protect the installation, nor what these policies protect.
pub const KEPT_BY_GITOPS: [(&str, &str); 2] = [
    ("argocd.argoproj.io/sync-options", "Prune=false,Delete=false"),
    ("kustomize.toolkit.fluxcd.io/prune", "disabled"),
];

/// [`KEPT_BY_GITOPS`] as an object has them.
pub(super) fn kept_by_gitops() -> BTreeMap<String, String> {
    KEPT_BY_GITOPS.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

/// A program that the installation has objects for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// The operator.
    Operator,
    /// cloud-api-adaptor.
    Adaptor,
    /// The admission webhook.
    Webhook,
}

impl Component {
    /// The component's name in labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Operator => OPERATOR_COMPONENT,
            Self::Adaptor => ADAPTOR_COMPONENT,
            Self::Webhook => WEBHOOK_COMPONENT,
        }
    }

    /// The labels of every object that is for it.
    pub fn labels(self) -> BTreeMap<String, String> {
        let further = [
            ("app.kubernetes.io/part-of", "peer-pods"),
            ("app.kubernetes.io/version", env!("CARGO_PKG_VERSION")),
        ];
        let further = further.map(|(key, value)| (key.to_owned(), value.to_owned()));
        further.into_iter().chain(self.selector_labels()).collect()
    }

    /// The labels that select its Pods. They never change: a selector is immutable.
    pub fn selector_labels(self) -> BTreeMap<String, String> {
        [(NAME_LABEL, NAME), (COMPONENT_LABEL, self.as_str())]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into()
    }

    /// Selects its Pods.
    pub fn selector(self) -> LabelSelector {
        LabelSelector { match_labels: Some(self.selector_labels()), ..LabelSelector::default() }
    }

    /// The metadata of an object that is in no namespace.
    pub fn cluster_scoped(self, name: &str) -> ObjectMeta {
        ObjectMeta { name: Some(name.to_owned()), labels: Some(self.labels()), ..ObjectMeta::default() }
    }

    /// The metadata of an object in the installation's namespace.
    pub fn namespaced(self, name: &str, options: &Options) -> ObjectMeta {
        ObjectMeta { namespace: Some(options.namespace.clone()), ..self.cluster_scoped(name) }
    }
}
