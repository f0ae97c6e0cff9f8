//! The options of an installation.

use k8s_openapi::{api::core::v1::ResourceRequirements, apimachinery::pkg::api::resource::Quantity};

use crate::{
    NAMESPACE,
    names::{BYOM_HOST_KEYS_SECRET, CONFIG_MAP, DEFAULT_IMAGE, SECRET, SSH_KEY_SECRET, TLS_SECRET},
};

/// The options of an installation.
///
/// Names are not among it: programs know leases, service accounts and the webhook's Secret by theirs, the custom resource
/// definitions are there once, and so there is one installation in a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The namespace of everything that is in one.
    pub namespace: String,
    /// The operator's image, which the webhook of a PeerPodConfig runs as well.
    pub image: String,
    /// cloud-api-adaptor's image where a PeerPodConfig names none; empty is its public one.
    pub adaptor_image: String,
    /// The number of operators, of which one acts.
    pub replicas: i32,
    /// The resource requests and limits of the operator's container.
    pub resources: ResourceRequirements,
    /// The `ConfigMap` with the provider's settings.
    pub config_map: String,
    /// The Secret with the provider's credentials.
    pub secret: String,
    /// The Secret with the key for libvirt by ssh.
    pub ssh_key_secret: String,
    /// The Secret with certificates for the connection to pod VMs.
    pub tls_secret: String,
    /// The Secret with the host keys that byom trusts.
    pub byom_host_keys_secret: String,
    /// Whether evictions leave one of the operators. Not by default: they hand over in a moment, and `kubectl apply` reports any
    /// budget as changed each time, because it replaces the selector as a whole.
    pub disruption_budget: bool,
    /// Whether the Pods' ports are closed, except those that a client needs. Not by default: in some clusters a policy also shuts
    /// out the API server and nodes. If the API server cannot reach the webhook, Pods cannot be created.
    pub network_policies: bool,
}

impl Default for Options {
    fn default() -> Self {
        let quantity = |name: &str, value: &str| (name.to_owned(), Quantity(value.to_owned()));
        Self {
            namespace: NAMESPACE.to_owned(),
            image: DEFAULT_IMAGE.to_owned(),
            adaptor_image: String::new(),
            replicas: 2,
            // No limit on cpu: throttling a process that idles saves nothing and delays deletions.
            resources: ResourceRequirements {
                requests: Some([quantity("cpu", "10m"), quantity("memory", "32Mi")].into()),
                limits: Some([quantity("memory", "128Mi")].into()),
                ..ResourceRequirements::default()
            },
            config_map: CONFIG_MAP.to_owned(),
            secret: SECRET.to_owned(),
            ssh_key_secret: SSH_KEY_SECRET.to_owned(),
            tls_secret: TLS_SECRET.to_owned(),
            byom_host_keys_secret: BYOM_HOST_KEYS_SECRET.to_owned(),
            disruption_budget: false,
            network_policies: false,
        }
    }
}
