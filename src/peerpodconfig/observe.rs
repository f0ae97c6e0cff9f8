//! Observes one configuration and its surroundings *(client required)*. It only reads.

use futures::try_join;
use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::MutatingWebhookConfiguration,
        apps::v1::{Deployment, ReplicaSet},
        core::v1::{ConfigMap, ContainerStatus, Pod, Secret},
        node::v1::RuntimeClass,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, Client, Resource, ResourceExt, api::ListParams};
use operator_kit::{
    api_call::{self, ApiError},
    metadata::Metadata,
};
use serde::{Deserialize, Serialize};

use super::resources::{self, AdaptorSettings, CONFIG_LABEL, webhook};
use crate::{
    api::v1alpha1::PeerPodConfig,
    webhook::tls::{TlsError, TlsOptions},
};

/// The source of what is observed.
pub(super) struct Observer {
    pub(super) client: Client,
    /// The operator's own namespace.
    pub(super) namespace: String,
}

/// A configuration's `ConfigMap` and Secret.
#[derive(Clone, Debug)]
pub(super) struct Sources {
    /// Whether the `ConfigMap` exists.
    pub(super) config_map: bool,
    /// Whether the Secret exists.
    pub(super) secret: bool,
    /// What they say.
    pub(super) settings: AdaptorSettings,
    /// The settings that cloud-api-adaptor requires and that they lack.
    pub(super) missing: Vec<&'static str>,
    /// What the `ConfigMap`, if it exists, asks of TLS.
    pub(super) tls: Option<Result<TlsOptions, TlsError>>,
}

/// The part of a Pod that the operator reads: there is one on each of thousands of nodes.
#[derive(Clone, Debug, Resource, Serialize, Deserialize)]
#[resource(inherit = Pod)]
struct PodView {
    metadata: ObjectMeta,
    #[serde(default)]
    status: StatusView,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StatusView {
    container_statuses: Vec<ContainerStatus>,
}

impl Observer {
    /// What cloud-api-adaptor would start with; `None` is what does not exist.
    pub(super) async fn settings(&self, config: &PeerPodConfig) -> Result<Sources, ApiError> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let config_maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let (found, credentials) = try_join!(
            api_call::get_opt(&config_maps, &config.spec.config_map_name),
            api_call::get_opt(&secrets, &config.spec.cloud_secret_name),
        )?;
        Ok(Sources {
            config_map: found.is_some(),
            secret: credentials.is_some(),
            settings: AdaptorSettings::read(found.as_ref(), credentials.as_ref()),
            missing: resources::missing(found.as_ref(), credentials.as_ref()),
            tls: found.as_ref().map(webhook::tls_of_settings),
        })
    }

    /// The Deployment of this name.
    pub(super) async fn deployment(&self, name: &str) -> Result<Option<Deployment>, ApiError> {
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), &self.namespace);
        api_call::get_opt(&api, name).await
    }

    /// The Pod of this name.
    pub(super) async fn pod(&self, name: &str) -> Result<Option<Pod>, ApiError> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        api_call::get_opt(&api, name).await
    }

    /// The `ReplicaSet` of this name.
    pub(super) async fn replica_set(&self, name: &str) -> Result<Option<ReplicaSet>, ApiError> {
        let api: Api<ReplicaSet> = Api::namespaced(self.client.clone(), &self.namespace);
        api_call::get_opt(&api, name).await
    }

    /// Whether the runtime class of peer pods exists.
    pub(super) async fn runtime_class_exists(&self, name: &str) -> Result<bool, ApiError> {
        let api: Api<Metadata<RuntimeClass>> = Api::all(self.client.clone());
        Ok(api_call::get_opt(&api, name).await?.is_some())
    }

    /// The authorities that the webhook configuration of this name trusts.
    pub(super) async fn trusted_authorities(
        &self,
        configuration: &str,
    ) -> Result<Option<ByteString>, ApiError> {
        let configurations: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        let configuration = api_call::get_opt(&configurations, configuration).await?;
        Ok(configuration.and_then(trusted_authorities))
    }

    /// The adaptor's Pods that run since before `since`, by name. One that is being deleted is on its way to another.
    pub(super) async fn pods_older_than(
        &self,
        config: &str,
        since: jiff::Timestamp,
    ) -> Result<Vec<String>, ApiError> {
        let api: Api<PodView> = Api::namespaced(self.client.clone(), &self.namespace);
        let params = ListParams::default()
            .labels(&format!("{CONFIG_LABEL}={config},app.kubernetes.io/component=adaptor"));
        let mut older = Vec::new();
        let take = |pod: PodView| {
            let stays = pod.metadata.deletion_timestamp.is_none();
            if stays && started(&pod).is_some_and(|started| started < since) {
                older.push(pod.name_any());
            }
        };
        api_call::for_each(&api, &params, take).await?;
        older.sort();
        Ok(older)
    }
}

/// The authorities that a webhook configuration trusts.
pub(super) fn trusted_authorities(configuration: MutatingWebhookConfiguration) -> Option<ByteString> {
    let mut webhooks = configuration.webhooks.unwrap_or_default().into_iter();
    webhooks.find_map(|webhook| webhook.client_config.ca_bundle)
}

/// When the Pod's adaptor read its settings: at the start of its container.
fn started(pod: &PodView) -> Option<jiff::Timestamp> {
    let running = pod.status.container_statuses.first()?.state.as_ref()?.running.as_ref()?;
    running.started_at.as_ref().map(|time| time.0)
}
