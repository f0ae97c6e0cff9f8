//! The settings of Alibaba Cloud ECS, and where they point.

use secrecy::SecretString;

use crate::{
    provider::{http::identity::variable, region_place::RegionPlace},
    settings::{Endpoint, Malformed, Values, key::settings},
};

settings! {
    /// Where pod VMs on ECS are made, of what, and with which rights.
    pub struct Settings {
        /// Identifier of the access key. Required, together with ALIBABACLOUD_ACCESS_KEY_SECRET, unless a role is assumed
        /// (ALIBABA_CLOUD_ROLE_ARN).
        access_key_id: Option<SecretString> = ALIBABACLOUD_ACCESS_KEY_ID.concerns_deletion(),
        /// Access key.
        access_key_secret: Option<SecretString> = ALIBABACLOUD_ACCESS_KEY_SECRET.concerns_deletion(),
        /// Session token of a temporary access key. Releases of cloud-api-adaptor up to v0.22.0 ignore it.
        security_token: Option<SecretString> = ALIBABACLOUD_SECURITY_TOKEN.concerns_deletion(),
        /// Role to assume with a token of the ServiceAccount (RRSA), instead of an access key.
        role_arn: Option<String> = ALIBABA_CLOUD_ROLE_ARN.concerns_deletion(),
        /// The cluster's identity provider, for ALIBABA_CLOUD_ROLE_ARN.
        provider_arn: Option<String> = ALIBABA_CLOUD_OIDC_PROVIDER_ARN.concerns_deletion(),
        /// File with the token for ALIBABA_CLOUD_ROLE_ARN.
        token_file: Option<String> = ALIBABA_CLOUD_OIDC_TOKEN_FILE.concerns_deletion(),
        /// Switch that pod VMs are attached to.
        switch: Option<String> = VSWITCH_ID.required(),
        /// Image of pod VMs.
        image: Option<String> = IMAGEID.required(),
        /// Security groups of the pod VMs, separated by commas. Name at least one: ECS creates no instance without.
        security_groups: Option<String> = SECURITY_GROUP_IDS,
        /// Region of the pod VMs.
        region: String = REGION.default("cn-beijing").concerns_deletion(),
        /// Instance type of a pod VM; it overrules PODVM_INSTANCE_TYPE.
        overruling_type: Option<String> = INSTANCE_TYPE,
        /// Instance type of all pod VMs: there is no list to select from. Releases of cloud-api-adaptor up to v0.17.0 ignore it: set
        /// INSTANCE_TYPE for them.
        instance_type: String = PODVM_INSTANCE_TYPE.default("ecs.g8i.xlarge"),
        /// Key pair for logging in to pod VMs.
        key_pair: Option<String> = KEYNAME,
        /// Size of the system disk in GiB.
        system_disk_size: String = SYSTEM_DISK_SIZE.default("40"),
        /// Whether pod VMs get a public address, which cloud-api-adaptor uses.
        use_public_ip: bool = USE_PUBLIC_IP.default("false"),
        /// Whether pod VMs are ordinary ones, without confidential computing.
        disable_cvm: bool = DISABLECVM.default("false"),
        /// Tags of pod VMs, as in a=b,c=d.
        tags: Option<String> = TAGS.tags(),
        /// Address of all services, if it is not Alibaba Cloud's. The operator alone reads it: cloud-api-adaptor always uses Alibaba
        /// Cloud's.
        endpoint: Option<String> = ALIBABA_CLOUD_ENDPOINT.concerns_deletion().operator_only(),
    }
}

impl Settings {
    /// Identifier and secret of the access key.
    pub(super) fn key(&self) -> Option<(SecretString, SecretString)> {
        self.access_key_id.clone().zip(self.access_key_secret.clone())
    }

    /// The role, its identity provider and the file with the token: of the settings, else as the identity webhook of ACK injects
    /// them.
    pub(super) fn role(&self) -> Option<[String; 3]> {
        let or_injected = |set: &Option<String>, name| set.clone().or_else(|| variable(name));
        Some([
            or_injected(&self.role_arn, "ALIBABA_CLOUD_ROLE_ARN")?,
            or_injected(&self.provider_arn, "ALIBABA_CLOUD_OIDC_PROVIDER_ARN")?,
            or_injected(&self.token_file, "ALIBABA_CLOUD_OIDC_TOKEN_FILE")?,
        ])
    }

    /// What is wrong with the role if the identity webhook of ACK names another one in the operator's Pod. It does so in the Pods
    /// of cloud-api-adaptor, too, where the variable overrules the `ConfigMap`: a VM that is looked for in the account of the other
    /// role would count as absent.
    fn overruled(&self, variable: impl Fn(&str) -> Option<String>) -> Option<Malformed> {
        // With an access key neither cloud-api-adaptor nor the operator assumes a role.
        let set = self.role_arn.as_ref().filter(|_| self.access_key_id.is_none())?;
        let injected = variable("ALIBABA_CLOUD_ROLE_ARN")?;
        let problem = "the environment variable of that name is set to another role, as ACK does if the ServiceAccount names a \
                       role, and cloud-api-adaptor may make VMs in the account of such a role: name that role, or leave the \
                       setting empty, or remove the ServiceAccount's role";
        (*set != injected).then(|| Malformed::new("ALIBABA_CLOUD_ROLE_ARN", problem))
    }
}

/// Where these settings look for VMs.
pub(super) fn check(values: &Values) -> Result<Endpoint, Vec<Malformed>> {
    let settings = Settings::read(values);
    let has_half = settings.access_key_id.is_some() != settings.access_key_secret.is_some();
    if has_half || settings.key().is_none() && settings.role().is_none() {
        let problem = "set it together with ALIBABACLOUD_ACCESS_KEY_SECRET, or neither of them but ALIBABA_CLOUD_ROLE_ARN, \
                       ALIBABA_CLOUD_OIDC_PROVIDER_ARN and ALIBABA_CLOUD_OIDC_TOKEN_FILE";
        return Err(vec![Malformed::new("ALIBABACLOUD_ACCESS_KEY_ID", problem)]);
    }
    let overruled = settings.overruled(variable);
    let place = RegionPlace { region: settings.region, endpoint: settings.endpoint };
    let mut problems = place.problems("REGION", "cn-beijing", "ALIBABA_CLOUD_ENDPOINT");
    problems.extend(overruled);
    if place.region.bytes().any(|byte| byte.is_ascii_uppercase()) {
        problems
            .push(Malformed::new("REGION", "regions of Alibaba Cloud are in lower case, such as cn-beijing"));
    }
    let endpoint = Endpoint { setting: "REGION or ALIBABA_CLOUD_ENDPOINT", address: place.to_string() };
    if problems.is_empty() { Ok(endpoint) } else { Err(problems) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_that_ack_overrules_is_refused() {
        for (role, key, injected, refused) in [
            (Some("a"), None, Some("b"), true),
            // It is the same role, or only one of the two names any.
            (Some("b"), None, Some("b"), false),
            (None, None, Some("b"), false),
            (Some("a"), None, None, false),
            // The key is used, and no role.
            (Some("a"), Some("key"), Some("b"), false),
        ] {
            let settings = Settings {
                role_arn: role.map(str::to_owned),
                access_key_id: key.map(SecretString::from),
                ..Settings::read(&Values::default())
            };
            let variable =
                |name: &str| injected.filter(|_| name == "ALIBABA_CLOUD_ROLE_ARN").map(str::to_owned);
            let expected = refused.then_some("ALIBABA_CLOUD_ROLE_ARN");
            let problem = settings.overruled(variable);
            assert_eq!(problem.map(|it| it.key), expected, "{role:?} {key:?} {injected:?}");
        }
    }
}
