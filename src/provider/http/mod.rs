//! The HTTP client of all clouds with an HTTP API.
//!
//! ```text
//! mod.rs           Client: one request, one whole answer
//! connect.rs       how a host is reached: TLS, roots, proxy; and the pool of connections
//! request.rs       Call: a request, and how most clouds make one
//! reply.rs         Reply: what came back, and the error that it means
//! failure.rs       Failure: an error with the cloud's own code
//! pages.rs         the limit of lists that clouds give page by page
//! pinned.rs        trust in one certificate, by its fingerprint
//! pacing.rs        Pacing: lets requests leave no faster than a cloud takes them
//! pacing/rhythm.rs how many requests a second a cloud takes, learnt from its refusals
//! token.rs         Tokens: a credential that expires, fetched once for all callers
//! access.rs        Authorized: a client whose requests carry an access token
//! oauth.rs         how an endpoint gives a token, or refuses it
//! jwt.rs           JSON Web Tokens: one that is signed here, and what another one says
//! metadata.rs      Metadata: the server of a machine that gives tokens and keys
//! access_key.rs    AccessKey: a key that signs requests
//! signed.rs        Signed: a client whose requests are signed by a key of the account that owns the VMs
//! examine.rs       what `check` asks such a service
//! identity.rs      parts that the credentials of several clouds share
//! xml.rs           Node: an answer in XML
//! ```
//!
//! The client sends a request once. It does not retry, because controllers back off. It follows no redirect, because that would
//! carry credentials to another host. Every wait ends: [`Options`] has the deadlines. Bodies are bounded.

mod access;
mod access_key;
mod connect;
mod examine;
mod failure;
pub(super) mod identity;
pub(super) mod jwt;
mod metadata;
mod oauth;
mod pacing;
mod pages;
mod pinned;
mod reply;
mod request;
mod signed;
mod token;
pub(super) mod xml;

use std::{error, sync::Arc, time::Duration};

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    Request, Response, StatusCode, Uri,
    body::{Bytes, Incoming},
    header::{AUTHORIZATION, HeaderValue, USER_AGENT},
};
use hyper_util::client::proxy::matcher::Matcher;
use operator_kit::{Message, client::Proxies, text::causes};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

pub(super) use self::{
    access::{Authorized, TokenSource},
    access_key::{AccessKey, TemporaryKey},
    examine::{examine_account, examine_token, probe},
    failure::Failure,
    metadata::Metadata,
    oauth::Proof,
    pacing::Pace,
    pages::{MOST_PAGES, too_many_pages},
    pinned::Fingerprint,
    reply::Reply,
    request::Call,
    signed::{Authentication, CALLER, Parameters, Query, Signed, SignedAnswer, SignedApi},
    token::{Fresh, Tokens},
};
use self::{
    connect::{Connector, Pool},
    pacing::Pacing,
};
use super::{Error, ErrorClass};

/// How many idle connections to one host are usually kept.
const IDLE_CONNECTIONS: usize = 16;

/// How the operator names itself: gateways of clouds may refuse requests without a name, and audit logs show it.
const NAME: HeaderValue = HeaderValue::from_static(concat!("peerpod-operator/", env!("CARGO_PKG_VERSION")));

/// The bytes of a body that are read at once. What is longer waits for its turn.
const SMALL: usize = 64 << 10;

/// How many longer answers a client holds at a time. A tenant's PeerPods cause many requests at once, and each may be answered by a
/// list of several MiB.
const LONG_ANSWERS: usize = 2;

/// A client for one cloud, account and region. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Client {
    http: Pool,
    connector: Connector,
    options: Arc<Options>,
    pacing: Arc<Pacing>,
    long_answers: Arc<Semaphore>,
}

/// A body, and its place among the [long ones](LONG_ANSWERS), which it keeps until it is dropped.
#[derive(Debug)]
struct Body {
    bytes: Bytes,
    place: Option<OwnedSemaphorePermit>,
}

/// What holds for all requests of a client.
#[derive(Debug)]
pub(super) struct Options {
    /// How long connecting to a host may take, proxy and TLS included.
    pub connect: Duration,
    /// How long a request may take, from its turn to its answer's last byte.
    pub total: Duration,
    /// The longest body, in bytes.
    pub body: usize,
    /// How many idle connections to one host are kept.
    pub idle: usize,
    /// The proxies. `None`: hosts are reached directly. The client never sends `http:` by a proxy.
    pub proxy: Option<Arc<Matcher>>,
    /// Authorities that are trusted beside the machine's.
    pub authorities: Vec<CertificateDer<'static>>,
    /// The only certificate that is trusted, whatever authority signed it.
    pub pinned: Option<Fingerprint>,
    /// The operator's identity for a server that asks for a certificate.
    pub identity: Option<Identity>,
}

/// A certificate of the operator's own.
#[derive(Debug)]
pub(super) struct Identity {
    /// The certificate, and those of the authorities up to one that the server trusts.
    pub chain: Vec<CertificateDer<'static>>,
    /// Its private key. Its debug output shows nothing of it.
    pub key: PrivateKeyDer<'static>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            // For each name that is asked for, a nameserver that does not answer takes 5 s of it.
            connect: Duration::from_secs(10),
            total: Duration::from_secs(20),
            body: 4 << 20,
            idle: IDLE_CONNECTIONS,
            proxy: proxy(Proxies::of_environment()),
            authorities: Vec::new(),
            pinned: None,
            identity: None,
        }
    }
}

/// Whether the server's certificate was refused, for whatever reason.
pub(super) fn is_about_certificate(error: &Error) -> bool {
    error.message.for_status().contains(connect::CERTIFICATE)
}

/// Whether the authority of the server's certificate is not known.
pub(super) fn is_untrusted(error: &Error) -> bool {
    error.message.for_status().contains(connect::UNTRUSTED)
}

/// Which proxy leads to an encrypted host, if there is one.
fn proxy(variables: Proxies) -> Option<Arc<Matcher>> {
    Some(Arc::new(Matcher::builder().https(variables.https?).no(variables.exempt).build()))
}

/// Fails if this proxy is no URL. Without this, its hosts would be reached without it.
fn ensure_is_url(proxy: Option<String>) -> Result<(), Error> {
    let Some(proxy) = proxy else { return Ok(()) };
    let text = proxy.split_once("://").map_or(&*proxy, |(_, text)| text);
    let host = text.split(['/', '?', '#']).next().unwrap_or_default();
    // A password with these characters would be cut there, and its rest be part of the host or of the path.
    let is_cut = text.matches('@').count() != host.matches('@').count() || host.matches('@').count() > 1;
    let leads = Matcher::builder().https(proxy).build().intercept(&Uri::from_static("https://cloud.invalid"));
    leads.filter(|_| !is_cut).map(drop).ok_or_else(|| {
        let message = "HTTPS_PROXY is no URL that can be used: write special characters of its password as %XX, such as %40 for @, then \
                       restart the operator";
        Error::new(ErrorClass::Invalid, message)
    })
}

impl Options {
    /// For a server of the machine itself, which gives out credentials.
    pub(super) fn metadata() -> Self {
        let connect = Duration::from_secs(2);
        Self { connect, total: 3 * connect, body: 64 << 10, proxy: None, ..Self::default() }
    }
}

impl Client {
    /// A client that connects when it is first used. Fails if this machine has no trusted certificates, or names a proxy that is none.
    pub(super) fn new(options: Options) -> Result<Self, Error> {
        if options.proxy.is_some() {
            ensure_is_url(Proxies::of_environment().https)?;
        }
        let connector = connect::connector(&options)?;
        let http = connect::pool(&connector, options.idle);
        let long_answers = Arc::new(Semaphore::new(LONG_ANSWERS));
        Ok(Self { http, connector, options: Arc::new(options), pacing: Arc::default(), long_answers })
    }

    /// The same client without open connections: it connects to where the names of hosts lead from now on.
    pub(super) fn reconnected(&self) -> Self {
        Self { http: connect::pool(&self.connector, self.options.idle), ..self.clone() }
    }

    /// See [`Provider::most_at_once`](super::Provider::most_at_once).
    pub(super) fn most_at_once(&self) -> Option<usize> {
        self.pacing.most_at_once()
    }

    /// Sends it when the cloud's pace allows, and gives the whole answer, whatever its status. Fails if there is no whole answer
    /// ([`ErrorClass::Transient`]), and if the server is not trusted ([`ErrorClass::Invalid`]) or does not trust the operator's
    /// certificate ([`ErrorClass::Unauthorized`]).
    pub(super) async fn send(&self, call: Call) -> Result<Reply, Error> {
        let Call { doing, pace, mut request, mut secrets, elsewhere } = call;
        request.headers_mut().insert(USER_AGENT, NAME);
        let sensitive = request.headers().values().filter(|value| value.is_sensitive());
        secrets.extend(sensitive.filter_map(credential));
        let host = request.uri().host().unwrap_or_default().to_owned();
        let failed = |class, public: &str, why: &str| {
            let public = format!("{doing} failed: {public}");
            let full = format!("{public}: {host}: {}", reply::masked(why, &secrets));
            Error::new(class, Message::new(public, full))
        };
        let turn = self.pacing.turn(pace).await;
        let total = self.options.total;
        let out = self.pacing.leaves();
        let answer = timeout(total, self.exchange(request)).await;
        drop(out);
        let answer = match answer {
            Err(_) => {
                let why = format!("no whole answer within {total:?}");
                return Err(failed(ErrorClass::Transient, "the cloud did not answer in time", &why));
            }
            Ok(Err(NoAnswer::TooLong)) => {
                let why = format!("the body has more than {} bytes", self.options.body);
                return Err(failed(ErrorClass::Transient, "the cloud's answer is too long", &why));
            }
            Ok(Err(NoAnswer::Failed(error))) => {
                let (class, public) = connect::meaning(&*error);
                return Err(failed(class, &public, &causes(&*error)));
            }
            Ok(Ok(answer)) => answer,
        };
        let turn = (!elsewhere).then_some(turn);
        // No cloud throttles by 404, which it answers for each VM that is gone.
        if (answer.status().is_success() || answer.status() == StatusCode::NOT_FOUND)
            && let Some(turn) = turn
        {
            self.pacing.answered(turn);
        }
        Ok(Reply::new(doing, turn, answer, secrets, Arc::clone(&self.pacing)))
    }

    /// Sends it with this token as its bearer.
    pub(super) async fn send_with(&self, token: &SecretString, mut call: Call) -> Result<Reply, Error> {
        call.request.headers_mut().insert(AUTHORIZATION, bearer(token)?);
        self.send(call).await
    }

    async fn exchange(&self, request: Request<Bytes>) -> Result<Response<Body>, NoAnswer> {
        let answer = self
            .http
            .request(request.map(Full::new))
            .await
            .map_err(|error| NoAnswer::Failed(error.into()))?;
        let (head, body) = answer.into_parts();
        Ok(Response::from_parts(head, self.whole(body).await?))
    }

    async fn whole(&self, body: Incoming) -> Result<Body, NoAnswer> {
        let mut body = Limited::new(body, self.options.body);
        let (mut bytes, mut place) = (Vec::new(), None);
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame?.into_data() else { continue };
            if place.is_none() && bytes.len() + data.len() > SMALL {
                // The semaphore is never closed.
                place = Arc::clone(&self.long_answers).acquire_owned().await.ok();
            }
            bytes.extend_from_slice(&data);
        }
        // Without the room to grow.
        Ok(Body { bytes: bytes.into_boxed_slice().into(), place })
    }
}

enum NoAnswer {
    TooLong,
    Failed(Box<dyn error::Error + Send + Sync>),
}

impl From<Box<dyn error::Error + Send + Sync>> for NoAnswer {
    fn from(error: Box<dyn error::Error + Send + Sync>) -> Self {
        if error.is::<http_body_util::LengthLimitError>() { Self::TooLong } else { Self::Failed(error) }
    }
}

/// The secret part of a header: `abc` of `Bearer abc`.
fn credential(header: &HeaderValue) -> Option<SecretString> {
    let text = header.to_str().ok()?;
    Some(text.rsplit(' ').next().unwrap_or(text).into())
}

/// These pairs as the query of a URL, or as the body of a form.
pub(super) fn encoded<K: AsRef<str>, V: AsRef<str>>(pairs: impl IntoIterator<Item = (K, V)>) -> String {
    form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish()
}

/// A bearer token for the header `Authorization`. Fails if it has characters that a header cannot have.
pub(super) fn bearer(token: &SecretString) -> Result<HeaderValue, Error> {
    let value = sensitive(format!("Bearer {}", token.expose_secret()));
    value.ok_or_else(|| Error::new(ErrorClass::Unauthorized, "the access token is malformed"))
}

/// A header's value that holds a credential. None if it has characters that a header cannot have.
pub(super) fn sensitive<T>(value: T) -> Option<HeaderValue>
where
    HeaderValue: TryFrom<T>,
{
    let mut value = HeaderValue::try_from(value).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests;
