//! The `ConfigMap` and the Secret of a configuration *(client required)*.

use futures::try_join;
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{ConfigMap, Secret},
};
use kube::{Api, Client};
use operator_kit::api_call::{self, ApiError};

use super::resources::{self, AdaptorSettings, webhook};
use crate::{
    api::v1alpha1::PeerPodConfig,
    cluster::read_uid,
    provider::{CloudEndpoint, Tagging, named_by},
    settings::{
        FileText, Raw,
        key::is_true,
        tls::{TlsError, TlsOptions},
    },
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
    /// Whether cloud-api-adaptor loads its provider from a plugin.
    pub(super) has_plugin: bool,
    /// The settings that cloud-api-adaptor requires and that they lack.
    pub(super) missing: Vec<&'static str>,
    /// Their content, as the operator reads its files; `None` if one does not exist, or if a value is no text.
    pub(super) raw: Option<Raw>,
    /// What is wrong with them if VMs would be another cluster's.
    pub(super) another_cluster: Option<&'static str>,
    /// The TLS options in the `ConfigMap`, if it exists.
    pub(super) tls: Option<Result<TlsOptions, TlsError>>,
}

impl Sources {
    /// Reads both objects, either of which may be missing. If they name a cluster for VMs, also reads the UID of this one.
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
        let settings = AdaptorSettings::read(config_map.as_ref(), secret.as_ref());
        let text = |key: &str| resources::text(config_map.as_ref(), secret.as_ref(), key);
        let [tags, sweep_tag, sweep_exclusive, sweep_cluster] =
            ["TAGS", "SWEEP_TAG", "SWEEP_EXCLUSIVE", "SWEEP_CLUSTER"].map(text);
        let own_tag = settings.cloud.and_then(|cloud| cloud.own_tag);
        let own_tag = own_tag.map(|(setting, key)| (key, text(setting)));
        let sweep_exclusive = is_true(&sweep_exclusive);
        let tagging = Tagging {
            tags: &tags,
            own_tag: own_tag.as_ref().map(|(key, value)| (*key, &**value)),
            sweep_tag: &sweep_tag,
            sweep_exclusive,
            sweep_cluster: &sweep_cluster,
        };
        let another_cluster = if tagging.names_cluster() {
            tagging.problem(&read_uid(client).await?.unwrap_or_default())
        } else {
            None
        };
        Ok(Self {
            config_map: config_map.is_some(),
            secret: secret.is_some(),
            settings,
            has_plugin: is_true(&text("ENABLE_CLOUD_PROVIDER_EXTERNAL_PLUGIN")),
            missing: resources::missing(config_map.as_ref(), secret.as_ref()),
            raw: raw(config_map.as_ref(), secret.as_ref()),
            another_cluster,
            tls: config_map.as_ref().map(webhook::tls_of_settings),
        })
    }

    /// Where cloud-api-adaptor makes VMs by them; `None` if the operator cannot read where that is. The variables of the DaemonSet's
    /// container, which an administrator may have added, overrule them. The operator reads their plain values.
    pub(super) fn place(&self, daemon_set: Option<&DaemonSet>) -> Option<AdaptorPlace> {
        let raw = self.raw.as_ref()?;
        let pod = daemon_set.and_then(resources::pod);
        let variables =
            pod.into_iter().flat_map(|pod| &pod.containers).flat_map(|it| it.env.iter().flatten());
        let plain = variables.filter(|it| it.value_from.is_none());
        let plain = plain.map(|it| (it.name.clone(), it.value.clone().unwrap_or_default().into()));
        let mut overruled = raw.clone();
        overruled.settings.extend(plain);
        let endpoint = named_by(&overruled)?;
        Some(AdaptorPlace { is_by_variable: named_by(raw).as_ref() != Some(&endpoint), endpoint })
    }
}

/// Where cloud-api-adaptor makes VMs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AdaptorPlace {
    /// The cloud, and where there.
    pub(super) endpoint: CloudEndpoint,
    /// Whether it would be another one without the variables of the DaemonSet's container.
    pub(super) is_by_variable: bool,
}

/// What becomes variables of cloud-api-adaptor, as the operator reads its files. `binaryData` becomes a file alone.
fn raw(config_map: Option<&ConfigMap>, secret: Option<&Secret>) -> Option<Raw> {
    let file = |name: &String, value: &[u8]| Some((name.clone(), FileText::of(value.to_vec())?.value));
    let settings = config_map?.data.iter().flatten().map(|(name, value)| file(name, value.as_bytes()));
    let credentials = secret?.data.iter().flatten().map(|(name, value)| file(name, &value.0));
    let (settings, credentials) = (settings.collect::<Option<_>>()?, credentials.collect::<Option<_>>()?);
    Some(Raw { settings, credentials, ..Raw::default() })
}

#[cfg(test)]
pub(super) mod tests {
    use operator_kit::testing::{Answer, ApiServer, Call};
    use serde_json::{Value, json};

    use super::*;
    use crate::api::v1alpha1::PeerPodConfigSpec;

    /// Those of a `ConfigMap` with this data and an empty Secret.
    pub(in super::super) fn sources(data: &Value) -> Sources {
        let config_map = serde_json::from_value(json!({ "data": data })).unwrap();
        let secret = Secret::default();
        Sources {
            config_map: true,
            secret: true,
            settings: AdaptorSettings::read(Some(&config_map), Some(&secret)),
            has_plugin: false,
            missing: Vec::new(),
            raw: raw(Some(&config_map), Some(&secret)),
            another_cluster: None,
            tls: None,
        }
    }

    #[test]
    fn a_place_is_that_of_cloud_api_adaptors_environment() {
        let place = |config_map: Value, secret: Value| {
            let config_map = serde_json::from_value(config_map).unwrap();
            let secret = serde_json::from_value(secret).unwrap();
            let sources = Sources { raw: raw(Some(&config_map), Some(&secret)), ..sources(&json!({})) };
            let (cloud, endpoint) = sources.place(None)?.endpoint;
            Some((cloud, endpoint.setting, endpoint.address))
        };
        let of = |data: Value| place(json!({ "data": data }), json!({}));
        let at = |host: &str| Some(("docker", "DOCKER_HOST", format!("tcp://{host}")));
        let there = json!({ "CLOUD_PROVIDER": "docker", "DOCKER_HOST": "tcp://a:1\n" });
        assert_eq!(of(there.clone()), at("a:1"), "as it is in a file");
        assert_eq!(
            place(json!({ "data": there }), json!({ "data": { "DOCKER_HOST": "dGNwOi8vYjox" } })),
            at("a:1")
        );
        let cloud = json!({ "CLOUD_PROVIDER": "docker" });
        let secret = json!({ "data": { "DOCKER_HOST": "dGNwOi8vYjox" } });
        assert_eq!(place(json!({ "data": cloud }), secret), at("b:1"));
        let binary = json!({ "data": cloud, "binaryData": { "DOCKER_HOST": "dGNwOi8vYjox" } });
        assert_eq!(place(binary, json!({})), None, "no variable of that name");
        assert_eq!(place(json!({ "data": there }), json!({ "data": { "A": "/w==" } })), None, "no text");
        assert_eq!(of(json!({ "CLOUD_PROVIDER": "docker", "DOCKER_HOST": "unix:///a" })), None);
        assert_eq!(of(json!({ "CLOUD_PROVIDER": "a-plugin's", "DOCKER_HOST": "tcp://a:1" })), None);
        assert!(raw(None, Some(&Secret::default())).is_none());
    }

    /// What is wrong with these settings in the cluster with this UID. Without a UID the API server is not asked for it.
    async fn another_cluster(settings: Value, uid: Option<&str>) -> Option<&'static str> {
        let get = |path: &str, object: &Value| {
            Call::get(format!("/api/v1/namespaces/{path}")).answer(Answer::json(200, object))
        };
        let config_map = json!({ "metadata": { "name": "peer-pods-cm" }, "data": settings });
        let secret = json!({ "metadata": { "name": "peer-pods-secret" } });
        let namespace = json!({ "metadata": { "name": "kube-system", "uid": uid } });
        let mut calls =
            vec![get("ns/configmaps/peer-pods-cm", &config_map), get("ns/secrets/peer-pods-secret", &secret)];
        calls.extend(uid.map(|_| get("kube-system", &namespace)));
        let server = ApiServer::expecting(calls);
        let config = PeerPodConfig::new("config", PeerPodConfigSpec::default());
        Sources::read(&server.client(), "ns", &config).await.unwrap().another_cluster
    }

    #[tokio::test]
    async fn settings_of_another_cluster_are_found() {
        let tagged = json!({ "CLOUD_PROVIDER": "aws", "TAGS": "caa-cluster-uid=uid-1" });
        assert_eq!(another_cluster(tagged.clone(), Some("uid-1")).await, None);
        assert!(another_cluster(tagged, Some("uid-2")).await.is_some());
        let declared = json!({
            "CLOUD_PROVIDER": "aws", "TAGS": "cluster=a", "SWEEP_TAG": "cluster=a", "SWEEP_CLUSTER": "uid-1",
        });
        assert!(another_cluster(declared, Some("uid-2")).await.is_some());
        let by_id = json!({
            "CLOUD_PROVIDER": "ibmcloud", "IBMCLOUD_CLUSTER_ID": "a", "SWEEP_TAG": "coco-pod-vm=a", "SWEEP_CLUSTER": "uid-1",
        });
        assert!(another_cluster(by_id, Some("uid-2")).await.is_some());
        let exclusive =
            json!({ "CLOUD_PROVIDER": "libvirt", "SWEEP_EXCLUSIVE": "true", "SWEEP_CLUSTER": "uid-1" });
        assert!(another_cluster(exclusive, Some("uid-2")).await.is_some());
        assert_eq!(another_cluster(json!({ "CLOUD_PROVIDER": "aws", "TAGS": "team=a" }), None).await, None);
    }
}
