//! What cloud-api-adaptor needs only on certain clouds.

use k8s_openapi::api::core::v1::{
    HostPathVolumeSource, ProjectedVolumeSource, SecretVolumeSource, ServiceAccountTokenProjection, Volume,
    VolumeMount, VolumeProjection,
};

use super::AdaptorSettings;
use crate::{
    api::v1alpha1::PeerPodConfigSpec,
    names::{BYOM_HOST_KEYS_SECRET, SSH_KEY_SECRET, TLS_SECRET},
    provider::cloud::{AdaptorSecret, AdaptorVolume, Cloud, VolumeSource},
};

/// How long a token for a cloud is valid; the kubelet renews it long before.
const TOKEN_SECONDS: i64 = 3600;

/// What becomes of `instanceType`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstanceType {
    /// There is none.
    Unset,
    /// It reaches cloud-api-adaptor as the setting of this name.
    Reaches(&'static str),
    /// A setting of this name overrules it.
    Overruled(&'static str),
    /// cloud-api-adaptor has no such setting on this cloud.
    NoEffect {
        /// The cloud's name in `CLOUD_PROVIDER`; empty if none is set.
        cloud: String,
    },
}

/// The effect of a configuration's `instanceType`. An empty one counts as none.
pub fn instance_type(spec: &PeerPodConfigSpec, settings: &AdaptorSettings) -> InstanceType {
    if spec.instance_type.as_deref().unwrap_or_default().is_empty() {
        return InstanceType::Unset;
    }
    let Some(key) = settings.cloud.and_then(|cloud| cloud.instance_type) else {
        return InstanceType::NoEffect { cloud: settings.cloud_name.clone() };
    };
    settings.instance_type_overruled_by.map_or(InstanceType::Reaches(key.name), InstanceType::Overruled)
}

/// The names of the Secrets that cloud-api-adaptor mounts if they exist, in the operator's own namespace.
#[derive(Clone, Copy, Debug)]
pub struct AdaptorSecrets<'a> {
    /// The Secret of the key for ssh, on clouds that are reached by ssh.
    pub ssh_key: &'a str,
    /// The Secret of the certificates for the connection to pod VMs.
    pub tls: &'a str,
    /// That of the host keys that byom trusts.
    pub byom_host_keys: &'a str,
}

impl Default for AdaptorSecrets<'_> {
    fn default() -> Self {
        Self { ssh_key: SSH_KEY_SECRET, tls: TLS_SECRET, byom_host_keys: BYOM_HOST_KEYS_SECRET }
    }
}

/// A volume and where it is mounted.
pub type MountedVolume = (Volume, VolumeMount);

/// The volumes that this cloud needs beside those that all do.
pub(super) fn volumes(cloud: Option<&Cloud>, secrets: AdaptorSecrets) -> Vec<MountedVolume> {
    let volumes = cloud.map_or(&[][..], |cloud| cloud.volumes).iter();
    let mounted = |&AdaptorVolume { name, path, source }: &AdaptorVolume| match source {
        VolumeSource::Secret(AdaptorSecret::SshKey) => secret(name, secrets.ssh_key, path),
        VolumeSource::Secret(AdaptorSecret::HostKeys) => secret(name, secrets.byom_host_keys, path),
        VolumeSource::Secret(AdaptorSecret::Named(named)) => secret(name, named, path),
        // No type: it may be missing.
        VolumeSource::HostPath => host_path(name, path, None),
        VolumeSource::Token { audience, file } => token(name, audience, file, path),
    };
    volumes.map(mounted).collect()
}

/// The volumes that identify the operator's own Pods to this cloud: those of tokens, as cloud-api-adaptor has them.
pub fn token_volumes(cloud: &Cloud) -> Vec<MountedVolume> {
    let token = |volume: &AdaptorVolume| match volume.source {
        VolumeSource::Token { audience, file } => Some(token(volume.name, audience, file, volume.path)),
        VolumeSource::Secret(_) | VolumeSource::HostPath => None,
    };
    cloud.volumes.iter().filter_map(token).collect()
}

/// A Secret that may be missing, readable for root alone: ssh accepts no other keys.
pub(super) fn secret(volume: &str, name: &str, path: &str) -> MountedVolume {
    let source = SecretVolumeSource {
        secret_name: Some(name.to_owned()),
        default_mode: Some(0o600),
        optional: Some(true),
        ..SecretVolumeSource::default()
    };
    let (volume, mount) = mounted(volume, path);
    (Volume { secret: Some(source), ..volume }, VolumeMount { read_only: Some(true), ..mount })
}

/// A folder or file of the node.
pub(super) fn host_path(volume: &str, path: &str, type_: Option<&str>) -> MountedVolume {
    let source = HostPathVolumeSource { path: path.to_owned(), type_: type_.map(str::to_owned) };
    let (volume, mount) = mounted(volume, path);
    (Volume { host_path: Some(source), ..volume }, mount)
}

/// A token of the ServiceAccount that this audience trusts.
fn token(volume: &str, audience: &str, file: &str, path: &str) -> MountedVolume {
    #[allow(clippy::needless_update, reason = "later versions of Kubernetes have more fields")]
    let token = ServiceAccountTokenProjection {
        audience: Some(audience.to_owned()),
        expiration_seconds: Some(TOKEN_SECONDS),
        path: file.to_owned(),
        ..ServiceAccountTokenProjection::default()
    };
    let source = VolumeProjection { service_account_token: Some(token), ..VolumeProjection::default() };
    let projected = ProjectedVolumeSource { sources: Some(vec![source]), ..ProjectedVolumeSource::default() };
    let (volume, mount) = mounted(volume, path);
    (Volume { projected: Some(projected), ..volume }, VolumeMount { read_only: Some(true), ..mount })
}

fn mounted(name: &str, path: &str) -> MountedVolume {
    let volume = Volume { name: name.to_owned(), ..Volume::default() };
    let mount = VolumeMount { name: name.to_owned(), mount_path: path.to_owned(), ..VolumeMount::default() };
    (volume, mount)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn becomes(cloud: &str, instance_type: &str) -> InstanceType {
        let settings = AdaptorSettings {
            cloud_name: cloud.into(),
            cloud: Cloud::named(cloud),
            ..AdaptorSettings::read(None, None)
        };
        let spec =
            PeerPodConfigSpec { instance_type: Some(instance_type.into()), ..PeerPodConfigSpec::default() };
        super::instance_type(&spec, &settings)
    }

    #[test]
    fn the_operators_pods_mount_only_the_token_volumes_of_their_cloud() {
        for cloud in ["ibmcloud", "alibabacloud"] {
            let cloud = Cloud::named(cloud).unwrap();
            assert_eq!(token_volumes(cloud), volumes(Some(cloud), AdaptorSecrets::default()));
        }
        for cloud in ["libvirt", "aws"] {
            assert!(token_volumes(Cloud::named(cloud).unwrap()).is_empty(), "{cloud}");
        }
    }

    #[test]
    fn an_instance_type_is_each_clouds_own_setting_or_without_effect() {
        for (cloud, key) in [
            ("aws", "PODVM_INSTANCE_TYPE"),
            ("alibabacloud", "PODVM_INSTANCE_TYPE"),
            ("azure", "AZURE_INSTANCE_SIZE"),
            ("gcp", "GCP_MACHINE_TYPE"),
            ("ibmcloud", "IBMCLOUD_PODVM_INSTANCE_PROFILE_NAME"),
        ] {
            assert_eq!(becomes(cloud, "large"), InstanceType::Reaches(key));
            assert_eq!(becomes(cloud, ""), InstanceType::Unset);
        }
        for cloud in ["libvirt", "ibmcloud-powervs", "byom", "docker", "vsphere", "mine", ""] {
            assert_eq!(becomes(cloud, "large"), InstanceType::NoEffect { cloud: cloud.into() });
        }
    }
}
