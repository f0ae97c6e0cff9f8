//! Alibaba Cloud's API of the RPC kind: a signed query, answered by JSON.

use jiff::Timestamp;
use secrecy::ExposeSecret as _;

use super::{
    answer::{Answer, assumed},
    settings::Settings,
    sign::request,
};
use crate::provider::{
    Error, ErrorClass,
    http::{
        AccessKey, Authentication, CALLER, Call, Client, Fresh, Options, Query, Reply, SignedApi,
        identity::read_file,
    },
    region_place::RegionPlace,
};

/// The API of one region.
pub(super) struct Api {
    pub(super) client: Client,
    pub(super) place: RegionPlace,
    source: Source,
}

enum Source {
    /// An access key.
    Key(AccessKey),
    /// A role with its identity provider, assumed with the token in a file.
    Role([String; 3]),
}

/// The action that assumes a role. STS has it and [`CALLER`].
const ASSUME: &str = "AssumeRoleWithOIDC";

impl Api {
    pub(super) fn new(settings: &Settings, place: RegionPlace) -> Result<Self, Error> {
        let token = settings.security_token.clone();
        let source = match (settings.key(), settings.role()) {
            (Some((id, secret)), _) => Source::Key(AccessKey { id, secret, token }),
            (None, Some(role)) => Source::Role(role),
            (None, None) => return Err(Error::new(ErrorClass::Invalid, "there are no credentials")),
        };
        Ok(Self { client: Client::new(Options::default())?, place, source })
    }
}

impl SignedApi for Api {
    type Answer = Answer;

    const ACCOUNT: &'static str = "Alibaba Cloud account";

    fn origin(&self) -> &'static str {
        match self.source {
            Source::Key(_) => "an access key",
            Source::Role(_) => "a role by a token of the ServiceAccount",
        }
    }

    async fn key(&self) -> Result<Fresh<AccessKey>, Error> {
        let [role, provider, file] = match &self.source {
            Source::Key(key) => return Ok(key.clone().into()),
            Source::Role(role) => role,
        };
        let token = read_file("the token of the ServiceAccount", file).await?;
        let parameters = [
            ("OIDCProviderArn", provider.as_str()),
            ("OIDCToken", token.expose_secret()),
            ("RoleArn", role.as_str()),
            ("RoleSessionName", "peerpod-operator"),
        ];
        let query = Query::new("assuming the role ALIBABA_CLOUD_ROLE_ARN", ASSUME, &parameters);
        assumed(self.send(query, Authentication::Token(&token)).await?)
    }

    async fn send(&self, query: Query<'_>, authentication: Authentication<'_>) -> Result<Reply, Error> {
        let Query { doing, action, parameters } = query;
        let (url, version) = service(&self.place, action);
        let date = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let nonce = format!("{:032x}", fastrand::u128(..));
        let request = request(&url, [action, version, &date, &nonce], parameters, authentication.key())
            .ok_or_else(|| {
                let message =
                    "no request can be made of the endpoint and the credentials: they have wrong characters";
                Error::new(ErrorClass::Invalid, message)
            })?;
        let call = Call::new(doing, query.pace(), request);
        self.client.send(Call { secrets: vec![authentication.secret()], ..call }).await
    }
}

/// The address and the version of the service that does this, as the library that cloud-api-adaptor uses knows it. That one's
/// table has some more regions, which are not open to customers.
pub(super) fn service(place: &RegionPlace, action: &str) -> (String, &'static str) {
    let region = place.region.as_str();
    let is_of_hangzhou = ["cn-hangzhou", "cn-shanghai-finance-1", "cn-shenzhen-finance-1"].contains(&region);
    let is_old = is_of_hangzhou || ["cn-hangzhou-finance", "cn-north-2-gov-1"].contains(&region);
    let (host, version) = match action {
        ASSUME | CALLER => ("sts.aliyuncs.com".to_owned(), "2015-04-01"),
        _ if action.contains("Eip") && is_old => ("vpc.aliyuncs.com".to_owned(), "2016-04-28"),
        _ if action.contains("Eip") => (format!("vpc.{region}.aliyuncs.com"), "2016-04-28"),
        _ if is_of_hangzhou => ("ecs-cn-hangzhou.aliyuncs.com".to_owned(), "2014-05-26"),
        _ if is_old => ("ecs.aliyuncs.com".to_owned(), "2014-05-26"),
        _ => (format!("ecs.{region}.aliyuncs.com"), "2014-05-26"),
    };
    let of_alibaba = || format!("https://{host}");
    (place.endpoint.clone().map_or_else(of_alibaba, |url| url.trim_end_matches('/').to_owned()), version)
}
