//! EC2's Query API: a signed form, answered by XML.

use std::sync::Arc;

use reqsign_aws_v4::Credential;
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, de::DeserializeOwned};
use tokio::sync::OnceCell;

use super::{
    Settings,
    credentials::{Expiring, Source},
    errors::{failure, text},
    metadata::{METADATA, Metadata},
    settings::OF_THE_NODE,
    sign::signed,
};
use crate::provider::{
    Error,
    account::Account,
    cloud::Opening,
    http::{
        Call, Client, Failure, Fresh, MOST_PAGES, Options, Pace, Tokens,
        identity::{form, variable},
        too_many_pages,
    },
    region_place::RegionPlace,
};

/// The Query API of one region, with credentials of one account.
pub(super) struct Api {
    client: Client,
    pub(super) place: RegionPlace,
    /// The endpoint of STS, if it is not that of the place.
    sts_endpoint: Option<String>,
    region: OnceCell<String>,
    pub(super) source: Source,
    identity: Tokens<Arc<Identity>>,
    /// The [`host`](Self::host) of the VMs.
    account: Account,
}

/// Credentials, and their account.
#[derive(Debug)]
struct Identity {
    credential: Credential,
    account: String,
}

/// A service of the API.
struct Service {
    name: &'static str,
    version: &'static str,
    /// Whether its answers may hold a credential.
    gives_credentials: bool,
}

/// Instances, and what they have.
const EC2: Service = Service { name: "ec2", version: "2016-11-15", gives_credentials: false };

/// Identities.
const STS: Service = Service { name: "sts", version: "2011-06-15", gives_credentials: true };

/// What is asked of a service.
struct Query<'a> {
    doing: &'static str,
    pace: Pace,
    action: &'a str,
    parameters: &'a [(&'a str, &'a str)],
}

/// What shows a service who asks.
enum Proof<'a> {
    /// A signature by this credential.
    Signature(&'a Credential),
    /// This token among the parameters.
    Token(&'a SecretString),
}

/// A list in XML.
#[derive(Deserialize)]
pub(super) struct Items<T> {
    #[serde(default = "Vec::new")]
    pub item: Vec<T>,
}

/// An answer without fields to read.
#[derive(Deserialize)]
pub(super) struct Done {}

/// What the token service answers.
#[derive(Deserialize)]
struct OfSts<T> {
    #[serde(alias = "AssumeRoleWithWebIdentityResult", alias = "GetCallerIdentityResult")]
    result: T,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Caller {
    account: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Assumed {
    credentials: Expiring,
}

impl<T> Default for Items<T> {
    fn default() -> Self {
        Self { item: Vec::new() }
    }
}

impl Api {
    pub(super) fn new(settings: &Settings, place: RegionPlace, opening: &Opening<'_>) -> Result<Self, Error> {
        // It is for its own region alone. An earlier place may be in another one.
        let here = place.region == settings.place().region;
        let sts_endpoint = settings.sts_endpoint_url.clone().filter(|_| here);
        Ok(Self {
            client: Client::new(Options::default())?,
            place,
            sts_endpoint,
            region: OnceCell::new(),
            source: Source::of(settings)?,
            identity: Tokens::default(),
            account: Account::of(opening),
        })
    }

    /// The account that the credentials are of.
    pub(super) async fn account(&self) -> Result<String, Error> {
        Ok(self.identity().await?.account.clone())
    }

    /// What distinguishes this place from another one at the same address: the account, and the region if the settings do not
    /// name it.
    pub(super) async fn host(&self) -> Result<String, Error> {
        let identity = self.identity().await?;
        self.whose(&identity).await
    }

    async fn whose(&self, identity: &Identity) -> Result<String, Error> {
        let account = &identity.account;
        if self.named_region().is_some() {
            return Ok(account.clone());
        }
        Ok(format!("{account}/{}", self.region().await?))
    }

    /// The region of the place. `None`: the one in which this program runs.
    fn named_region(&self) -> Option<&str> {
        Some(&*self.place.region).filter(|region| *region != OF_THE_NODE)
    }

    /// The region in which VMs are.
    pub(super) async fn region(&self) -> Result<&str, Error> {
        if let Some(region) = self.named_region() {
            return Ok(region);
        }
        let region = self.region.get_or_try_init(async || match &self.source {
            Source::Node(metadata) => metadata.region().await,
            _ => Metadata::new(variable(METADATA))?.region().await,
        });
        region.await.map(String::as_str)
    }

    /// Calls `action` in the account that owns the VMs, and reads the answer.
    pub(super) async fn call<T: DeserializeOwned>(
        &self,
        doing: &'static str,
        pace: Pace,
        action: &str,
        parameters: &[(&str, &str)],
    ) -> Result<T, Failure> {
        let identity = self.identity().await?;
        let query = Query { doing, pace, action, parameters };
        let answer = self.ask(&EC2, query, Proof::Signature(&identity.credential)).await;
        if let Err(Failure { code, .. }) = &answer
            && ["ExpiredToken", "ExpiredTokenException", "RequestExpired", "AuthFailure"].contains(&&**code)
        {
            self.identity.forget(|it| Arc::ptr_eq(it, &identity)).await;
        }
        answer
    }

    /// Reads a list page by page. `take` gets each page, and gives the token of the next one.
    pub(super) async fn pages<T: DeserializeOwned>(
        &self,
        doing: &'static str,
        action: &str,
        parameters: &[(&str, &str)],
        mut take: impl FnMut(T) -> Option<String>,
    ) -> Result<(), Error> {
        let mut next: Option<String> = None;
        for _ in 0..MOST_PAGES {
            let of_page = next.as_deref().map(|token| ("NextToken", token));
            let parameters: Vec<_> = parameters.iter().copied().chain(of_page).collect();
            next = take(self.call(doing, Pace::Read, action, &parameters).await?);
            if next.as_ref().is_none_or(String::is_empty) {
                return Ok(());
            }
        }
        Err(too_many_pages(doing))
    }

    /// Credentials of the account that owns the VMs. Another account's would see none of them.
    async fn identity(&self) -> Result<Arc<Identity>, Error> {
        let identity = self.identity.get(async || {
            let Fresh { value: credential, expires } =
                self.source.fetch(async |role, token| self.assume(role, token).await).await?;
            let (doing, action) = ("asking whose the credentials are", "GetCallerIdentity");
            let query = Query { doing, pace: Pace::Read, action, parameters: &[] };
            let caller: OfSts<Caller> = self.ask(&STS, query, Proof::Signature(&credential)).await?;
            let account = caller.result.account;
            Ok(Fresh { value: Arc::new(Identity { credential, account }), expires })
        });
        let identity = identity.await?;
        self.account.ensure("AWS account or region", &self.whose(&identity).await?)?;
        Ok(identity)
    }

    async fn assume(&self, role: &str, token: SecretString) -> Result<Expiring, Error> {
        let parameters = [
            ("RoleArn", role),
            ("RoleSessionName", "peerpod-operator"),
            ("WebIdentityToken", token.expose_secret()),
        ];
        let (doing, action) = ("assuming the role AWS_ROLE_ARN", "AssumeRoleWithWebIdentity");
        let query = Query { doing, pace: Pace::Read, action, parameters: &parameters };
        let assumed: OfSts<Assumed> = self.ask(&STS, query, Proof::Token(&token)).await?;
        Ok(assumed.result.credentials)
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        service: &Service,
        Query { doing, pace, action, parameters }: Query<'_>,
        proof: Proof<'_>,
    ) -> Result<T, Failure> {
        let region = self.region().await?;
        let own = self.sts_endpoint.as_deref().filter(|_| service.gives_credentials);
        let url = endpoint(service, region, own.or(self.place.endpoint.as_deref()));
        let fields = [&[("Action", action), ("Version", service.version)], parameters].concat();
        let mut call = Call { pace, ..Call::of(doing, form(&url, &fields), MALFORMED)? };
        match proof {
            Proof::Signature(credential) => {
                call.request = signed(call.request, service.name, region, credential).await?;
            }
            Proof::Token(token) => call.secrets.push(token.clone()),
        }
        let reply = self.client.send(call).await?.success_or(failure)?;
        quick_xml::de::from_str(text(&reply)).map_err(|problem| {
            let quotable = || reply.unreadable("XML", &problem.to_string());
            if service.gives_credentials { reply.no_credential() } else { quotable() }.into()
        })
    }
}

/// Where a service is.
fn endpoint(service: &Service, region: &str, url: Option<&str>) -> String {
    let amazons = || format!("https://{}.{region}.{}/", service.name, domain(region));
    url.map_or_else(amazons, |url| format!("{}/", url.trim_end_matches('/')))
}

/// The domain of the services in the partition of Amazon's cloud to which a region belongs.
fn domain(region: &str) -> &'static str {
    let other = PARTITIONS.iter().find(|(prefix, _)| region.starts_with(prefix));
    other.map_or("amazonaws.com", |(_, domain)| domain)
}

/// The partitions with a domain of their own: what their regions begin with, and the domain.
const PARTITIONS: [(&str, &str); 6] = [
    ("cn-", "amazonaws.com.cn"),
    ("eusc-", "amazonaws.eu"),
    ("us-iso-", "c2s.ic.gov"),
    ("us-isob-", "sc2s.sgov.gov"),
    ("us-isof-", "csp.hci.ic.gov"),
    ("eu-isoe-", "cloud.adc-e.uk"),
];

/// What is wrong with an endpoint that cannot be part of a request.
pub(super) const MALFORMED: &str = "the endpoint is malformed; set AWS_REGION, or AWS_ENDPOINT_URL";

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(endpoint(&EC2, region, None), format!("https://{host}/"));
        }
        assert_eq!(endpoint(&STS, "cn-north-1", Some("https://a/b")), "https://a/b/");
    }
}
