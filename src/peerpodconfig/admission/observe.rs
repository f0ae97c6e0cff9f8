//! Reads what the admission of Pods depends on *(client required)*.

use std::sync::Arc;

use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::MutatingWebhookConfiguration,
        apps::v1::{Deployment, ReplicaSet},
        core::v1::Pod,
        node::v1::RuntimeClass,
    },
};
use kube::{Api, Client, ResourceExt};
use operator_kit::{
    api_call::{self, ApiError},
    metadata::Metadata,
};
use tokio::sync::OnceCell;

use super::{
    super::{
        apply::Objects,
        findings::ReconcileError,
        options::Options,
        resources::{
            CLASS_ANNOTATION, Names,
            program::{OPERATOR_CONTAINER, Placement, Program, replica_set_of},
            webhook,
        },
    },
    means::{Means, cluster_scoped},
    policy_support::PolicySupport,
    sharing::{has_others, older_with_same_class, younger_with_same_class},
    webhook_resources::Watched,
};
use crate::{
    api::v1alpha1::{AdmissionMode, PeerPodConfig},
    names::DEFAULT_IMAGE,
    settings::tls::{TlsError, TlsOptions},
};

pub(super) struct Observer {
    pub(super) client: Client,
    pub(super) objects: Objects,
    pub(super) options: Arc<Options>,
    pub(super) policies: PolicySupport,
    /// The Secret and the Lease of all webhooks.
    pub(super) watched: Watched,
    /// What the webhook runs, once it is known: it does not change while this process runs.
    pub(super) program: OnceCell<Program>,
}

/// What is known of one configuration's admission.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    /// Whether the API server supports admission policies.
    pub(super) supports_policies: bool,
    /// The older configuration that has the admission of this one's runtime class.
    pub(super) older: Option<Arc<PeerPodConfig>>,
    /// The names of the younger ones that ask for an admission of this class, too.
    pub(super) younger: Vec<String>,
    /// Its present admission. `None` also where that does not matter.
    pub(super) present: Option<Present>,
}

/// A present admission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Present {
    /// The runtime class of its Pods. The spec may ask for another one now.
    pub(super) class: String,
    pub(super) means: Means,
}

/// What a webhook is built from.
#[derive(Clone, Debug)]
pub(super) struct WebhookInputs {
    pub(super) tls: TlsOptions,
    /// Why those in the settings cannot be used.
    pub(super) refused: Option<TlsError>,
    pub(super) program: Program,
    /// Those whose certificates API servers are to trust.
    pub(super) authorities: Option<ByteString>,
}

impl Observer {
    /// `configs`: all, the oldest first.
    pub(super) async fn observe(
        &self,
        config: &PeerPodConfig,
        configs: &[Arc<PeerPodConfig>],
    ) -> Result<Observed, ApiError> {
        let supports_policies = self.policies.ask(&self.client).await?;
        let is_unsupported = config.spec.admission.mode == AdmissionMode::Policy && !supports_policies;
        // Mostly it does not matter, and no request is needed.
        let present = if is_unsupported || has_others(config, configs) {
            self.present(config, supports_policies).await?
        } else {
            None
        };
        let older = older_with_same_class(config, configs);
        Ok(Observed { supports_policies, older, younger: younger_with_same_class(config, configs), present })
    }

    async fn present(
        &self,
        config: &PeerPodConfig,
        supports_policies: bool,
    ) -> Result<Option<Present>, ApiError> {
        for kind in cluster_scoped(supports_policies) {
            let found = self.objects.staying(&config.name_any(), &kind).await?;
            let class = found.iter().find_map(|object| object.annotations().get(CLASS_ANNOTATION));
            if let Some(class) = class {
                return Ok(Some(Present { class: class.clone(), means: Means::of(&kind) }));
            }
        }
        Ok(None)
    }

    /// Whether the runtime class of peer pods exists.
    pub(super) async fn runtime_class_exists(&self, name: &str) -> Result<bool, ApiError> {
        let api: Api<Metadata<RuntimeClass>> = Api::all(self.client.clone());
        Ok(api_call::get_opt(&api, name).await?.is_some())
    }

    /// `tls`: the TLS options in the settings, if they are known.
    pub(super) async fn webhook(
        &self,
        config: &PeerPodConfig,
        tls: Option<Result<TlsOptions, TlsError>>,
    ) -> Result<WebhookInputs, ReconcileError> {
        let (tls, refused) = self.tls(config, tls).await?;
        let program = self.program().await?.clone();
        Ok(WebhookInputs { tls, refused, program, authorities: self.authorities(config).await? })
    }

    /// The TLS options of the webhook. If the settings are unknown, or unusable (which a condition reports), the options of its Pods
    /// stay as they are.
    async fn tls(
        &self,
        config: &PeerPodConfig,
        asked: Option<Result<TlsOptions, TlsError>>,
    ) -> Result<(TlsOptions, Option<TlsError>), ApiError> {
        let refused = match asked {
            Some(Ok(asked)) => return Ok((asked, None)),
            Some(Err(problem)) => Some(problem),
            None => None,
        };
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), &self.options.namespace);
        let deployment = api_call::get_opt(&api, &Names::of(config).webhook).await?;
        let in_force = deployment.as_ref().map(webhook::tls_of_deployment).unwrap_or_default();
        Ok((in_force, refused))
    }

    /// The authorities in the Secret. A deleted Secret requests another certificate, and until there is one the webhook serves the
    /// old one. If the Secret has a certificate and no ca.crt, another program may write the authorities. So without any in the
    /// Secret those stay that are registered.
    async fn authorities(&self, config: &PeerPodConfig) -> Result<Option<ByteString>, ApiError> {
        let in_secret = self.watched.authorities();
        if in_secret.is_some() {
            return Ok(in_secret);
        }
        let registrations: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        let registration = api_call::get_opt(&registrations, &Names::of(config).cluster_scoped).await?;
        Ok(registration.and_then(trusted_authorities))
    }

    /// What the webhook runs and where: the same as the operator, unless another image is set.
    async fn program(&self) -> Result<&Program, ReconcileError> {
        let asked = async || {
            let Options { namespace, pod, image, secure_metrics, .. } = &*self.options;
            let as_operator = |program| Program { secure_metrics: *secure_metrics, ..program };
            let Some(name) = pod else {
                return Ok(as_operator(Program::public(image.as_deref().unwrap_or(DEFAULT_IMAGE))));
            };
            let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
            let replica_sets: Api<ReplicaSet> = Api::namespaced(self.client.clone(), namespace);
            let pod = api_call::get_opt(&pods, name).await?.unwrap_or_default();
            let replicas = match replica_set_of(&pod) {
                Some(name) => api_call::get_opt(&replica_sets, name).await?,
                None => None,
            };
            let placement = replicas.as_ref().map(Placement::of).unwrap_or_default();
            let own = Program::of(&pod).map(|own| Program { placement, ..own });
            Program::with_image(own, image.as_deref()).map(as_operator).ok_or_else(|| no_pod(name))
        };
        self.program.get_or_try_init(asked).await
    }
}

fn no_pod(name: &str) -> ReconcileError {
    ReconcileError::Unknown(format!(
        "the Pod {name} does not exist or has no container {OPERATOR_CONTAINER}, so the operator does not \
         know the webhook's image; set POD_NAME to the operator's own Pod, or PEERPOD_OPERATOR_IMAGE to the image"
    ))
}

/// The authorities that a webhook configuration trusts.
pub(super) fn trusted_authorities(configuration: MutatingWebhookConfiguration) -> Option<ByteString> {
    let mut webhooks = configuration.webhooks.unwrap_or_default().into_iter();
    webhooks.find_map(|webhook| webhook.client_config.ca_bundle)
}
