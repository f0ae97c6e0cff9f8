//! A relay to an HTTP server that answers some requests wrongly, late or not at all.

use std::{
    convert::Infallible,
    io::{self, Write as _},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, future::pending, stream};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{
    Request, Response, Uri,
    body::{Bytes, Frame, Incoming},
    header::{self, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use tokio::{net::TcpListener, task::JoinSet, time::sleep};

/// Forwards requests, except those with a [rule](Self::rule), and records all of them. Dropping it ends its connections.
///
/// It refuses requests without a `User-Agent` header, because the operator names itself to every cloud, and does not record them.
pub struct HttpRelay {
    address: SocketAddr,
    upstream: Arc<Mutex<SocketAddr>>,
    state: Arc<Mutex<State>>,
    _running: JoinSet<()>,
}

/// A recorded request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its method, in capitals.
    pub method: String,
    /// Its path and its query.
    pub path: String,
    /// Its body.
    pub body: String,
}

/// What the relay does with a request.
#[derive(Clone, Debug)]
pub enum Does {
    /// The relay answers it.
    Answer {
        /// The status.
        status: u16,
        /// The headers' names and values.
        headers: Vec<(&'static str, String)>,
        /// The body.
        body: String,
    },
    /// The request arrives, and its answer does not.
    Hang,
    /// The connection ends in the middle of the server's answer.
    CutOff,
    /// The relay forwards the request only after this time.
    Delay(Duration),
}

#[derive(Default)]
struct State {
    rules: Vec<Rule>,
    seen: Vec<Seen>,
}

struct Rule {
    is_for: Box<dyn Fn(&Seen) -> bool + Send + Sync>,
    does: Does,
}

type Body = BoxBody<Bytes, io::Error>;
type Upstream = Client<HttpConnector, Full<Bytes>>;

impl HttpRelay {
    /// A relay before the server at `upstream`, on a port of its own. Must be called within a tokio runtime.
    pub async fn start(upstream: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("listening for a relay")?;
        let address = listener.local_addr()?;
        let state = Arc::<Mutex<State>>::default();
        let client = Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build_http();
        let mut running = JoinSet::new();
        let relay = Relay { upstream, client, state: Arc::clone(&state) };
        let upstream = Arc::new(Mutex::new(upstream));
        let leads_to = Arc::clone(&upstream);
        running.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let relay = Relay { upstream: *lock(&leads_to), ..relay.clone() };
                let service = service_fn(move |request| relay.clone().relay(request));
                // Errors are expected: a client may close the connection, and a rule may end it.
                connections.spawn(async move {
                    drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
                });
            }
        });
        Ok(Self { address, upstream, state, _running: running })
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Makes connections that come from now on lead to this server, as when a name leads to another host. Those that are open stay with
    /// theirs.
    pub fn lead_to(&self, upstream: SocketAddr) {
        *lock(&self.upstream) = upstream;
    }

    /// Adds a rule for requests of this kind. If several rules match a request, the first one applies.
    pub fn rule(&self, is_for: impl Fn(&Seen) -> bool + Send + Sync + 'static, does: Does) {
        lock(&self.state).rules.push(Rule { is_for: Box::new(is_for), does });
    }

    /// Removes all rules.
    pub fn forget_rules(&self) {
        lock(&self.state).rules.clear();
    }

    /// All requests so far, in their order.
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.state).seen.clone()
    }
}

#[derive(Clone)]
struct Relay {
    upstream: SocketAddr,
    client: Upstream,
    state: Arc<Mutex<State>>,
}

impl Relay {
    async fn relay(self, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        let what = format!("{} {}", request.method(), request.uri().path());
        Ok(self.answer(request).await.unwrap_or_else(|problem| {
            let problem = format!("the relay could not forward {what}: {problem:#}");
            // The client may keep the text to itself, and the harness shows what a macro prints to another test only.
            // If it cannot be shown, the test fails all the same.
            let _ = writeln!(io::stderr(), "{problem}");
            refusal(502, problem)
        }))
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Response<Body>> {
        let (mut head, body) = request.into_parts();
        if head.headers.get(header::USER_AGENT).is_none_or(HeaderValue::is_empty) {
            return Ok(refusal(403, "the request has no User-Agent header".to_owned()));
        }
        let body = body.collect().await?.to_bytes();
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let seen = Seen {
            method: head.method.to_string(),
            path: path.to_owned(),
            body: String::from_utf8_lossy(&body).into_owned(),
        };
        head.uri = format!("http://{}{path}", self.upstream).parse::<Uri>()?;
        let does = {
            let mut state = lock(&self.state);
            let does = state.rules.iter().find(|rule| (rule.is_for)(&seen)).map(|rule| rule.does.clone());
            state.seen.push(seen);
            does
        };
        match &does {
            Some(Does::Answer { status, headers, body }) => {
                let mut answer = refusal(*status, body.clone());
                for (name, value) in headers {
                    answer.headers_mut().insert(*name, value.parse()?);
                }
                return Ok(answer);
            }
            Some(Does::Delay(time)) => sleep(*time).await,
            Some(Does::Hang | Does::CutOff) | None => {}
        }
        let answer = self.client.request(Request::from_parts(head, Full::new(body))).await?;
        let (mut head, body) = answer.into_parts();
        let body = body.collect().await?.to_bytes();
        if let Some(Does::Hang) = does {
            pending::<()>().await;
        }
        head.headers.remove(header::TRANSFER_ENCODING);
        head.headers.insert(header::CONTENT_LENGTH, body.len().into());
        let body = if let Some(Does::CutOff) = does { cut_off(&body) } else { whole(body) };
        Ok(Response::from_parts(head, body))
    }
}

fn refusal(status: u16, text: String) -> Response<Body> {
    let mut answer = Response::new(whole(text.into()));
    *answer.status_mut() = status.try_into().unwrap_or_default();
    answer
}

fn whole(body: Bytes) -> Body {
    Full::new(body).map_err(|never| match never {}).boxed()
}

fn cut_off(body: &Bytes) -> Body {
    let half = Ok(Frame::data(body.slice(..body.len() / 2)));
    let end = stream::once(async { Err(io::Error::other("cut off")) });
    BodyExt::boxed(StreamBody::new(stream::iter([half]).chain(end)))
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
