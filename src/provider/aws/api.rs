//! EC2's Query API: a signed form, answered by XML.

use hyper::{Method, Request};
use operator_kit::Message;
use reqsign_aws_v4::{Credential, RequestSigner};
use reqsign_core::{Context, SignRequest as _, hash::hex_sha256};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::sync::OnceCell;

use super::{
    Settings,
    answer::{Answer, assumed},
    credentials::{OwnNode, Source},
    settings::OF_THE_NODE,
};
use crate::provider::{
    Error, ErrorClass,
    http::{
        AccessKey, Authentication, CALLER, Call, Client, Fresh, Options, Query, Reply, SignedApi,
        identity::read_file,
    },
    region_place::RegionPlace,
};

/// The Query API of one region.
pub(super) struct Api {
    pub(super) client: Client,
    pub(super) place: RegionPlace,
    /// The endpoint of STS, if it is not that of the place.
    sts_endpoint: Option<String>,
    /// The region of the node, once it is known that VMs are there.
    region: OnceCell<String>,
    source: Source,
    node: OwnNode,
}

/// The action that assumes a role. STS has it and [`CALLER`], and EC2 has all others.
const ASSUME: &str = "AssumeRoleWithWebIdentity";

impl Api {
    pub(super) fn new(settings: &Settings, place: RegionPlace) -> Result<Self, Error> {
        Ok(Self {
            client: Client::new(Options::default())?,
            sts_endpoint: settings.sts_endpoint(&place),
            place,
            region: OnceCell::new(),
            source: Source::of(settings)?,
            node: OwnNode::new()?,
        })
    }

    /// The region in which VMs are.
    pub(super) async fn region(&self) -> Result<&str, Error> {
        if self.place.region != OF_THE_NODE {
            return Ok(&self.place.region);
        }
        self.region.get_or_try_init(|| self.node.region()).await.map(String::as_str)
    }
}

impl SignedApi for Api {
    type Answer = Answer;

    const ACCOUNT: &'static str = "AWS account or region";

    fn origin(&self) -> &'static str {
        self.source.as_str()
    }

    async fn key(&self) -> Result<Fresh<AccessKey>, Error> {
        const TOKEN: &str = "the token of the ServiceAccount";
        Ok(match &self.source {
            Source::Key(key) => key.clone().into(),
            Source::WebIdentity { role, file } => {
                let token = read_file(TOKEN, file).await?;
                let parameters = [
                    ("RoleArn", role.as_str()),
                    ("RoleSessionName", "peerpod-operator"),
                    ("WebIdentityToken", token.expose_secret()),
                ];
                let query = Query::new("assuming the role AWS_ROLE_ARN", ASSUME, &parameters);
                assumed(self.send(query, Authentication::Token(&token)).await?)?
            }
            Source::PodIdentity { uri, file } => {
                self.node.agent(uri, &read_file(TOKEN, file).await?).await?.into()
            }
            Source::Node => self.node.role().await?.into(),
        })
    }

    async fn send(&self, query: Query<'_>, authentication: Authentication<'_>) -> Result<Reply, Error> {
        let Query { doing, action, parameters } = query;
        let region = self.region().await?;
        let is_of_sts = [CALLER, ASSUME].contains(&action);
        let (service, version) = if is_of_sts { ("sts", "2011-06-15") } else { ("ec2", "2016-11-15") };
        let own = self.sts_endpoint.as_deref().filter(|_| is_of_sts);
        let url = endpoint(service, region, own.or(self.place.endpoint.as_deref()));
        let fields = [&[("Action", action), ("Version", version)], parameters].concat();
        let mut call = Call::to(doing, Method::POST, &url)?.form(&fields);
        call.pace = query.pace();
        call.secrets.push(authentication.secret());
        if let Some(key) = authentication.key() {
            call = signed(call, service, region, key).await?;
        }
        self.client.send(call).await
    }

    /// The account, and the region if the settings do not name it.
    fn identity(&self, account: &str) -> String {
        self.region.get().map_or_else(|| account.to_owned(), |region| format!("{account}/{region}"))
    }
}

/// The call with a signature of version 4 by this key, for this service in this region.
async fn signed(call: Call, service: &str, region: &str, key: &AccessKey) -> Result<Call, Error> {
    let hash = hex_sha256(call.request.body());
    let call = call.header("x-amz-content-sha256", &hash)?;
    let (mut head, body) = call.request.into_parts();
    let text = |secret: &SecretString| secret.expose_secret().to_owned();
    let credential = Credential {
        access_key_id: text(&key.id),
        secret_access_key: text(&key.secret),
        session_token: key.token.as_ref().map(text),
        expires_in: None,
    };
    // It marks the headers with a credential as sensitive.
    let signer = RequestSigner::new(service, region);
    signer.sign_request(&Context::new(), &mut head, Some(&credential), None).await.map_err(|problem| {
        let public = "a request cannot be signed with these credentials";
        Error::new(ErrorClass::Unauthorized, Message::new(public, format!("{public}: {:?}", problem.kind())))
    })?;
    Ok(Call { request: Request::from_parts(head, body), ..call })
}

/// Where a service is.
fn endpoint(service: &str, region: &str, url: Option<&str>) -> String {
    let partition = PARTITIONS.iter().find(|(prefix, _)| region.starts_with(prefix));
    let domain = partition.map_or("amazonaws.com", |(_, domain)| domain);
    let amazons = || format!("https://{service}.{region}.{domain}/");
    url.map_or_else(amazons, |url| format!("{}/", url.trim_end_matches('/')))
}

/// The partitions of Amazon's cloud with a domain of their own: what their regions begin with, and the domain.
const PARTITIONS: [(&str, &str); 6] = [
    ("cn-", "amazonaws.com.cn"),
    ("eusc-", "amazonaws.eu"),
    ("us-iso-", "c2s.ic.gov"),
    ("us-isob-", "sc2s.sgov.gov"),
    ("us-isof-", "csp.hci.ic.gov"),
    ("eu-isoe-", "cloud.adc-e.uk"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Values;

    #[tokio::test]
    async fn headers_with_a_credential_are_sensitive() {
        let key = AccessKey { id: "id".into(), secret: "secret".into(), token: Some("token".into()) };
        let call = Call::to("asking", Method::POST, "https://ec2.example/").unwrap().form(&[("a", "b")]);
        let call = signed(call, "ec2", "eu-west-1", &key).await.unwrap();
        for name in ["authorization", "x-amz-security-token"] {
            assert!(call.request.headers()[name].is_sensitive(), "{name}");
        }
    }

    #[test]
    fn the_region_of_the_node_is_part_of_the_identity() {
        let (access_key_id, secret_access_key) = (Some("id".into()), Some("secret".into()));
        let settings = Settings { access_key_id, secret_access_key, ..Settings::read(&Values::default()) };
        let api = |region| Api::new(&settings, RegionPlace::recorded(region).unwrap()).unwrap();
        assert_eq!(api("eu-west-1").identity("1"), "1");
        let of_node = api(OF_THE_NODE);
        of_node.region.set("eu-west-1".to_owned()).unwrap();
        assert_eq!(of_node.identity("1"), "1/eu-west-1");
    }

    #[test]
    fn a_region_has_the_domain_of_its_partition() {
        for (region, host) in [
            ("eu-west-1", "ec2.eu-west-1.amazonaws.com"),
            ("us-gov-west-1", "ec2.us-gov-west-1.amazonaws.com"),
            ("us-isolated-1", "ec2.us-isolated-1.amazonaws.com"),
            ("cn-north-1", "ec2.cn-north-1.amazonaws.com.cn"),
            ("eusc-de-east-1", "ec2.eusc-de-east-1.amazonaws.eu"),
            ("us-iso-east-1", "ec2.us-iso-east-1.c2s.ic.gov"),
            ("us-isob-east-1", "ec2.us-isob-east-1.sc2s.sgov.gov"),
        ] {
            assert_eq!(endpoint("ec2", region, None), format!("https://{host}/"));
        }
        assert_eq!(endpoint("sts", "cn-north-1", Some("https://a/b")), "https://a/b/");
    }
}
