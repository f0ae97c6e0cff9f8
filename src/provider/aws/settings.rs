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

/// The variables by which EKS gives a role to a Pod: by a token of the `ServiceAccount` (IRSA), or by EKS Pod Identity.
const ROLE_VARIABLES: [&str; 2] = ["AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI"];

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
        /// role. Releases of cloud-api-adaptor up to v0.21.0 need an access key, and v0.21.1 needs a role.
        role_arn: Option<String> = AWS_ROLE_ARN.concerns_deletion(),
        /// File with the token for AWS_ROLE_ARN.
        token_file: Option<String> = AWS_WEB_IDENTITY_TOKEN_FILE.concerns_deletion(),
        /// Region of the pod VMs. If empty, the environment variable of that name, which EKS sets in the Pods of a role, else the
        /// node's region.
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
        /// Name of the launch template. If empty, `kata`. Releases of cloud-api-adaptor up to v0.17.0 use a launch template exactly if
        /// this is not empty, and then ignore PODVM_AMI_ID.
        launch_template: Option<String> = PODVM_LAUNCHTEMPLATE_NAME,
        /// Whether pod VMs get a public address, which cloud-api-adaptor uses.
        use_public_ip: bool = USE_PUBLIC_IP.default("false"),
        /// Size of the root volume in GiB.
        root_volume_size: String = ROOT_VOLUME_SIZE.default("30"),
        /// Whether pod VMs are ordinary ones, without confidential computing.
        disable_cvm: bool = DISABLECVM.default("false"),
        /// Tags of pod VMs, as in a=b,c=d.
        tags: Option<String> = TAGS.tags(),
    }
}

impl Settings {
    /// Where VMs are. Identity webhooks tell the region, too.
    pub(super) fn place(&self) -> RegionPlace {
        let region = self.region.clone().or_else(|| variable("AWS_REGION"));
        let region = region.unwrap_or_else(|| OF_THE_NODE.to_owned());
        RegionPlace { region, endpoint: self.endpoint_url.clone() }
    }

    /// The endpoint of STS for requests to this place, if it is not that of the place. It is for its own region alone, and a former
    /// place may be in another one. An endpoint of EC2 is for one region, too, whether or not a setting names the region.
    pub(super) fn sts_endpoint(&self, place: &RegionPlace) -> Option<String> {
        let now = self.place();
        let has_endpoint = place.endpoint.is_some() && place.endpoint == now.endpoint;
        self.sts_endpoint_url.clone().filter(|_| has_endpoint || place.region == now.region)
    }

    /// The role and the file with the token for it: of the settings, else as EKS injects them.
    pub(super) fn role(&self) -> [Option<String>; 2] {
        let [role, file] = ["AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"].map(variable);
        [self.role_arn.clone().or(role), self.token_file.clone().or(file)]
    }

    /// What is wrong with the region and the role if EKS names others in the operator's Pod. It does so in the Pods of
    /// cloud-api-adaptor, too, where the variables overrule the `ConfigMap`: a VM that is looked for in the other region, or in
    /// the account of the other role, would count as absent.
    fn overruled(&self, variable: impl Fn(&str) -> Option<String>) -> Vec<Malformed> {
        // EKS sets them beside an access key, too. A variable without a role is an administrator's, for the operator alone.
        if !ROLE_VARIABLES.iter().any(|name| variable(name).is_some()) {
            return Vec::new();
        }
        let region = "the environment variable of that name is set to another region, as EKS does in the Pods of a role, and \
                      cloud-api-adaptor makes VMs there: name that region, or leave the setting empty, or, with an access key, \
                      remove the ServiceAccount's role";
        let role = "the environment variable of that name is set to another role, as EKS does if the ServiceAccount names a role, \
                    and cloud-api-adaptor may make VMs in the account of such a role: name that role, or leave the setting \
                    empty, or remove the ServiceAccount's role";
        // With an access key neither cloud-api-adaptor nor the operator assumes a role.
        let assumed = self.role_arn.as_ref().filter(|_| self.access_key_id.is_none());
        let settings = [("AWS_REGION", self.region.as_ref(), region), ("AWS_ROLE_ARN", assumed, role)];
        let overruled = settings.into_iter().filter(|(key, set, _)| {
            set.is_some_and(|set| variable(key).is_some_and(|injected| injected != *set))
        });
        overruled.map(|(key, _, problem)| Malformed::new(key, problem)).collect()
    }
}

/// Where these settings look for VMs.
pub(super) fn check(values: &Values) -> Result<Endpoint, Vec<Malformed>> {
    let settings = Settings::read(values);
    let place = settings.place();
    let mut problems = place.problems("AWS_REGION", "eu-west-1", "AWS_ENDPOINT_URL");
    problems.extend(settings.overruled(variable));
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
    let endpoint = Endpoint { setting: "AWS_REGION or AWS_ENDPOINT_URL", address: place.to_string() };
    if problems.is_empty() { Ok(endpoint) } else { Err(problems) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The settings that are refused if these variables are in the environment.
    fn overruled(settings: &Settings, environment: &[(&str, &str)]) -> Vec<&'static str> {
        let variable = |name: &str| {
            let set = environment.iter().find(|(variable, _)| *variable == name);
            set.map(|(_, value)| (*value).to_owned())
        };
        settings.overruled(variable).into_iter().map(|it| it.key).collect()
    }

    #[test]
    fn a_region_that_eks_overrules_is_refused() {
        let [irsa, pod_identity] = ROLE_VARIABLES.map(|name| (name, "set"));
        let injected = ("AWS_REGION", "us-east-1");
        for (region, key, environment, refused) in [
            (Some("eu-west-1"), None, &[injected, irsa][..], true),
            (Some("eu-west-1"), None, &[injected, pod_identity], true),
            (Some("eu-west-1"), Some("key"), &[injected, irsa], true),
            // It is the same region, or only one of the two names any.
            (Some("us-east-1"), None, &[injected, irsa], false),
            (None, None, &[injected, irsa], false),
            (Some("eu-west-1"), None, &[irsa], false),
            // EKS gave no role.
            (Some("eu-west-1"), None, &[injected], false),
        ] {
            let settings = Settings {
                region: region.map(str::to_owned),
                access_key_id: key.map(SecretString::from),
                ..Settings::read(&Values::default())
            };
            let expected: &[&str] = if refused { &["AWS_REGION"] } else { &[] };
            assert_eq!(overruled(&settings, environment), expected, "{region:?} {key:?} {environment:?}");
        }
    }

    #[test]
    fn the_endpoint_of_sts_serves_its_own_region() {
        let settings = |endpoint: Option<&str>| Settings {
            region: Some("eu-west-1".to_owned()),
            endpoint_url: endpoint.map(str::to_owned),
            sts_endpoint_url: Some("https://sts".to_owned()),
            ..Settings::read(&Values::default())
        };
        for (endpoint, place, is_used) in [
            (None, "eu-west-1", true),
            (None, "eu-west-2", false),
            (Some("https://ec2"), "eu-west-1 https://other", true),
            // The region was that of the node, before a setting named it.
            (Some("https://ec2"), "instance-metadata https://ec2", true),
            (Some("https://ec2"), "instance-metadata https://other", false),
            (None, "instance-metadata", false),
        ] {
            let place = RegionPlace::recorded(place).unwrap();
            assert_eq!(settings(endpoint).sts_endpoint(&place).is_some(), is_used, "{endpoint:?} {place}");
        }
    }

    #[test]
    fn a_role_that_eks_overrules_is_refused() {
        let [irsa, pod_identity] = ROLE_VARIABLES.map(|name| (name, "set"));
        let [ours, theirs] = ["arn:aws:iam::111122223333:role/a", "arn:aws:iam::444455556666:role/a"];
        let injected = ("AWS_ROLE_ARN", theirs);
        for (role, key, environment, refused) in [
            (Some(ours), None, &[injected, irsa][..], true),
            // It is the same role, or only one of the two names any.
            (Some(theirs), None, &[injected, irsa], false),
            (None, None, &[injected, irsa], false),
            (Some(ours), None, &[pod_identity], false),
            // The key is used, and no role.
            (Some(ours), Some("key"), &[injected, irsa], false),
            // EKS gave no role.
            (Some(ours), None, &[injected], false),
        ] {
            let settings = Settings {
                role_arn: role.map(str::to_owned),
                access_key_id: key.map(SecretString::from),
                ..Settings::read(&Values::default())
            };
            let expected: &[&str] = if refused { &["AWS_ROLE_ARN"] } else { &[] };
            assert_eq!(overruled(&settings, environment), expected, "{role:?} {key:?} {environment:?}");
        }
    }
}
