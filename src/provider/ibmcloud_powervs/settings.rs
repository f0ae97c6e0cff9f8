//! The settings of IBM Power Virtual Servers, and where they point.

use std::fmt;

use secrecy::SecretString;
use uuid::Uuid;

use crate::{
    provider::http::identity::unsafe_url,
    settings::{Endpoint, Malformed, Values, key::settings},
};

/// The settings that say where VMs are.
const ZONE: &str = "POWERVS_ZONE";
const WORKSPACE: &str = "POWERVS_SERVICE_INSTANCE_ID";
const BASE: &str = "IBMCLOUD_POWER_API_ENDPOINT";

/// The API's host behind that of a region.
const HOST: &str = "power-iaas.cloud.ibm.com";

settings! {
    /// Where pod VMs of Power Virtual Server are made, of what, and where they are found again.
    pub struct Settings {
        /// API key of the user or service.
        api_key: Option<SecretString> = IBMCLOUD_API_KEY.required().concerns_deletion(),
        /// Zone of the workspace, such as us-south or eu-de-1. Most are no name of a region.
        zone: String = POWERVS_ZONE.required().concerns_deletion(),
        /// Workspace of the pod VMs: its GUID.
        workspace: String = POWERVS_SERVICE_INSTANCE_ID.required().concerns_deletion(),
        /// Network of the pod VMs.
        network: Option<String> = POWERVS_NETWORK_ID.required(),
        /// Image of pod VMs.
        image: Option<String> = POWERVS_IMAGE_ID.required(),
        /// Key for logging in to pod VMs. Releases of cloud-api-adaptor up to v0.12.0 need it.
        ssh_key: Option<String> = POWERVS_SSH_KEY_NAME,
        /// How processors are assigned: shared, capped or dedicated.
        processor_type: String = POWERVS_PROCESSOR_TYPE.default("shared"),
        /// Kind of machine that hosts pod VMs.
        system_type: String = POWERVS_SYSTEM_TYPE.default("s922"),
        /// Memory of a pod VM in GB. If empty, 2. Releases of cloud-api-adaptor up to v0.12.0 also take it as the number of processors.
        memory: Option<String> = POWERVS_MEMORY,
        /// Number of processors of a pod VM; fractions are allowed.
        processors: String = POWERVS_PROCESSORS.default("0.5"),
        /// How long the creation of a pod VM may take, as a Go duration.
        build_timeout: String = POWERVS_BUILD_TIMEOUT.default("150s"),
        /// Whether pod VMs get a public address, which cloud-api-adaptor uses.
        use_public_ip: bool = USE_PUBLIC_IP.default("false"),
        /// Endpoint of the API, if it is not that of the zone's region: a URL or a host.
        endpoint: Option<String> = IBMCLOUD_POWER_API_ENDPOINT.concerns_deletion(),
        /// Endpoint for tokens. The operator alone reads it: cloud-api-adaptor always uses the default here.
        iam_endpoint: String = IBMCLOUD_IAM_ENDPOINT
            .default("https://iam.cloud.ibm.com/identity/token")
            .concerns_deletion()
            .operator_only(),
    }
}

/// Where VMs are: a workspace, which is in a zone, and the API by which it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The base URL of the API, without a slash at the end.
    pub(super) base: String,
    pub(super) zone: String,
    pub(super) workspace: String,
}

impl Place {
    /// The place of these settings, or what is wrong with them.
    pub(super) fn of(zone: &str, workspace: &str, endpoint: Option<&str>) -> Result<Self, Vec<Malformed>> {
        let mut malformed = Vec::new();
        let mut wrong = |key, problem: &str| malformed.push(Malformed::new(key, problem));
        // It becomes part of a host's name and of a header.
        let is_zone = zone.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        if zone.is_empty() || !is_zone {
            wrong(ZONE, "it must be a zone, such as dal12");
        }
        let workspace = Uuid::try_parse(workspace).map(|guid| guid.hyphenated().to_string());
        if workspace.is_err() {
            wrong(WORKSPACE, "it must be the GUID of a workspace");
        }
        let base = base(zone, endpoint);
        malformed.extend(unsafe_url(BASE, &base));
        match workspace {
            Ok(workspace) if malformed.is_empty() => Ok(Self { base, zone: zone.to_owned(), workspace }),
            _ => Err(malformed),
        }
    }

    /// The service's word in the names of resources: that of Private Cloud has hosts of its own.
    pub(super) fn service(&self) -> &'static str {
        if self.base.contains("ppc-aas") { "ppc-aas" } else { "power-iaas" }
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint { setting: WORKSPACE, address: self.to_string() }
    }

    /// Reads what [`Display`](fmt::Display) wrote.
    pub(super) fn recorded(address: &str) -> Option<Self> {
        let mut parts = address.splitn(3, ' ');
        let (workspace, zone, base) = (parts.next()?, parts.next()?, parts.next()?);
        Self::of(zone, workspace, Some(base)).ok()
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { base, zone, workspace } = self;
        write!(f, "{workspace} {zone} {base}")
    }
}

/// The base URL of the API, as IBM's library finds it. The host may be without scheme, and IBM's own host without region.
fn base(zone: &str, endpoint: Option<&str>) -> String {
    let endpoint = endpoint.unwrap_or(HOST).trim_end_matches('/');
    if endpoint.starts_with("power-iaas.") {
        return format!("https://{}.{endpoint}", region(zone));
    }
    let has_scheme = endpoint.contains("://");
    if has_scheme { endpoint.to_owned() } else { format!("https://{endpoint}") }
}

/// The region of a zone: `eu-de` of `eu-de-1`, and `dal` of `dal12`.
fn region(zone: &str) -> &str {
    let region = zone.trim_end_matches(|it: char| it.is_ascii_digit());
    if !zone.contains('-') {
        return region;
    }
    region.strip_suffix('-').filter(|_| region != zone).unwrap_or(zone)
}

/// Where these settings look for VMs.
pub(super) fn check(values: &Values) -> Result<Endpoint, Vec<Malformed>> {
    let Settings { api_key, zone, workspace, endpoint, iam_endpoint, .. } = Settings::read(values);
    let place = Place::of(&zone, &workspace, endpoint.as_deref());
    let mut malformed = place.as_ref().err().cloned().unwrap_or_default();
    malformed.extend(unsafe_url("IBMCLOUD_IAM_ENDPOINT", &iam_endpoint));
    if api_key.is_none() {
        malformed.push(Malformed::new("IBMCLOUD_API_KEY", "it is empty"));
    }
    match place {
        Ok(place) if malformed.is_empty() => Ok(place.endpoint()),
        _ => Err(malformed),
    }
}

/// The same, whatever the credentials are: the GUID of a workspace is that of no other account.
pub(super) fn place(values: &Values) -> Option<Endpoint> {
    let Settings { zone, workspace, endpoint, .. } = Settings::read(values);
    Some(Place::of(&zone, &workspace, endpoint.as_deref()).ok()?.endpoint())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUID: &str = "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11";

    #[test]
    fn a_zone_leads_to_the_api_of_its_region() {
        for (zone, host) in [
            ("dal12", "https://dal.power-iaas.cloud.ibm.com"),
            ("us-south", "https://us-south.power-iaas.cloud.ibm.com"),
            ("eu-de-1", "https://eu-de.power-iaas.cloud.ibm.com"),
            ("lon04", "https://lon.power-iaas.cloud.ibm.com"),
        ] {
            let place = Place::of(zone, GUID, None).unwrap();
            assert_eq!((&*place.base, &*place.zone), (host, zone));
            assert_eq!(Place::recorded(&place.to_string()), Some(place));
        }
        for (endpoint, base) in [
            ("power-iaas.test.cloud.ibm.com", "https://dal.power-iaas.test.cloud.ibm.com"),
            ("private.dal.power-iaas.cloud.ibm.com", "https://private.dal.power-iaas.cloud.ibm.com"),
            ("https://example/", "https://example"),
            ("http://127.0.0.1:1", "http://127.0.0.1:1"),
        ] {
            assert_eq!(Place::of("dal12", GUID, Some(endpoint)).unwrap().base, base);
        }
    }

    #[test]
    fn the_zone_of_a_private_cloud_is_used_with_the_endpoint_of_its_region() {
        let zone = "satloc_dal_clp2joc20ppo19876n50";
        for (endpoint, service) in
            [("dal.power-iaas.cloud.ibm.com", "power-iaas"), ("us-south.ppc-aas.cloud.ibm.com", "ppc-aas")]
        {
            let place = Place::of(zone, GUID, Some(endpoint)).unwrap();
            assert_eq!((&*place.base, place.service()), (&*format!("https://{endpoint}"), service));
            assert_eq!(Place::recorded(&place.to_string()), Some(place));
        }
    }

    #[test]
    fn an_invalid_place_is_refused_by_the_name_of_its_setting() {
        for (zone, workspace, endpoint, key) in [
            ("", GUID, None, ZONE),
            ("dal12.example.org/", GUID, None, ZONE),
            ("dal12:a/b", GUID, None, ZONE),
            ("dal12", "", None, WORKSPACE),
            ("dal12", "mine", None, WORKSPACE),
            ("dal12", "../..", None, WORKSPACE),
            ("dal12", GUID, Some("http://example"), BASE),
            ("dal12", GUID, Some("https://user@example"), BASE),
        ] {
            let malformed = Place::of(zone, workspace, endpoint).unwrap_err();
            assert!(
                malformed.iter().any(|it| it.key == key),
                "{zone} {workspace} {endpoint:?}: {malformed:?}"
            );
        }
        for address in ["", "a", "dal12 https://a", "mine dal12 https://a"] {
            assert_eq!(Place::recorded(address), None, "{address}");
        }
    }
}
