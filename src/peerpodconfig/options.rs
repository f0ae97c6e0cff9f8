//! Where the operator is, and what it deploys.

use super::resources::DEFAULT_ADAPTOR_IMAGE;
use crate::{names, provider::CloudSettings};

/// Where the operator is, and what it deploys.
#[derive(Clone, Debug)]
pub struct Options {
    /// The operator's own namespace.
    pub namespace: String,
    /// The name of the operator's own Pod, whose image the webhook runs; `None`: it runs in none.
    pub pod: Option<String>,
    /// The image that the webhook runs; `None`: that of the operator's own Pod, and [`DEFAULT_IMAGE`] without one.
    ///
    /// [`DEFAULT_IMAGE`]: crate::names::DEFAULT_IMAGE
    pub image: Option<String>,
    /// cloud-api-adaptor's image where a configuration names none.
    pub adaptor_image: String,
    /// The Secret with the key for ssh that cloud-api-adaptor mounts.
    pub ssh_key_secret: String,
    /// The Secret with certificates for the connection to pod VMs that cloud-api-adaptor mounts.
    pub tls_secret: String,
    /// The Secret with the host keys that byom trusts, which cloud-api-adaptor mounts.
    pub byom_host_keys_secret: String,
    /// Whether the webhook serves its metrics with TLS and to those alone who may read them, as the operator does its own.
    pub secure_metrics: bool,
    /// The settings with which this operator deletes VMs; `None`: this operator deletes no VMs. cloud-api-adaptor is not deployed with
    /// others, because the operator would take the VMs that it creates for absent.
    pub mounted: Option<MountedSettings>,
}

/// The settings that the operator itself has, with which it deletes VMs.
#[derive(Clone, Debug)]
pub struct MountedSettings {
    /// The name of the `ConfigMap`.
    pub config_map: String,
    /// The name of the Secret.
    pub secret: String,
    /// The settings of each cloud, as [`PeerPods`] has them. The names above are of those that may be for several clouds. Of those that
    /// must be for one cloud the names are unknown.
    ///
    /// [`PeerPods`]: crate::peerpod::PeerPods
    pub clouds: Vec<CloudSettings>,
}

impl MountedSettings {
    /// Those that may be for the cloud of this name.
    pub(super) fn of(&self, cloud: &str) -> Option<&CloudSettings> {
        self.clouds.iter().find(|settings| settings.may_be_for(cloud))
    }
}

impl Options {
    /// In this namespace, with the default image and the default names of all Secrets.
    pub fn new(namespace: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            pod: None,
            image: None,
            adaptor_image: DEFAULT_ADAPTOR_IMAGE.to_owned(),
            ssh_key_secret: names::SSH_KEY_SECRET.to_owned(),
            tls_secret: names::TLS_SECRET.to_owned(),
            byom_host_keys_secret: names::BYOM_HOST_KEYS_SECRET.to_owned(),
            secure_metrics: false,
            mounted: None,
        }
    }
}
