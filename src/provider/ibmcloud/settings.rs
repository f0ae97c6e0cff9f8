//! The settings of IBM Cloud: virtual servers for VPC.

use secrecy::SecretString;

use crate::{
    provider::http::identity::unsafe_url,
    settings::{Endpoint, Malformed, Values, key::settings},
};

/// The setting that says in which region VMs are.
const VPC: &str = "IBMCLOUD_VPC_ENDPOINT";

/// The address that is recorded if the settings name no endpoint. The region is recorded with the account.
pub(super) const OF_THE_NODES: &str = "region-of-the-nodes";

settings! {
    /// Where pod VMs of VPC are made, of what, and where they are found again.
    pub struct Settings {
        /// API key of the user or service. Required unless a trusted profile is used.
        api_key: Option<SecretString> = IBMCLOUD_API_KEY.concerns_deletion(),
        /// Trusted profile of the node or the ServiceAccount, instead of a key.
        profile: Option<SecretString> = IBMCLOUD_IAM_PROFILE_ID.concerns_deletion(),
        /// Images of pod VMs, separated by commas.
        images: Option<String> = IBMCLOUD_PODVM_IMAGE_ID.required(),
        /// Profile of a pod VM whose Pod does not ask for both CPU and memory: such a Pod does not start without it. Required if there
        /// is no list of profiles.
        instance_profile: Option<String> = IBMCLOUD_PODVM_INSTANCE_PROFILE_NAME,
        /// Profiles, separated by commas. A Pod gets the smallest one that fits its request.
        instance_profiles: Option<String> = IBMCLOUD_PODVM_INSTANCE_PROFILE_LIST,
        /// Zone of the pod VMs. If empty, the node's.
        zone: Option<String> = IBMCLOUD_ZONE,
        /// Identifier of this cluster, which tags its pod VMs. If empty, from the ConfigMap kube-system/cluster-info. Since
        /// v0.18.0 cloud-api-adaptor starts only if this is a cluster of IBM Cloud Kubernetes Service or Red Hat OpenShift on
        /// IBM Cloud that the credentials may read.
        cluster: Option<String> = IBMCLOUD_CLUSTER_ID,
        /// Endpoint of the VPC API, such as https://eu-de.iaas.cloud.ibm.com/v1. If empty, that of the node's region. The operator then
        /// deletes VMs only while all nodes are in one region.
        vpc_endpoint: Option<String> = IBMCLOUD_VPC_ENDPOINT.concerns_deletion(),
        /// Resource group of the pod VMs. If empty, that of the node's subnet.
        resource_group: Option<String> = IBMCLOUD_RESOURCE_GROUP_ID.concerns_deletion(),
        /// Virtual private cloud of the pod VMs. If empty, the node's.
        vpc: Option<String> = IBMCLOUD_VPC_ID,
        /// Subnet of the pod VMs. If empty, the node's.
        subnet: Option<String> = IBMCLOUD_VPC_SUBNET_ID,
        /// Key for logging in to pod VMs.
        ssh_key: Option<String> = IBMCLOUD_SSH_KEY_ID,
        /// Additional security groups of the pod VMs, separated by commas. Releases of cloud-api-adaptor before v0.18.0 ignore it, and
        /// read one group from IBMCLOUD_VPC_SG_ID.
        security_groups: Option<String> = IBMCLOUD_SECURITY_GROUP_IDS,
        /// Dedicated hosts for pod VMs, separated by commas: one for each zone.
        dedicated_hosts: Option<String> = IBMCLOUD_DEDICATED_HOST_IDS,
        /// Groups of dedicated hosts for pod VMs, separated by commas: one for each zone.
        dedicated_host_groups: Option<String> = IBMCLOUD_DEDICATED_HOST_GROUP_IDS,
        /// Endpoint for tokens.
        iam_endpoint: String = IBMCLOUD_IAM_ENDPOINT
            .default("https://iam.cloud.ibm.com/identity/token")
            .concerns_deletion(),
        /// Endpoint of Global Search, which lists the tags of pod VMs. The operator alone reads it.
        search_endpoint: String = IBMCLOUD_GLOBAL_SEARCH_ENDPOINT
            .default("https://api.global-search-tagging.cloud.ibm.com")
            .concerns_deletion()
            .operator_only(),
        /// Whether pod VMs are ordinary ones, without confidential computing.
        disable_cvm: bool = DISABLECVM.default("true"),
        /// Additional tags of pod VMs, separated by commas.
        tags: Option<String> = TAGS,
    }
}

/// Where these settings look for VMs: the VPC API of one region.
pub(super) fn check(values: &Values) -> Result<Endpoint, Vec<Malformed>> {
    let Settings { api_key, profile, vpc_endpoint, iam_endpoint, search_endpoint, .. } =
        Settings::read(values);
    let mut malformed: Vec<_> = unsafe_url("IBMCLOUD_IAM_ENDPOINT", &iam_endpoint).into_iter().collect();
    malformed.extend(unsafe_url("IBMCLOUD_GLOBAL_SEARCH_ENDPOINT", &search_endpoint));
    if api_key.is_none() && profile.is_none() {
        let problem = "it is empty, and so is IBMCLOUD_IAM_PROFILE_ID; set one of them".to_owned();
        malformed.push(Malformed::new("IBMCLOUD_API_KEY", problem));
    }
    let address = vpc_endpoint.as_deref().map_or_else(|| Ok(OF_THE_NODES.to_owned()), base);
    match address {
        Ok(address) if malformed.is_empty() => return Ok(Endpoint { setting: VPC, address }),
        Ok(_) => {}
        Err(problem) => malformed.push(problem),
    }
    Err(malformed)
}

/// The base URL of the VPC API that this endpoint is, without a slash at the end.
pub(super) fn base(endpoint: &str) -> Result<String, Malformed> {
    if let Some(malformed) = unsafe_url(VPC, endpoint) {
        return Err(malformed);
    }
    let base = endpoint.trim_end_matches('/');
    if base.ends_with("/v1") {
        return Ok(base.to_owned());
    }
    Err(Malformed::new(VPC, "it must end in /v1, as for cloud-api-adaptor"))
}
