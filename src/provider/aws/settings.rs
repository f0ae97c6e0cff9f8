//! The settings of Amazon EC2, and where they point.

use secrecy::SecretString;

use crate::{
    provider::{
        http::identity::{unsafe_url, variable},
        region_place::RegionPlace,
    },
    settings::{Endpoint, Malformed, Values, key::settings},
};

/// The region that is asked for at the instance metadata.
pub(super) const OF_THE_NODE: &str = "instance-metadata";

settings! {
    /// Where pod VMs on EC2 are made, of what, and with which rights.
    pub struct Settings {
        /// Identifier of the access key. Required, together with AWS_SECRET_ACCESS_KEY, unless a role is assumed
        /// (AWS_ROLE_ARN).
        access_key_id: Option<SecretString> = AWS_ACCESS_KEY_ID.concerns_deletion(),
        /// Access key.
        secret_access_key: Option<SecretString> = AWS_SECRET_ACCESS_KEY.concerns_deletion(),
        /// Session token of a temporary access key.
        session_token: Option<SecretString> = AWS_SESSION_TOKEN.concerns_deletion(),
        /// Role to assume with a token of the ServiceAccount, instead of an access key. EKS sets it if the ServiceAccount names a
        /// role.
        role_arn: Option<String> = AWS_ROLE_ARN.concerns_deletion(),
        /// File with the token for AWS_ROLE_ARN.
        token_file: Option<String> = AWS_WEB_IDENTITY_TOKEN_FILE.concerns_deletion(),
        /// Region of the pod VMs. If empty, from the node's instance metadata.
        region: Option<String> = AWS_REGION.concerns_deletion(),
        /// Endpoint of the API, if it is not Amazon's.
        endpoint_url: Option<String> = AWS_ENDPOINT_URL.concerns_deletion(),
        /// Endpoint of STS, if it is neither Amazon's nor the one of AWS_ENDPOINT_URL.
        sts_endpoint_url: Option<String> = AWS_ENDPOINT_URL_STS.concerns_deletion(),
        /// Image (AMI) of pod VMs.
        image: Option<String> = PODVM_AMI_ID.required(),
        /// Instance type of a pod VM whose Pod asks for no size.
        instance_type: String = PODVM_INSTANCE_TYPE.default("m6a.large"),
        /// Instance types, separated by commas. A Pod gets the smallest one that fits its request.
        instance_types: Option<String> = PODVM_INSTANCE_TYPES,
        /// Subnet of the pod VMs. If empty, the node's.
        subnet: Option<String> = AWS_SUBNET_ID,
        /// Security groups of the pod VMs, separated by commas. If empty, the node's.
        security_groups: Option<String> = AWS_SG_IDS,
        /// Key pair for logging in to pod VMs. If empty, the node's.
        key_pair: Option<String> = SSH_KP_NAME,
        /// Whether pod VMs are created from a launch template.
        use_launch_template: bool = USE_PODVM_LAUNCHTEMPLATE.default("false"),
        /// Name of the launch template.
        launch_template: String = PODVM_LAUNCHTEMPLATE_NAME.default("kata"),
        /// Whether pod VMs get a public address, which cloud-api-adaptor uses.
        use_public_ip: bool = USE_PUBLIC_IP.default("false"),
        /// Size of the root volume in GiB.
        root_volume_size: String = ROOT_VOLUME_SIZE.default("30"),
        /// Whether pod VMs are ordinary ones, without confidential computing.
        disable_cvm: bool = DISABLECVM.default("false"),
        /// Tags of pod VMs, as in a=b,c=d.
        tags: Option<String> = TAGS,
    }
}

impl Settings {
    /// Where VMs are. Identity webhooks tell the region, too.
    pub(super) fn place(&self) -> RegionPlace {
        let region = self.region.clone().or_else(|| variable("AWS_REGION"));
        let region = region.unwrap_or_else(|| OF_THE_NODE.to_owned());
        RegionPlace { region, endpoint: self.endpoint_url.clone() }
    }

    /// The role and the file with the token for it: of the settings, else as EKS injects them.
    pub(super) fn role(&self) -> [Option<String>; 2] {
        let or_injected = |set: &Option<String>, name| set.clone().or_else(|| variable(name));
        [
            or_injected(&self.role_arn, "AWS_ROLE_ARN"),
            or_injected(&self.token_file, "AWS_WEB_IDENTITY_TOKEN_FILE"),
        ]
    }
}

/// Where these settings look for VMs.
pub(super) fn check(values: &Values) -> Result<Endpoint, Vec<Malformed>> {
    let settings = Settings::read(values);
    let place = settings.place();
    let mut problems = place.problems("AWS_REGION", "eu-west-1", "AWS_ENDPOINT_URL");
    let sts_endpoint = settings.sts_endpoint_url.as_deref();
    problems.extend(sts_endpoint.and_then(|url| unsafe_url("AWS_ENDPOINT_URL_STS", url)));
    let key = [settings.access_key_id.is_some(), settings.secret_access_key.is_some()];
    for (first, second, [has_first, has_second]) in [
        ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", key),
        ("AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE", settings.role().map(|it| it.is_some())),
    ] {
        if has_first != has_second {
            let problem = format!("{first} and {second} belong together: set both or neither");
            problems.push(Malformed::new(first, problem));
        }
    }
    let endpoint = Endpoint { setting: "AWS_REGION", address: place.to_string() };
    if problems.is_empty() { Ok(endpoint) } else { Err(problems) }
}
