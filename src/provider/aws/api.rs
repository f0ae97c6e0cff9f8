//! EC2's Query API: a signed form, answered by XML.

use std::sync::Arc;

use jiff::Timestamp;
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, de::DeserializeOwned};
use tokio::sync::OnceCell;

use super::{
    Settings,
    answer::{Page, failure},
    credentials::{Node, Source},
    settings::OF_THE_NODE,
    sign::signed,
};
use crate::provider::{
    Error,
    account::Account,
    cloud::Opening,
    http::{
        AccessKey, Assumed, Call, Caller, Client, Failure, Fresh, MOST_PAGES, Options, Query, TemporaryKey,
        Tokens,
        identity::{form, read_file},
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
    node: Node,
    identity: Tokens<Arc<Identity>>,
    /// The [`host`](Identity::host) of the VMs.
    account: Account,
}

/// Credentials, and whose they are.
#[derive(Debug)]
pub(super) struct Identity {
    key: AccessKey,
    pub(super) account: String,
    /// What distinguishes this place from another one at the same address: the account, and the region if the settings do not
    /// name it.
    pub(super) host: String,
}

/// The actions of STS. EC2 has all others.
const CALLER: &str = "GetCallerIdentity";
const ASSUME: &str = "AssumeRoleWithWebIdentity";

/// The parameter with the token of the ServiceAccount.
const WEB_TOKEN: &str = "WebIdentityToken";

/// An answer without fields to read.
#[derive(Deserialize)]
struct Done {}

/// What the token service answers.
#[derive(Deserialize)]
struct OfSts<T> {
    #[serde(alias = "AssumeRoleWithWebIdentityResult", alias = "GetCallerIdentityResult")]
    result: T,
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
            node: Node::new()?,
            identity: Tokens::default(),
            account: Account::of(opening),
        })
    }

    /// Whether VMs are in the region in which this program runs, whichever that is.
    fn is_of_the_node(&self) -> bool {
        self.place.region == OF_THE_NODE
    }

    /// The region in which VMs are.
    pub(super) async fn region(&self) -> Result<&str, Error> {
        if !self.is_of_the_node() {
            return Ok(&self.place.region);
        }
        self.region.get_or_try_init(|| self.node.region()).await.map(String::as_str)
    }

    /// Asks in the account that owns the VMs, and reads the answer.
    async fn call<T: DeserializeOwned>(&self, query: Query<'_>) -> Result<T, Failure> {
        let identity = self.identity().await?;
        let answer = self.ask(query, Some(&identity.key)).await;
        if let Err(Failure { code, .. }) = &answer
            && ["ExpiredToken", "ExpiredTokenException", "RequestExpired", "AuthFailure"].contains(&&**code)
        {
            self.identity.forget(|it| Arc::ptr_eq(it, &identity)).await;
        }
        answer
    }

    /// Asks for a change. An answer to it has nothing to read.
    pub(super) async fn change(&self, query: Query<'_>) -> Result<(), Failure> {
        self.call::<Done>(query).await.map(drop)
    }

    /// Reads a list page by page.
    pub(super) async fn pages<T: DeserializeOwned>(
        &self,
        query: Query<'_>,
        mut take: impl FnMut(Vec<T>),
    ) -> Result<(), Failure> {
        let mut next = String::new();
        for _ in 0..MOST_PAGES {
            let of_page = (!next.is_empty()).then_some(("NextToken", &*next));
            let parameters: Vec<_> = query.parameters.iter().copied().chain(of_page).collect();
            let page: Page<T> = self.call(Query { parameters: &parameters, ..query }).await?;
            take(page.set);
            next = page.next_token;
            if next.is_empty() {
                return Ok(());
            }
        }
        Err(too_many_pages(query.doing).into())
    }

    /// Reads a whole list.
    pub(super) async fn all<T: DeserializeOwned>(&self, query: Query<'_>) -> Result<Vec<T>, Failure> {
        let mut all = Vec::new();
        self.pages(query, |page| all.extend(page)).await?;
        Ok(all)
    }

    /// Credentials of the account that owns the VMs. Another account's would see none of them.
    pub(super) async fn identity(&self) -> Result<Arc<Identity>, Error> {
        let identity = self.identity.get(async || {
            let Fresh { value: key, expires } = self.key().await?;
            let query = Query::new("asking whose the credentials are", CALLER, &[]);
            let caller: OfSts<Caller> = self.ask(query, Some(&key)).await?;
            let account = caller.result.account;
            let region = self.region().await?;
            let host = if self.is_of_the_node() { format!("{account}/{region}") } else { account.clone() };
            Ok(Fresh { value: Arc::new(Identity { key, account, host }), expires })
        });
        let identity = identity.await?;
        self.account.ensure("AWS account or region", &identity.host)?;
        Ok(identity)
    }

    async fn key(&self) -> Result<Fresh<AccessKey>, Error> {
        const TOKEN: &str = "the token of the ServiceAccount";
        Ok(match &self.source {
            Source::Key(key) => Fresh { value: key.clone(), expires: Timestamp::MAX },
            Source::WebIdentity { role, file } => {
                self.assume(role, &read_file(TOKEN, file).await?).await?.into()
            }
            Source::PodIdentity { uri, file } => {
                self.node.agent(uri, &read_file(TOKEN, file).await?).await?.into()
            }
            Source::Node => self.node.role().await?.into(),
        })
    }

    async fn assume(&self, role: &str, token: &SecretString) -> Result<TemporaryKey, Error> {
        let parameters =
            [("RoleArn", role), ("RoleSessionName", "peerpod-operator"), (WEB_TOKEN, token.expose_secret())];
        let query = Query::new("assuming the role AWS_ROLE_ARN", ASSUME, &parameters);
        let assumed: OfSts<Assumed> = self.ask(query, None).await?;
        Ok(assumed.result.credentials)
    }

    /// Sends a request, signed if there is a key, and reads the answer.
    async fn ask<T: DeserializeOwned>(
        &self,
        query: Query<'_>,
        key: Option<&AccessKey>,
    ) -> Result<T, Failure> {
        let Query { doing, action, parameters } = query;
        let region = self.region().await?;
        let is_of_sts = [CALLER, ASSUME].contains(&action);
        let (service, version) = if is_of_sts { ("sts", "2011-06-15") } else { ("ec2", "2016-11-15") };
        let own = self.sts_endpoint.as_deref().filter(|_| is_of_sts);
        let url = endpoint(service, region, own.or(self.place.endpoint.as_deref()));
        let fields = [&[("Action", action), ("Version", version)], parameters].concat();
        let mut call = Call { pace: query.pace(), ..Call::of(doing, form(&url, &fields), MALFORMED)? };
        let tokens = parameters.iter().filter(|(name, _)| *name == WEB_TOKEN);
        call.secrets.extend(tokens.map(|(_, token)| SecretString::from(*token)));
        if let Some(key) = key {
            call.request = signed(call.request, service, region, key).await?;
        }
        let reply = self.client.send(call).await?.success_or(failure)?;
        // The answer to another question proves nothing: its lists, which are others, would count as empty.
        if !is_answer(&reply.body, action) {
            return Err(reply.unreadable("XML", &format!("it is no {action}Response")).into());
        }
        quick_xml::de::from_reader(&*reply.body).map_err(|problem| {
            let quotable = || reply.unreadable("XML", &problem.to_string());
            if is_of_sts { reply.no_credential() } else { quotable() }.into()
        })
    }
}

/// Whether this is an answer to that action.
fn is_answer(body: &[u8], action: &str) -> bool {
    String::from_utf8_lossy(body).contains(&format!("<{action}Response"))
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
            assert_eq!(endpoint("ec2", region, None), format!("https://{host}/"));
        }
        assert_eq!(endpoint("sts", "cn-north-1", Some("https://a/b")), "https://a/b/");
    }
}
