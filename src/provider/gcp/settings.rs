//! The settings of Google Compute Engine.

use secrecy::{ExposeSecret as _, SecretString};

use super::{credentials, id};
use crate::{
    provider::http::identity::unsafe_url,
    settings::{Endpoint, Malformed, Values, key::settings},
};

/// The settings that deletion reads.
const PROJECT: &str = "GCP_PROJECT_ID";
const CREDENTIALS: &str = "GCP_CREDENTIALS";
const BASE: &str = "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE";

settings! {
    /// Where pod VMs on Compute Engine are made, of what, and where they are found again.
    pub struct Settings {
        /// Key of the service account: the whole JSON document.
        credentials: Option<SecretString> = GCP_CREDENTIALS.required().concerns_deletion(),
        /// Project of the pod VMs.
        project: String = GCP_PROJECT_ID.required().concerns_deletion(),
        /// Zone of the pod VMs, such as europe-west4-a.
        zone: String = GCP_ZONE.required(),
        /// Image of pod VMs.
        image: String = PODVM_IMAGE_NAME.required(),
        /// Network of the pod VMs. Name it explicitly, also the default one: cloud-api-adaptor itself assumes none.
        network: String = GCP_NETWORK.default("global/networks/default"),
        /// Subnetwork of the pod VMs. Required if the network does not create subnetworks automatically.
        subnetwork: Option<String> = GCP_SUBNETWORK,
        /// Machine type of a pod VM whose Pod asks for no size.
        machine_type: String = GCP_MACHINE_TYPE.default("e2-medium"),
        /// Machine types, separated by commas, from small to large: cloud-api-adaptor does not sort them. A Pod gets the smallest
        /// one that fits its request. Releases before v0.22.0 find none for a Pod that asks for CPU and memory.
        instance_types: Option<String> = GCP_INSTANCE_TYPES,
        /// Type of the root disk: pd-standard, pd-balanced, pd-ssd or pd-extreme.
        disk_type: String = GCP_DISK_TYPE.default("pd-standard"),
        /// Kind of confidential VM (TDX, SEV or SEV_SNP) if DISABLECVM is false; the machine type must support it.
        confidential_type: Option<String> = GCP_CONFIDENTIAL_TYPE,
        /// Whether pod VMs are ordinary ones, without confidential computing.
        disable_cvm: bool = DISABLECVM.default("false"),
        /// Size of the root disk in GiB.
        root_volume_size: String = ROOT_VOLUME_SIZE.default("10"),
        /// Whether pod VMs get a public address, which cloud-api-adaptor uses. Releases up to v0.22.0 give each VM one all the same.
        use_public_ip: bool = USE_PUBLIC_IP.default("false"),
        /// Resource-manager tags of pod VMs, as in a=b,c=d. They must exist in the project.
        tags: Option<String> = TAGS.tags(),
        /// Base URL of the API, if it is not Google's. The operator alone reads it: cloud-api-adaptor always uses Google's.
        base: String = CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE
            .default("https://compute.googleapis.com/compute/v1/")
            .concerns_deletion()
            .operator_only(),
    }
}

/// Where these settings look for VMs.
pub(super) fn check(values: &Values) -> Result<Endpoint, Vec<Malformed>> {
    let Settings { credentials, project, base, .. } = Settings::read(values);
    let mut malformed = Vec::new();
    if !id::is_project(&project) {
        malformed.push(Malformed::new(PROJECT, "it must be the ID of a project"));
    }
    malformed.extend(unsafe_url(BASE, &base));
    let document = credentials.map(|json| credentials::parse(json.expose_secret()));
    if let Some(Err(problem)) = document {
        malformed.push(Malformed::new(CREDENTIALS, problem));
    }
    if malformed.is_empty() { Ok(endpoint(&project, &base)) } else { Err(malformed) }
}

/// The same, whatever the credentials are.
pub(super) fn place(values: &Values) -> Option<Endpoint> {
    let Settings { project, base, .. } = Settings::read(values);
    let is_place = id::is_project(&project) && unsafe_url(BASE, &base).is_none();
    is_place.then(|| endpoint(&project, &base))
}

fn endpoint(project: &str, base: &str) -> Endpoint {
    let setting = "GCP_PROJECT_ID or CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE";
    Endpoint { setting, address: format!("{}/projects/{project}", base.trim_end_matches('/')) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        provider::CATALOGUE,
        settings::{Raw, Snapshot},
    };

    fn endpoint(given: &[(&str, &str)]) -> Result<String, Vec<&'static str>> {
        let given = [("CLOUD_PROVIDER", "gcp")].iter().chain(given);
        let settings = given.map(|(name, value)| ((*name).to_owned(), SecretString::from(*value))).collect();
        let raw = Raw { settings, ..Raw::default() };
        let endpoint = Snapshot::parse(&raw, CATALOGUE).unwrap().endpoint;
        endpoint.map(|it| it.address).map_err(|all| all.iter().map(|it| it.key).collect())
    }

    #[test]
    fn the_endpoint_names_the_project_and_no_zone() {
        let google = "https://compute.googleapis.com/compute/v1/projects/peer-pods";
        assert_eq!(endpoint(&[(PROJECT, "peer-pods")]).as_deref(), Ok(google));
        assert_eq!(
            endpoint(&[(PROJECT, "peer-pods"), ("GCP_ZONE", "europe-west4-a")]).as_deref(),
            Ok(google)
        );
        let private = endpoint(&[(PROJECT, "peer-pods"), (BASE, "https://compute.example/compute/v1")]);
        assert_eq!(private.as_deref(), Ok("https://compute.example/compute/v1/projects/peer-pods"));
    }

    #[test]
    fn settings_that_deletion_cannot_use_are_named() {
        assert_eq!(endpoint(&[]), Err(vec![PROJECT]));
        assert_eq!(
            endpoint(&[(PROJECT, "a/b"), (BASE, "http://10.0.0.1/"), (CREDENTIALS, "x")]),
            Err(vec![PROJECT, BASE, CREDENTIALS])
        );
    }
}
