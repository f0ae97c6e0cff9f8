//! Alibaba Cloud's API of the RPC kind: a signed query, answered by JSON.

use std::sync::Arc;

use hyper::StatusCode;
use jiff::Timestamp;
use secrecy::{ExposeSecret as _, SecretString};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    answer::{Problem, class, next},
    settings::Settings,
    sign::request,
};
use crate::provider::{
    Error, ErrorClass,
    account::Account,
    cloud::Opening,
    http::{
        AccessKey, Assumed, Call, Caller, Client, Failure, Fresh, MOST_PAGES, Options, Query, Reply, Tokens,
        identity::read_file, too_many_pages,
    },
    region_place::RegionPlace,
};

/// The API of one region, with credentials of one account.
pub(super) struct Api {
    client: Client,
    pub(super) place: RegionPlace,
    source: Source,
    identity: Tokens<Arc<Identity>>,
    /// The account of the VMs.
    account: Account,
}

enum Source {
    /// An access key.
    Key(AccessKey),
    /// A role with its identity provider, assumed with the token in a file.
    Role([String; 3]),
}

/// Credentials, and their account.
#[derive(Debug)]
struct Identity {
    key: AccessKey,
    account: String,
}

impl Api {
    pub(super) fn new(settings: &Settings, place: RegionPlace, opening: &Opening<'_>) -> Result<Self, Error> {
        let token = settings.security_token.clone();
        let source = match (settings.key(), settings.role()) {
            (Some((id, secret)), _) => Source::Key(AccessKey { id, secret, token }),
            (None, Some(role)) => Source::Role(role),
            (None, None) => return Err(Error::new(ErrorClass::Invalid, "there are no credentials")),
        };
        let (client, account) = (Client::new(Options::default())?, Account::of(opening));
        Ok(Self { client, place, source, identity: Tokens::default(), account })
    }

    /// Where credentials come from, for people.
    pub(super) fn origin(&self) -> &'static str {
        match self.source {
            Source::Key(_) => "an access key",
            Source::Role(_) => "a role by a token of the ServiceAccount",
        }
    }

    /// The account that the credentials are of.
    pub(super) async fn account(&self) -> Result<String, Error> {
        Ok(self.identity().await?.account.clone())
    }

    /// Sends a request in the account that owns the VMs.
    pub(super) async fn call(&self, query: Query<'_>) -> Result<Reply, Error> {
        Ok(self.try_call(query).await?)
    }

    /// The same, with the cloud's own word for a failure.
    pub(super) async fn try_call(&self, query: Query<'_>) -> Result<Reply, Failure> {
        let identity = self.identity().await?;
        let reply = self.send(query, Some(&identity.key), &identity.key.secret).await?;
        let answer = accepted(reply);
        // 403 is for want of a right.
        if let Err((status, Failure { error: Error { class: ErrorClass::Unauthorized, .. }, .. })) = &answer
            && *status != StatusCode::FORBIDDEN
        {
            self.identity.forget(|it| Arc::ptr_eq(it, &identity)).await;
        }
        answer.map_err(|(_, failure)| failure)
    }

    /// Reads a list, the pages of which have it at this path.
    pub(super) async fn list<T: DeserializeOwned>(
        &self,
        query: Query<'_>,
        path: &str,
    ) -> Result<Vec<T>, Error> {
        let (mut all, mut more): (Vec<T>, Option<(&str, String)>) = (Vec::new(), None);
        for _ in 0..MOST_PAGES {
            let more_parameters = more.as_ref().map(|(name, value)| (*name, value.as_str()));
            let parameters: Vec<_> = query.parameters.iter().copied().chain(more_parameters).collect();
            let reply = self.call(Query { parameters: &parameters, ..query }).await.map_err(never_absent)?;
            let mut page: Value = reply.json()?;
            let items = page.pointer_mut(path).map(Value::take).unwrap_or_default();
            let items = serde_json::from_value::<Vec<T>>(items);
            all.extend(items.map_err(|problem| reply.unreadable("list", &problem.to_string()))?);
            more = next(&page);
            if more.is_none() {
                return Ok(all);
            }
        }
        Err(too_many_pages(query.doing))
    }

    /// Credentials of the account that owns the VMs. Another account's would see none of them.
    async fn identity(&self) -> Result<Arc<Identity>, Error> {
        let identity = self.identity.get(async || {
            let Fresh { value: key, expires } = self.key().await?;
            let query = Query::new("asking whose the credentials are", "GetCallerIdentity", &[]);
            let reply = self.send(query, Some(&key), &key.secret).await?;
            let Caller { account } =
                accepted(reply).map_err(|(_, failure)| never_absent(failure.error))?.json()?;
            Ok(Fresh { value: Arc::new(Identity { key, account }), expires })
        });
        let identity = identity.await?;
        self.account.ensure("Alibaba Cloud account", &identity.account)?;
        Ok(identity)
    }

    async fn key(&self) -> Result<Fresh<AccessKey>, Error> {
        let [role, provider, file] = match &self.source {
            Source::Key(key) => return Ok(Fresh { value: key.clone(), expires: Timestamp::MAX }),
            Source::Role(role) => role,
        };
        let token = read_file("the token of the ServiceAccount", file).await?;
        let query = Query {
            doing: "assuming the role ALIBABA_CLOUD_ROLE_ARN",
            action: "AssumeRoleWithOIDC",
            parameters: &[
                ("OIDCProviderArn", provider),
                ("OIDCToken", token.expose_secret()),
                ("RoleArn", role),
                ("RoleSessionName", "peerpod-operator"),
            ],
        };
        let reply = self.send(query, None, &token).await?;
        let Assumed { credentials } =
            accepted(reply).map_err(|(_, failure)| never_absent(failure.error))?.credential()?;
        Ok(credentials.into())
    }

    async fn send(
        &self,
        query: Query<'_>,
        key: Option<&AccessKey>,
        secret: &SecretString,
    ) -> Result<Reply, Error> {
        let Query { doing, action, parameters } = query;
        let (url, version) = service(&self.place, action);
        let date = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let nonce = format!("{:032x}", fastrand::u128(..));
        let request = request(&url, [action, version, &date, &nonce], parameters, key).ok_or_else(|| {
            let message =
                "no request can be made of the endpoint and the credentials: they have wrong characters";
            Error::new(ErrorClass::Invalid, message)
        })?;
        let call = Call::new(doing, query.pace(), request);
        self.client.send(Call { secrets: vec![secret.clone()], ..call }).await
    }
}

/// The reply if it is a success, else its status and what it means.
fn accepted(reply: Reply) -> Result<Reply, (StatusCode, Failure)> {
    reply.success_or(|reply| {
        let Problem { code, message, request_id } = serde_json::from_slice(&reply.body).unwrap_or_default();
        let message = format!("{message} (request {request_id})");
        let error = reply.error(&code, &message, class(reply.status, &code));
        (reply.status, Failure { code, error })
    })
}

/// The same error if the answer is about nothing specific that could be absent.
fn never_absent(error: Error) -> Error {
    let class = if error.class == ErrorClass::NotFound { ErrorClass::Transient } else { error.class };
    Error { class, ..error }
}

/// The address and the version of the service that does this, as the library that cloud-api-adaptor uses knows it. That one's
/// table has some more regions, which are not open to customers.
pub(super) fn service(place: &RegionPlace, action: &str) -> (String, &'static str) {
    let region = place.region.as_str();
    let is_of_hangzhou = ["cn-hangzhou", "cn-shanghai-finance-1", "cn-shenzhen-finance-1"].contains(&region);
    let is_old = is_of_hangzhou || ["cn-hangzhou-finance", "cn-north-2-gov-1"].contains(&region);
    let (host, version) = match action {
        "AssumeRoleWithOIDC" | "GetCallerIdentity" => ("sts.aliyuncs.com".to_owned(), "2015-04-01"),
        _ if action.contains("Eip") && is_old => ("vpc.aliyuncs.com".to_owned(), "2016-04-28"),
        _ if action.contains("Eip") => (format!("vpc.{region}.aliyuncs.com"), "2016-04-28"),
        _ if is_of_hangzhou => ("ecs-cn-hangzhou.aliyuncs.com".to_owned(), "2014-05-26"),
        _ if is_old => ("ecs.aliyuncs.com".to_owned(), "2014-05-26"),
        _ => (format!("ecs.{region}.aliyuncs.com"), "2014-05-26"),
    };
    let of_alibaba = || format!("https://{host}");
    (place.endpoint.clone().map_or_else(of_alibaba, |url| url.trim_end_matches('/').to_owned()), version)
}
