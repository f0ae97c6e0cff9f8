//! The settings that cloud-api-adaptor reads whatever the provider.

use std::time::Duration;

use super::{Key, go_duration, key::settings};

/// What cloud-api-adaptor takes in place of a `PROXY_TIMEOUT` that it cannot read.
const PROXY_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// The longest one that counts. A setting must not keep machines from their pool for hours.
const MOST_PROXY_TIMEOUT: Duration = Duration::from_secs(10 * 60);

settings! {
    /// What cloud-api-adaptor reads whatever the provider.
    pub struct Common {
        /// The provider that this pair of folders serves, spelled as in `spec.cloudProvider` of a `PeerPod`.
        cloud_provider: Option<String> = CLOUD_PROVIDER.required().concerns_deletion(),
        /// Number of peer-pod VMs that cloud-api-adaptor advertises per node. No effect if a PeerPodConfig deploys
        /// cloud-api-adaptor: then `limit` applies.
        peerpods_limit_per_node: String = PEERPODS_LIMIT_PER_NODE.default("10"),
        /// Whether VMs are kept for debugging: this operator deletes none while it is true, and deletes those that it kept when
        /// it becomes false. No release of cloud-api-adaptor up to v0.22.0 knows this key: such a release deletes the VM of each
        /// Pod that ends.
        developer_mode: bool = PODVM_DEVELOPER_MODE.default("false").concerns_deletion(),
        /// The former name of PODVM_DEVELOPER_MODE. Either of them turns developer mode on.
        former_developer_mode: bool = PEERPODS_DEVELOPER_MODE.default("false").concerns_deletion(),
        /// Kind of tunnel between a worker node and its pod VMs.
        tunnel_type: String = TUNNEL_TYPE.default("vxlan"),
        /// UDP port of the VXLAN tunnel.
        vxlan_port: String = VXLAN_PORT.default("4789"),
        /// TCP port at which the forwarder inside a pod VM listens.
        forwarder_port: String = FORWARDER_PORT.default("15150"),
        /// How long cloud-api-adaptor waits for a pod VM's agent, as a Go duration. With byom the operator leaves the machine of a Pod
        /// that has ended to cloud-api-adaptor for this time (at most 10 minutes) and a tenth of it, and then returns the machine itself.
        proxy_timeout: String = PROXY_TIMEOUT.default("5m"),
        /// Folder on the node in which cloud-api-adaptor keeps its pods' state.
        pods_dir: String = PODS_DIR.default("/run/peerpod/pods"),
        /// Socket on the node at which cloud-api-adaptor serves Kata's remote hypervisor.
        remote_hypervisor_endpoint: String =
            REMOTE_HYPERVISOR_ENDPOINT.default("/run/peerpod/hypervisor.sock"),
        /// Image of the pause container inside the pod VM. If empty, the built-in one.
        pause_image: Option<String> = PAUSE_IMAGE,
        /// Default initdata for Pods without initdata: compressed and base64-encoded; before v0.14.0 of cloud-api-adaptor
        /// base64-encoded only.
        initdata: Option<String> = INITDATA,
        /// Whether the pod VM's cloud-config is verified.
        cloud_config_verify: bool = CLOUD_CONFIG_VERIFY.default("false"),
        /// Whether pod VMs get encrypted scratch space.
        enable_scratch_space: bool = ENABLE_SCRATCH_SPACE.default("false"),
        /// Whether a Pod's traffic to the outside leaves from its VM instead of the worker node. Leave it empty for no: releases of
        /// cloud-api-adaptor up to v0.17.0 take any text as yes on aws and alibabacloud.
        external_network_via_podvm: bool = EXTERNAL_NETWORK_VIA_PODVM,
        /// The cluster's pod networks as comma-separated CIDRs, used with external network through the pod VM.
        pod_subnet_cidrs: Option<String> = POD_SUBNET_CIDRS,
        /// UID of the namespace kube-system of the cluster that SWEEP_TAG and SWEEP_EXCLUSIVE are for. Without it, and in any other
        /// cluster, they prove nothing.
        sweep_cluster: Option<String> = SWEEP_CLUSTER.operator_only(),
        /// A tag of TAGS, written `KEY=VALUE`, that pod VMs of this cluster have and no others. The sweep may then delete VMs with it
        /// that no PeerPod tracks.
        sweep_tag: Option<String> = SWEEP_TAG.operator_only(),
        /// Whether all pod VMs that the sweep lists with these settings are this cluster's: all of the host (libvirt), the daemon
        /// (docker), the region (aws, alibabacloud, ibmcloud), the resource group (azure), the project (gcp), the workspace
        /// (ibmcloud-powervs), the folder (vsphere) or the pool (byom). The sweep may then delete those that no PeerPod tracks.
        sweep_exclusive: bool = SWEEP_EXCLUSIVE.default("false").operator_only(),
        /// File with the CA certificate for the connection to the pod VM's agent.
        cacert_file: Option<String> = CACERT_FILE,
        /// File with the client certificate for the connection to the pod VM's agent.
        cert_file: Option<String> = CERT_FILE,
        /// File with the client certificate's private key.
        cert_key: Option<String> = CERT_KEY,
        /// Whether the certificate of the pod VM's agent is not verified. Leave it empty for no: releases of cloud-api-adaptor up to
        /// v0.17.0 take any text as yes, and then start no peer pod.
        tls_skip_verify: bool = TLS_SKIP_VERIFY,
        /// Lowest TLS version that cloud-api-adaptor accepts. Releases before v0.22.0 ignore it.
        tls_min_version: Option<String> = TLS_MIN_VERSION,
        /// TLS cipher suites that cloud-api-adaptor offers, separated by commas. Releases before v0.22.0 ignore it.
        tls_cipher_suites: Option<String> = TLS_CIPHER_SUITES,
        /// Runtime class of peer pods. No effect if a PeerPodConfig deploys cloud-api-adaptor: then
        /// `admission.runtimeClassName` applies.
        runtimeclass_name: String = RUNTIMECLASS_NAME.default("kata-remote"),
        /// TCP port on the node at which cloud-api-adaptor answers its readiness probe.
        probe_port: String = PROBE_PORT.default("8000"),
        /// Socket of the node's container runtime. No effect in present releases of cloud-api-adaptor.
        cri_runtime_endpoint: Option<String> = CRI_RUNTIME_ENDPOINT,
        /// Whether cloud-api-adaptor loads its provider from a plugin file.
        enable_external_plugin: bool = ENABLE_CLOUD_PROVIDER_EXTERNAL_PLUGIN.default("false"),
        /// Plugin file in cloud-api-adaptor's container. Mount its folder with a patch of the DaemonSet; the operator keeps what you
        /// add.
        external_plugin_path: Option<String> = CLOUD_PROVIDER_EXTERNAL_PLUGIN_PATH,
        /// SHA-256 that the plugin's file must have.
        external_plugin_hash: Option<String> = CLOUD_PROVIDER_EXTERNAL_PLUGIN_HASH,
    }
}

impl Common {
    /// What the libraries of cloud-api-adaptor read: every key of the settings is one of its environment variables. The operator does
    /// not read these keys, and installations do not name them: an empty one is not the same as none for every library.
    pub const VARIABLES: &'static [Key] = &[
        Key::text(
            "HTTPS_PROXY",
            "Proxy through which cloud-api-adaptor reaches HTTPS servers, such as the API of the cloud.",
        ),
        Key::text("HTTP_PROXY", "Proxy through which cloud-api-adaptor reaches HTTP servers."),
        Key::text(
            "NO_PROXY",
            "Hosts, domains and CIDRs, separated by commas, that cloud-api-adaptor reaches without a proxy. With a proxy it must have \
             the Service CIDR of the cluster.",
        ),
        Key::text(
            "SSL_CERT_FILE",
            "File with the authorities that cloud-api-adaptor trusts, for example in /etc/certificates, where the Secret certs-for-tls \
             is mounted.",
        ),
    ];

    /// Whether developer mode is on, by whichever name.
    pub fn is_developer_mode(&self) -> bool {
        self.developer_mode || self.former_developer_mode
    }

    /// How long cloud-api-adaptor may still clean up after a Pod that has ended: until it gives up a start, and a tenth of that time
    /// more for the clean-up itself. With the default these are 5 min and 30 s. That is also longer than a kubelet goes on with the
    /// start of a sandbox, which is 4 min.
    pub(crate) fn clean_up_time(&self) -> Duration {
        let timeout =
            go_duration::parse(&self.proxy_timeout).unwrap_or(PROXY_TIMEOUT).min(MOST_PROXY_TIMEOUT);
        timeout + timeout / 10
    }

    /// Key and value of the tag that `SWEEP_TAG` declares. None if it declares none, or is no tag.
    pub fn declared_tag(&self) -> Option<(&str, &str)> {
        let (key, value) = self.sweep_tag.as_deref()?.split_once('=')?;
        let (key, value) = (key.trim(), value.trim());
        (!key.is_empty() && !value.is_empty()).then_some((key, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Values;

    #[test]
    fn the_time_for_a_clean_up_is_that_of_a_start_and_a_tenth_and_at_most_11_minutes() {
        let time = |timeout: &str| {
            let common = Common { proxy_timeout: timeout.to_owned(), ..Common::read(&Values::default()) };
            common.clean_up_time().as_millis()
        };
        assert_eq!(Common::read(&Values::default()).clean_up_time().as_secs(), 330);
        for (timeout, milliseconds) in [
            ("1s", 1_100),
            ("10m", 660_000),
            ("10m1s", 660_000),
            ("9999999h", 660_000),
            ("soon", 330_000),
            ("", 330_000),
        ] {
            assert_eq!(time(timeout), milliseconds, "{timeout}");
        }
    }
}
