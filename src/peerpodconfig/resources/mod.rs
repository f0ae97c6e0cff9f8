//! Builds the objects that one configuration needs. Pure *(no client)*.
//!
//! ```text
//! daemon_set.rs  cloud-api-adaptor on every selected node
//! cloud.rs       what it also needs on each cloud
//! selection.rs   which nodes are selected
//! settings.rs    the keys of its ConfigMap and Secret that shape the DaemonSet
//! webhook.rs     the admission webhook: Deployment, Service, PodDisruptionBudget, MutatingWebhookConfiguration
//! webhook/       tls.rs: the settings that the webhook gets
//! policy/        the same admission without a webhook: MutatingAdmissionPolicy and its binding
//! program.rs     the image and the placement of the webhook, the same as the operator's
//! names.rs       names and labels of the objects
//! unmanaged.rs   cloud-api-adaptors that this configuration does not manage
//! ```
//!
//! All are written by server-side apply: a field that is not built here belongs to its author, and a field that is no longer built
//! is removed.

mod cloud;
mod daemon_set;
mod names;
pub mod policy;
pub mod program;
mod selection;
mod settings;
mod unmanaged;
pub mod webhook;

pub use cloud::{AdaptorSecrets, InstanceType, MountedVolume, instance_type, token_volumes};
pub use daemon_set::{
    ADAPTOR_CONTAINER, DEFAULT_ADAPTOR_IMAGE, SERVICE_ACCOUNT, SETTINGS_HASH_ANNOTATION, account_annotations,
    daemon_set, service_account, surges, unusable_annotations,
};
pub use names::{CLASS_ANNOTATION, CONFIG_LABEL, MANAGED_BY, MANAGER, Names, Part};
pub use operator_kit::differs::differs;
pub use settings::{AdaptorSettings, missing};
pub(super) use settings::{BUILT_FROM_ANNOTATION, has_settings_of, text};
pub(super) use unmanaged::pod;
pub use unmanaged::{
    Unmanaged, has_pods, is_adaptor_image, may_conflict, runs_adaptor, runs_anothers_adaptor,
    unmanaged_adaptors,
};

use crate::api::v1alpha1::PeerPodConfig;

/// The configuration that objects are built for.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
    /// As the API server gave it: with name and uid.
    pub config: &'a PeerPodConfig,
    /// The operator's own namespace, which is the configuration's and that of all its objects.
    pub namespace: &'a str,
}

/// What cloud-api-adaptor's DaemonSet is built from.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// Its configuration.
    pub owner: Owner<'a>,
    /// What its `ConfigMap` and Secret say.
    pub settings: &'a AdaptorSettings,
    /// cloud-api-adaptor's image where the configuration names none; [`DEFAULT_ADAPTOR_IMAGE`] by default.
    pub adaptor_image: &'a str,
    /// The Secrets that cloud-api-adaptor mounts.
    pub secrets: AdaptorSecrets<'a>,
}
