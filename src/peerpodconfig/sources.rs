//! The `ConfigMap` and the Secret of a configuration *(client required)*.

use futures::try_join;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client};
use operator_kit::api_call::{self, ApiError};

use super::resources::{self, AdaptorSettings, webhook};
use crate::{
    api::v1alpha1::PeerPodConfig,
    settings::tls::{TlsError, TlsOptions},
};

/// The content of a configuration's `ConfigMap` and Secret.
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
    /// The TLS options in the `ConfigMap`, if it exists.
    pub(super) tls: Option<Result<TlsOptions, TlsError>>,
}

impl Sources {
    /// Reads both objects, either of which may be missing.
    pub(super) async fn read(
        client: &Client,
        namespace: &str,
        config: &PeerPodConfig,
    ) -> Result<Self, ApiError> {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        let (config_map, secret) = try_join!(
            api_call::get_opt(&config_maps, &config.spec.config_map_name),
            api_call::get_opt(&secrets, &config.spec.cloud_secret_name),
        )?;
        Ok(Self {
            config_map: config_map.is_some(),
            secret: secret.is_some(),
            settings: AdaptorSettings::read(config_map.as_ref(), secret.as_ref()),
            missing: resources::missing(config_map.as_ref(), secret.as_ref()),
            tls: config_map.as_ref().map(webhook::tls_of_settings),
        })
    }
}
