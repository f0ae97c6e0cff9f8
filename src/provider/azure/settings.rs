//! The settings of Azure, and which of its clouds they are for.

use hyper::Uri;
use secrecy::SecretString;

use crate::{
    provider::http::identity::is_safe,
    settings::{Malformed, key::settings},
};

/// The settings that name a cloud.
pub(super) const AUTHORITY: &str = "AZURE_AUTHORITY_HOST";
const MANAGER: &str = "AZURE_RESOURCE_MANAGER_ENDPOINT";

settings! {
    /// Where pod VMs on Azure are made, of what, and where they are found again.
    pub struct Settings {
        /// Identifier of the application (client) or the managed identity. Required, unless workload identity sets it: then
        /// leave it empty.
        client_id: Option<SecretString> = AZURE_CLIENT_ID.concerns_deletion(),
        /// The application's secret. Empty with workload identity.
        client_secret: Option<SecretString> = AZURE_CLIENT_SECRET.concerns_deletion(),
        /// Directory (tenant) of the application. Required, unless workload identity sets it: then leave it empty.
        tenant: Option<SecretString> = AZURE_TENANT_ID.concerns_deletion(),
        /// Subscription that pays for the pod VMs, by its ID. The operator uses it for the sweep and for `check` alone.
        subscription: String = AZURE_SUBSCRIPTION_ID.required(),
        /// Resource group of the pod VMs, their disks and interfaces. The operator uses it for the sweep and for `check` alone.
        group: String = AZURE_RESOURCE_GROUP.required(),
        /// Region of the pod VMs, such as eastus.
        region: String = AZURE_REGION.required(),
        /// Subnet of the pod VMs: its full resource identifier.
        subnet: String = AZURE_SUBNET_ID.required(),
        /// Image of pod VMs: its full resource identifier.
        image: String = AZURE_IMAGE_ID.required(),
        /// Size of a pod VM whose Pod asks for no size.
        size: String = AZURE_INSTANCE_SIZE.default("Standard_DC2as_v5"),
        /// Sizes, separated by commas. A Pod gets the smallest one that fits its request.
        sizes: Option<String> = AZURE_INSTANCE_SIZES,
        /// Network security group of the pod VMs: its full resource identifier.
        security_group: Option<String> = AZURE_NSG_ID,
        /// Endpoint for tokens, in clouds other than the public one. cloud-api-adaptor starts in the public one alone, up to v0.22.0.
        authority: Option<String> = AZURE_AUTHORITY_HOST.concerns_deletion(),
        /// Endpoint of Resource Manager, in private clouds. The operator alone reads it.
        manager: Option<String> = AZURE_RESOURCE_MANAGER_ENDPOINT.concerns_deletion().operator_only(),
        /// User for logging in to pod VMs.
        ssh_user: String = SSH_USERNAME.default("peerpod"),
        /// Whether pod VMs start with secure boot.
        secure_boot: bool = ENABLE_SECURE_BOOT.default("false"),
        /// Whether pod VMs get a public address, which cloud-api-adaptor uses.
        use_public_ip: bool = USE_PUBLIC_IP.default("false"),
        /// Size of the root disk in GB; 0 means the image's size.
        root_volume_size: String = ROOT_VOLUME_SIZE.default("0"),
        /// Whether pod VMs are ordinary ones, without confidential computing.
        disable_cvm: bool = DISABLECVM.default("false"),
        /// Tags of pod VMs, as in a=b,c=d.
        tags: Option<String> = TAGS.tags(),
    }
}

/// One of Azure's clouds: the URL for tokens, the URL of Resource Manager, and the audience of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Environment {
    pub(super) authority: String,
    pub(super) manager: String,
    pub(super) audience: String,
}

/// Microsoft's own clouds: the hosts of the authority, of Resource Manager, and of the audience.
const CLOUDS: [[&str; 3]; 4] = [
    ["login.microsoftonline.com", "management.azure.com", "management.azure.com"],
    ["login.microsoftonline.us", "management.usgovcloudapi.net", "management.core.usgovcloudapi.net"],
    ["login.chinacloudapi.cn", "management.chinacloudapi.cn", "management.core.chinacloudapi.cn"],
    ["login.partner.microsoftonline.cn", "management.chinacloudapi.cn", "management.core.chinacloudapi.cn"],
];

/// The cloud with this authority; without an authority, the public cloud. A Resource Manager of its own takes the place of the
/// known one, also as the audience. An authority that is none of Microsoft's own needs one.
pub(super) fn environment(authority: Option<&str>, manager: Option<&str>) -> Result<Environment, Malformed> {
    let bare = |url: &str| url.trim_end_matches('/').to_owned();
    let of_host = |host: &str| format!("https://{host}");
    let authority = authority.map_or_else(|| of_host(CLOUDS[0][0]), bare);
    for (key, url) in [(AUTHORITY, Some(&*authority)), (MANAGER, manager)] {
        let is_bare = |url: &str| url.parse().is_ok_and(|uri: Uri| uri.path() == "/");
        if !url.is_none_or(|url| is_safe(url) && is_bare(url)) {
            let problem = "it must be an https URL without a path; http is for loopback addresses only";
            return Err(Malformed::new(key, problem));
        }
    }
    if let Some(manager) = manager.map(bare) {
        return Ok(Environment { authority, audience: manager.clone(), manager });
    }
    let known = CLOUDS.iter().find(|[known, ..]| of_host(known).eq_ignore_ascii_case(&authority));
    let [_, manager, audience] = known.ok_or_else(|| {
        let problem = format!("it is none of Microsoft's own; set {MANAGER}, too");
        Malformed::new(AUTHORITY, problem)
    })?;
    Ok(Environment { authority, manager: of_host(manager), audience: of_host(audience) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_leads_to_the_resource_manager_of_its_cloud() {
        for hosts in CLOUDS {
            let [authority, manager, audience] = hosts.map(|host| format!("https://{host}"));
            for spelling in [
                authority.clone(),
                format!("{authority}/"),
                authority.to_uppercase().replace("HTTPS", "https"),
            ] {
                let environment = environment(Some(&spelling), None).unwrap();
                assert_eq!(
                    (&environment.manager, &environment.audience),
                    (&manager, &audience),
                    "{spelling}"
                );
            }
        }
        assert_eq!(environment(None, None), environment(Some("https://login.microsoftonline.com"), None));
        let private =
            environment(Some("https://login.example"), Some("https://management.example/")).unwrap();
        assert_eq!(
            (&*private.manager, &*private.audience),
            ("https://management.example", "https://management.example")
        );
    }

    #[test]
    fn credentials_are_sent_by_https_or_stay_on_this_machine() {
        for (authority, manager, key) in [
            ("http://login.microsoftonline.com", None, AUTHORITY),
            ("https://login.example", None, AUTHORITY),
            ("login.microsoftonline.com", None, AUTHORITY),
            ("https://login.example/tenant", Some("https://a"), AUTHORITY),
            ("https://login.example", Some("http://10.0.0.1"), MANAGER),
            ("https://login.example", Some("http://localhost"), MANAGER),
            ("https://login.example", Some("https://a/?b"), MANAGER),
        ] {
            let malformed = environment(Some(authority), manager).unwrap_err();
            assert_eq!(malformed.key, key, "{authority} {manager:?}");
        }
        assert!(environment(Some("http://127.0.0.1:80"), Some("http://[::1]:80/")).is_ok());
    }
}
