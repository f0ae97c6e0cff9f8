//! The parts of cloud-api-adaptor's `ConfigMap` and Secret that concern its DaemonSet.

use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{ConfigMap, Secret},
};
use kube::ResourceExt as _;
use operator_kit::text::hex;
use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};

use crate::{
    api::v1alpha1::PeerPodConfigSpec,
    provider::{Cloud, cloud::InstanceTypeKey},
    settings::{Common, Key},
};

/// cloud-api-adaptor's own default of `PROBE_PORT`.
const PROBE_PORT: u16 = 8000;

/// The settings that cloud-api-adaptor's Pods overrule by variables of their own.
pub(super) const OVERRULED: [&str; 2] = ["PEERPODS_LIMIT_PER_NODE", "RUNTIMECLASS_NAME"];

/// On the DaemonSet: the settings that it is built from, as a [`Record`] in JSON.
pub(in crate::peerpodconfig) const BUILT_FROM_ANNOTATION: &str =
    "peerpods.confidentialcontainers.org/built-from";

/// The settings that shape the Pod itself, so that a change needs a new Pod, and a hash of all settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdaptorSettings {
    /// `CLOUD_PROVIDER` as it is written; empty if it is not set.
    pub cloud_name: String,
    /// The same, if it is one of cloud-api-adaptor's clouds. Other clouds may come from a plugin.
    pub cloud: Option<&'static Cloud>,
    /// `PROBE_PORT`, the port of the readiness probe; cloud-api-adaptor's default if that is no port.
    pub probe_port: u16,
    /// The setting that overrules the one by which `instanceType` reaches cloud-api-adaptor, if it is set.
    pub instance_type_overruled_by: Option<&'static str>,
    /// The SHA-256 of every key, of every value that reaches cloud-api-adaptor, and of the Secret's uid, in hexadecimal digits.
    pub hash: String,
}

impl AdaptorSettings {
    /// Reads both objects, either of which may be missing. If both have a key, the `ConfigMap` wins, as it does in
    /// cloud-api-adaptor's environment.
    pub fn read(config_map: Option<&ConfigMap>, secret: Option<&Secret>) -> Self {
        let text = |key: &str| text(config_map, secret, key);
        let cloud_name = text("CLOUD_PROVIDER");
        let cloud = Cloud::named(&cloud_name);
        Self {
            cloud,
            probe_port: text("PROBE_PORT").parse().ok().filter(|port| *port > 0).unwrap_or(PROBE_PORT),
            instance_type_overruled_by: overruling(cloud).filter(|key| !text(key).is_empty()),
            hash: hash(cloud, config_map, secret),
            cloud_name,
        }
    }

    /// The settings to build a DaemonSet from while these are the settings. They are those that `current` was built from, because
    /// another template would replace its Pods, which lose track of their VMs. They are these if there is no DaemonSet yet, if its
    /// Pods may be restarted for them (`restarts`), or if `spec` now names other objects: the template has their names.
    #[must_use]
    pub fn in_force(&self, current: Option<&DaemonSet>, spec: &PeerPodConfigSpec, restarts: bool) -> Self {
        let record = current.filter(|_| !restarts).and_then(Record::on);
        record.filter(|record| record.names_those_of(spec)).map_or_else(|| self.clone(), Self::from)
    }

    /// Whether a Pod that starts with these has another shape than a Pod that starts with `other`.
    pub fn shape_differs(&self, other: &Self) -> bool {
        let Self { cloud_name, cloud: _, probe_port, instance_type_overruled_by, hash: _ } = self;
        (cloud_name, probe_port, instance_type_overruled_by)
            != (&other.cloud_name, &other.probe_port, &other.instance_type_overruled_by)
    }

    /// The value of [`BUILT_FROM_ANNOTATION`] on a DaemonSet that is built from these, which `spec` names.
    pub(super) fn record(&self, spec: &PeerPodConfigSpec) -> String {
        let Self { cloud_name, cloud: _, probe_port, instance_type_overruled_by, hash } = self.clone();
        let record = Record {
            cloud_name,
            probe_port,
            overruled: instance_type_overruled_by.is_some(),
            hash,
            config_map: Some(spec.config_map_name.clone()),
            secret: Some(spec.cloud_secret_name.clone()),
        };
        // Texts and numbers can always be written.
        serde_json::to_string(&record).unwrap_or_default()
    }
}

/// Whether the Pods of a DaemonSet get their settings from the objects that `spec` names, as far as it records their names.
pub(in crate::peerpodconfig) fn has_settings_of(daemon_set: &DaemonSet, spec: &PeerPodConfigSpec) -> bool {
    Record::on(daemon_set).is_none_or(|record| record.names_those_of(spec))
}

/// The setting that overrules an instance type on this cloud.
fn overruling(cloud: Option<&Cloud>) -> Option<&'static str> {
    let InstanceTypeKey { overruled_by, .. } = cloud?.instance_type?;
    overruled_by
}

/// The value of a key in the two objects; empty if neither has it.
pub(in crate::peerpodconfig) fn text(
    config_map: Option<&ConfigMap>,
    secret: Option<&Secret>,
    key: &str,
) -> String {
    let settings = config_map.and_then(|it| it.data.as_ref()).and_then(|data| data.get(key)).cloned();
    let credentials = || secret.and_then(|it| it.data.as_ref()).and_then(|data| data.get(key));
    let credentials = || credentials().map(|value| String::from_utf8_lossy(&value.0).into_owned());
    settings.or_else(credentials).unwrap_or_default().trim().to_owned()
}

/// The settings that neither object has and that cloud-api-adaptor needs to start on its cloud, unless its Pods get them
/// otherwise, such as by a patch of the DaemonSet.
pub fn missing(config_map: Option<&ConfigMap>, secret: Option<&Secret>) -> Vec<&'static str> {
    let cloud = Cloud::named(&text(config_map, secret, "CLOUD_PROVIDER"));
    let required = cloud.into_iter().flat_map(Cloud::keys).filter(|key| key.required);
    required.map(|key| key.name).filter(|name| text(config_map, secret, name).is_empty()).collect()
}

/// Settings as a DaemonSet records them.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    cloud_name: String,
    probe_port: u16,
    overruled: bool,
    hash: String,
    /// The name of the `ConfigMap`. Records of older versions do not have it.
    config_map: Option<String>,
    /// That of the Secret.
    secret: Option<String>,
}

impl Record {
    /// The one on this DaemonSet. A user may have edited it by hand.
    fn on(daemon_set: &DaemonSet) -> Option<Self> {
        serde_json::from_str(daemon_set.annotations().get(BUILT_FROM_ANNOTATION)?).ok()
    }

    /// Whether these settings are of the objects that the spec names, as far as the record has their names.
    fn names_those_of(&self, spec: &PeerPodConfigSpec) -> bool {
        let is = |recorded: Option<&str>, name: &str| recorded.is_none_or(|it| it == name);
        is(self.config_map.as_deref(), &spec.config_map_name)
            && is(self.secret.as_deref(), &spec.cloud_secret_name)
    }
}

impl From<Record> for AdaptorSettings {
    fn from(Record { cloud_name, probe_port, overruled, hash, config_map: _, secret: _ }: Record) -> Self {
        let cloud = Cloud::named(&cloud_name);
        let instance_type_overruled_by = overruling(cloud).filter(|_| overruled);
        Self { cloud_name, cloud, probe_port, instance_type_overruled_by, hash }
    }
}

/// The hash is on the DaemonSet and its Pods, which more users may read than the Secret. They could guess a short password from
/// it. So the hash includes the Secret's uid, which is random and visible only to users who may read the Secret.
fn hash(cloud: Option<&Cloud>, config_map: Option<&ConfigMap>, secret: Option<&Secret>) -> String {
    let mut sum = Context::new(&SHA256);
    // The length comes first, so that two texts cannot be mistaken for one.
    let mut add = |bytes: &[u8]| {
        sum.update(&(bytes.len() as u64).to_be_bytes());
        sum.update(bytes);
    };
    if let Some(uid) = secret.and_then(|it| it.metadata.uid.as_ref()) {
        add(b"uid");
        add(uid.as_bytes());
    }
    for (key, value) in config_map.iter().flat_map(|it| it.data.iter().flatten()) {
        add(b"setting");
        add(key.as_bytes());
        add(counted(cloud, key, value.as_bytes()));
    }
    for (key, value) in config_map.iter().flat_map(|it| it.binary_data.iter().flatten()) {
        add(b"binary setting");
        add(key.as_bytes());
        add(counted(cloud, key, &value.0));
    }
    for (key, value) in secret.iter().flat_map(|it| it.data.iter().flatten()) {
        add(b"credential");
        add(key.as_bytes());
        add(counted(cloud, key, &value.0));
    }
    hex(sum.finish().as_ref())
}

/// What counts of a value in the hash. A value that does not reach cloud-api-adaptor counts as the default, so that its change restarts
/// nothing. Installations have the default, so they keep the hash that they had before only what reaches it counted.
fn counted<'a>(cloud: Option<&Cloud>, key: &str, value: &'a [u8]) -> &'a [u8] {
    let mut keys = Common::KEYS.iter().chain(cloud.into_iter().flat_map(Cloud::keys));
    let is_unread = |it: &&Key| it.name == key && (it.operator_only || OVERRULED.contains(&it.name));
    keys.find(is_unread).map_or(value, |it| it.default.as_bytes())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(settings: &Value, credentials: &Value) -> AdaptorSettings {
        let config_map = serde_json::from_value(json!({ "data": settings })).unwrap();
        let secret = serde_json::from_value(json!({ "data": credentials })).unwrap();
        AdaptorSettings::read(Some(&config_map), Some(&secret))
    }

    #[test]
    fn the_config_map_wins_as_in_the_environment_of_cloud_api_adaptor() {
        // YXdz is aws.
        let settings = read(&json!({ "CLOUD_PROVIDER": "libvirt\n" }), &json!({ "CLOUD_PROVIDER": "YXdz" }));
        assert_eq!((settings.cloud_name.as_str(), settings.cloud), ("libvirt", Cloud::named("libvirt")));
        let settings = read(&json!({}), &json!({ "CLOUD_PROVIDER": "YXdz" }));
        assert_eq!(settings.cloud.map(Cloud::name), Some("aws"));
        let settings = read(&json!({ "CLOUD_PROVIDER": "mine" }), &json!({}));
        assert_eq!((settings.cloud_name.as_str(), settings.cloud), ("mine", None));
        let none = AdaptorSettings::read(None, None);
        assert_eq!((none.cloud_name.as_str(), none.cloud, none.probe_port), ("", None, 8000));
    }

    #[test]
    fn a_required_setting_is_missing_if_neither_object_has_it() {
        let missed = |settings: Value, credentials: Value| {
            let config_map = serde_json::from_value(json!({ "data": settings })).unwrap();
            let secret = serde_json::from_value(json!({ "data": credentials })).unwrap();
            missing(Some(&config_map), Some(&secret))
        };
        let gcp = json!({ "CLOUD_PROVIDER": "gcp", "GCP_PROJECT_ID": "p", "GCP_ZONE": " " });
        let with_key = json!({ "GCP_CREDENTIALS": "e30=" });
        assert_eq!(missed(gcp.clone(), with_key), ["GCP_ZONE", "PODVM_IMAGE_NAME"]);
        // The ConfigMap counts, even if empty.
        let with_zone = json!({ "GCP_CREDENTIALS": "e30=", "GCP_ZONE": "eg==", "PODVM_IMAGE_NAME": "eg==" });
        assert_eq!(missed(gcp, with_zone), ["GCP_ZONE"]);
        assert_eq!(missed(json!({ "CLOUD_PROVIDER": "libvirt" }), json!({})), ["LIBVIRT_URI"]);
        // Workload identity sets the keys of the Secret in the Pods.
        let azure = missed(json!({ "CLOUD_PROVIDER": "azure" }), json!({}));
        let identity = ["AZURE_CLIENT_ID", "AZURE_TENANT_ID"];
        assert!(
            azure.contains(&"AZURE_REGION") && !azure.iter().any(|key| identity.contains(key)),
            "{azure:?}"
        );
        for unknown in ["", "mine"] {
            assert!(missed(json!({ "CLOUD_PROVIDER": unknown }), json!({})).is_empty());
        }
    }

    #[test]
    fn an_invalid_port_is_read_as_the_default() {
        for (text, port) in [("9000", 9000), ("", 8000), ("0", 8000), ("99999", 8000), ("x", 8000)] {
            assert_eq!(read(&json!({ "PROBE_PORT": text }), &json!({})).probe_port, port, "{text}");
        }
    }

    #[test]
    fn the_sum_changes_with_every_key_and_value_and_with_nothing_else() {
        let base = read(&json!({ "a": "b", "c": "d" }), &json!({ "e": "Zg==" })).hash;
        assert_eq!(base.len(), 64);
        assert_eq!(read(&json!({ "c": "d", "a": "b" }), &json!({ "e": "Zg==" })).hash, base);
        for (settings, credentials) in [
            (json!({ "a": "b", "c": "x" }), &json!({ "e": "Zg==" })),
            (json!({ "a": "bc", "": "d" }), &json!({ "e": "Zg==" })),
            (json!({ "a": "b" }), &json!({ "e": "Zg==" })),
            (json!({ "a": "b", "c": "d", "e": "f" }), &json!({})),
            (json!({ "a": "b", "c": "d" }), &json!({ "e": "eA==" })),
        ] {
            assert_ne!(read(&settings, credentials).hash, base, "{settings}");
        }
    }

    #[test]
    fn a_change_of_what_does_not_reach_cloud_api_adaptor_leaves_the_hash_of_an_installation() {
        let of = |cloud: &str, key: &str, value: &str| {
            read(&json!({ "CLOUD_PROVIDER": cloud, (key): value }), &json!({})).hash
        };
        let search = "https://api.global-search-tagging.cloud.ibm.com";
        let tokens = "https://iam.cloud.ibm.com/identity/token";
        for (cloud, key, installed) in [
            ("libvirt", "SWEEP_CLUSTER", ""),
            ("libvirt", "SWEEP_TAG", ""),
            ("libvirt", "SWEEP_EXCLUSIVE", "false"),
            ("libvirt", "PEERPODS_LIMIT_PER_NODE", "10"),
            ("libvirt", "RUNTIMECLASS_NAME", "kata-remote"),
            ("ibmcloud", "IBMCLOUD_GLOBAL_SEARCH_ENDPOINT", search),
            ("ibmcloud-powervs", "IBMCLOUD_IAM_ENDPOINT", tokens),
        ] {
            assert_eq!(of(cloud, key, "another"), of(cloud, key, installed), "{key}");
        }
        assert_ne!(
            of("ibmcloud", "IBMCLOUD_IAM_ENDPOINT", "another"),
            of("ibmcloud", "IBMCLOUD_IAM_ENDPOINT", tokens)
        );
        // As it was while every value counted: DaemonSets record it.
        let recorded = "06bfb5903f680c38f7d96b518abe15791ae0c6532a772e2be1a4df3ee3c29b84";
        assert_eq!(of("libvirt", "SWEEP_EXCLUSIVE", "false"), recorded);
    }

    #[test]
    fn equal_secrets_with_different_uids_have_different_hashes() {
        let of = |uid: &str| {
            let secret = json!({ "metadata": { "uid": uid }, "data": { "PASSWORD": "MTIzNA==" } });
            AdaptorSettings::read(None, Some(&serde_json::from_value(secret).unwrap())).hash
        };
        assert_ne!(of("5f0c"), of("a1b2"));
        assert_eq!(of("5f0c"), of("5f0c"));
    }

    /// A DaemonSet with this record.
    fn built(record: &str) -> DaemonSet {
        let annotations = json!({ BUILT_FROM_ANNOTATION: record });
        serde_json::from_value(json!({ "metadata": { "annotations": annotations } })).unwrap()
    }

    #[test]
    fn a_daemon_set_keeps_what_it_was_built_from_until_it_may_restart() {
        let old = read(&json!({ "CLOUD_PROVIDER": "alibabacloud", "INSTANCE_TYPE": "x" }), &json!({}));
        let new = read(&json!({ "CLOUD_PROVIDER": "aws", "PROBE_PORT": "9000" }), &json!({}));
        let spec = PeerPodConfigSpec::default();
        let current = built(&old.record(&spec));
        assert_eq!(new.in_force(Some(&current), &spec, false), old);
        assert_eq!(new.in_force(Some(&current), &spec, true), new);
        for unknown in [None, Some(&DaemonSet::default()), Some(&built("{}")), Some(&built("?"))] {
            assert_eq!(new.in_force(unknown, &spec, false), new);
        }
    }

    #[test]
    fn settings_of_other_objects_are_in_force_at_once() {
        let read = |cloud: &str| read(&json!({ "CLOUD_PROVIDER": cloud }), &json!({}));
        let (old, new) = (read("libvirt"), read("aws"));
        let spec = PeerPodConfigSpec::default();
        let current = built(&old.record(&spec));
        for other in [
            PeerPodConfigSpec { config_map_name: "other".into(), ..spec.clone() },
            PeerPodConfigSpec { cloud_secret_name: "other".into(), ..spec.clone() },
        ] {
            assert_eq!(new.in_force(Some(&current), &other, false), new);
            assert!(!has_settings_of(&current, &other));
        }
        assert!(has_settings_of(&current, &spec));
        // An older version recorded no names.
        let mut record: Value = serde_json::from_str(&old.record(&spec)).unwrap();
        let fields = record.as_object_mut().unwrap();
        assert!(fields.remove("configMap").is_some() && fields.remove("secret").is_some());
        assert_eq!(new.in_force(Some(&built(&record.to_string())), &spec, false), old);
    }

    #[test]
    fn a_pods_shape_is_its_cloud_its_port_and_what_overrules() {
        let base = read(&json!({ "CLOUD_PROVIDER": "alibabacloud" }), &json!({}));
        assert!(
            !base.shape_differs(&read(&json!({ "CLOUD_PROVIDER": "alibabacloud", "x": "y" }), &json!({})))
        );
        for (key, value) in [("CLOUD_PROVIDER", "aws"), ("PROBE_PORT", "9000"), ("INSTANCE_TYPE", "x")] {
            let mut other = json!({ "CLOUD_PROVIDER": "alibabacloud" });
            other[key] = value.into();
            assert!(base.shape_differs(&read(&other, &json!({}))), "{key}");
        }
    }

    #[test]
    fn the_setting_that_overrules_an_instance_type_is_named() {
        let settings = read(&json!({ "CLOUD_PROVIDER": "alibabacloud", "INSTANCE_TYPE": "x" }), &json!({}));
        assert_eq!(settings.instance_type_overruled_by, Some("INSTANCE_TYPE"));
        let settings = read(&json!({ "CLOUD_PROVIDER": "aws", "INSTANCE_TYPE": "x" }), &json!({}));
        assert_eq!(settings.instance_type_overruled_by, None);
    }
}
