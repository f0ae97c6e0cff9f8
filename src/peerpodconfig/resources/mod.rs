//! The objects that one configuration needs, built from it. Pure *(no client)*.
//!
//! ```text
//! daemon_set.rs  cloud-api-adaptor on every selected node
//! cloud.rs       what it needs beside, cloud by cloud
//! selection.rs   which nodes are selected
//! settings.rs    what of its ConfigMap and Secret shapes the DaemonSet
//! webhook.rs     the admission webhook: Deployment, Service, PodDisruptionBudget, MutatingWebhookConfiguration
//! webhook/       tls.rs: what of its settings the webhook is told
//! policy/        the same admission without a webhook: MutatingAdmissionPolicy and its binding
//! program.rs     what the webhook runs and where, as the operator itself does
//! own_pods.rs    what all Pods that run this program have in common
//! names.rs       what they are called, and whose they are
//! differs.rs     whether writing an object would change anything
//! unmanaged.rs     cloud-api-adaptors of others
//! ```
//!
//! All are written by server-side apply: a field that is not built here belongs to whoever set it, and one that is not
//! built any more goes.

mod cloud;
mod daemon_set;
mod differs;
mod names;
pub mod own_pods;
pub mod policy;
pub mod program;
mod selection;
mod settings;
mod unmanaged;
pub mod webhook;

pub use cloud::{AdaptorSecrets, InstanceType, instance_type};
pub use daemon_set::{
    DEFAULT_ADAPTOR_IMAGE, SERVICE_ACCOUNT, SETTINGS_HASH_ANNOTATION, daemon_set, service_account,
    unusable_annotations,
};
pub use differs::differs;
pub use names::{CLASS_ANNOTATION, CONFIG_LABEL, MANAGED_BY, MANAGER, Names, Part};
pub use selection::NodeSelection;
pub(super) use settings::BUILT_FROM_ANNOTATION;
pub use settings::{AdaptorSettings, missing};
pub use unmanaged::{Unmanaged, is_adaptor_image, runs_adaptor, runs_anothers_adaptor, unmanaged_adaptors};

use crate::api::v1alpha1::PeerPodConfig;

/// What the objects of one configuration are built from.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// The configuration, as the API server gave it: with name and uid.
    pub config: &'a PeerPodConfig,
    /// The operator's own namespace, which is the configuration's and that of all its objects.
    pub namespace: &'a str,
    /// What its `ConfigMap` and Secret say.
    pub settings: &'a AdaptorSettings,
    /// cloud-api-adaptor's image where the configuration names none; [`DEFAULT_ADAPTOR_IMAGE`] unless told otherwise.
    pub adaptor_image: &'a str,
    /// The Secrets that cloud-api-adaptor mounts.
    pub secrets: AdaptorSecrets<'a>,
}
