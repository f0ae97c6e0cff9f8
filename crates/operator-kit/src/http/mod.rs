//! Serves `/healthz`, `/readyz` and `/metrics`, and a [`Page`] of the program's own.
//!
//! Small on purpose: one request per connection, every connection bounded in time and their number bounded. A new connection
//! always finds a place, so that no client can block the kubelet's probes. Failing probes would restart the process.

mod readiness;
pub mod secure;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

pub use readiness::{Condition, Readiness};
pub use secure::Secure;

use crate::connection_limit::{ConnectionLimit, Slot};
use crate::listener::{Address, ListenError, Listener};

/// Connections at once for each address. Probes and scrapes need a few. With the others, many connections must follow a probe
/// before it has to leave, and by then it has its answer.
const CONNECTIONS: usize = 128;

/// The same for addresses with TLS, which needs several times as much memory. No probe comes there.
const SECURE_CONNECTIONS: usize = 32;

/// The same for an address with a [`Page`]: each connection may hold a whole page.
const PAGE_CONNECTIONS: usize = 8;

/// How long a request may take to arrive, and a client to read the answer. Probes give up after a second, scrapes after ten.
const PATIENCE: Duration = Duration::from_secs(5);

/// hyper's smallest buffer: requests are a line and a few headers.
const BUFFER: usize = 8 * 1024;

const TEXT: &str = "text/plain; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What a process serves until it stops, and where. Port 0 lets the system choose.
pub struct Endpoints {
    /// The address of `/healthz` and `/readyz`.
    pub health: Address,
    /// The address of `/metrics`. If it is the same, one server has both.
    pub metrics: Address,
    /// What protects the metrics, which then need an address of their own, as kubelets show no token. `None`: every client may read
    /// them, without TLS.
    pub secure: Option<Secure>,
    /// A document of the program's own, if it has one.
    pub page: Option<Page>,
    /// What `/readyz` answers by.
    pub readiness: Readiness,
    /// What `/metrics` shows.
    pub registry: Registry,
}

/// A document of the program's own, without TLS and to every client that reaches its address.
pub struct Page {
    /// An address of its own.
    pub at: Address,
    /// Its path, such as `/state`.
    pub path: &'static str,
    /// What it is, such as `application/json`.
    pub content_type: &'static str,
    /// Makes it anew for each request.
    pub content: Box<dyn Fn() -> String + Send + Sync>,
}

/// The servers that [`Endpoints::serve`] started. Each address has the port that the system chose if it was asked to.
#[derive(Debug)]
#[must_use = "the servers end when this is dropped"]
pub struct Servers {
    /// The address of `/healthz` and `/readyz`.
    pub health: SocketAddr,
    /// The address of `/metrics`.
    pub metrics: SocketAddr,
    /// The address of the page, if there is one.
    pub page: Option<SocketAddr>,
    tasks: JoinSet<()>,
}

impl Servers {
    /// Returns when all connections have ended after the stop, which takes 10 seconds at most.
    pub async fn stopped(mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

impl Endpoints {
    /// Serves all of it until `stop`, and no longer than what this returns lives. The addresses are bound when this returns. Call it
    /// within tokio's runtime.
    ///
    /// `/healthz` answers 200 as long as the process can answer at all; `/readyz` 200 or 503 by the readiness. Both list the
    /// conditions, a line for each.
    pub fn serve(self, stop: &CancellationToken) -> Result<Servers, ListenError> {
        let Self { mut health, metrics, secure, page, readiness, registry } = self;
        let is_shared = health.at == metrics.at;
        if is_shared && secure.is_some() {
            let problem = io::Error::other("health and secure metrics need an address each");
            return Err(ListenError::new(&metrics, problem));
        }
        let mut tasks = JoinSet::new();
        let mut start = |at: &Address, routes| start(&mut tasks, at, routes, stop);
        let (health, metrics) = if is_shared {
            health.flags.extend(metrics.flags);
            let routes = Routes { readiness: Some(readiness), registry: Some(registry), ..Routes::default() };
            let address = start(&health, routes)?;
            (address, address)
        } else {
            let routes = Routes { readiness: Some(readiness), ..Routes::default() };
            let health = start(&health, routes)?;
            let routes = Routes { registry: Some(registry), secure, ..Routes::default() };
            (health, start(&metrics, routes)?)
        };
        let page = page.map(|page| {
            let at = page.at.clone();
            start(&at, Routes { page: Some(page), ..Routes::default() })
        });
        Ok(Servers { health, metrics, page: page.transpose()?, tasks })
    }
}

fn start(
    tasks: &mut JoinSet<()>,
    at: &Address,
    routes: Routes,
    stop: &CancellationToken,
) -> Result<SocketAddr, ListenError> {
    let listener = Listener::bind(at)?;
    let address = listener.address();
    info!(%address, paths = routes.paths().join(" "), secure = routes.secure.is_some(), "serving");
    tasks.spawn(listen(listener, Arc::new(routes), stop.clone()));
    Ok(address)
}

async fn listen(listener: Listener, routes: Arc<Routes>, stop: CancellationToken) {
    let mut connections = ConnectionLimit::new(routes.connections());
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(()) = connections.one_ended() => {}
            stream = listener.accept(), if !connections.is_full() => {
                connections.admit(|slot| serve_connection(stream, Arc::clone(&routes), slot, stop.clone()));
            }
        }
    }
    drop(listener);
    connections.all_ended(2 * PATIENCE).await;
}

/// Answers one request, after the TLS handshake if the address has TLS.
async fn serve_connection(stream: TcpStream, routes: Arc<Routes>, slot: Arc<Slot>, stop: CancellationToken) {
    let Some(secure) = &routes.secure else { return serve_requests(stream, routes, slot, stop).await };
    let agreed = tokio::select! {
        agreed = secure.accept(stream) => agreed,
        () = stop.cancelled() => return,
        () = slot.must_close(PATIENCE) => return debug!("a client took too long to agree on TLS"),
    };
    match agreed {
        // Its buffers are several times as large as the rest.
        Ok(stream) => Box::pin(serve_requests(stream, routes, slot, stop)).await,
        Err(error) => debug!(%error, "a client and this server do not agree on TLS"),
    }
}

async fn serve_requests(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    routes: Arc<Routes>,
    slot: Arc<Slot>,
    stop: CancellationToken,
) {
    let service = service_fn(|request: Request<_>| {
        let (routes, slot) = (&routes, &slot);
        async move {
            let response = routes.respond(&request).await;
            slot.answered();
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        // It is a part of what the connection has for its request.
        .header_read_timeout(None)
        .keep_alive(false)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let served = async {
        tokio::select! {
            result = connection.as_mut() => result,
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    tokio::select! {
        // A request that has arrived is answered even if the connection has to close.
        biased;
        result = served => if let Err(error) = result {
            debug!(%error, "a connection failed");
        },
        () = slot.must_close(PATIENCE) => debug!("closed a connection that took too long, or whose place was needed"),
    }
}

/// What one address serves.
#[derive(Default)]
struct Routes {
    readiness: Option<Readiness>,
    registry: Option<Registry>,
    page: Option<Page>,
    /// The clients that get an answer; `None`: all.
    secure: Option<Secure>,
}

impl Routes {
    async fn respond<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        if let Some(secure) = &self.secure
            && let Err(refusal) = secure.admit(request.headers()).await
        {
            let mut response = respond(refusal.status(), TEXT, refusal.text().to_owned());
            if response.status() == StatusCode::UNAUTHORIZED {
                response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            return response;
        }
        self.answer(request.method(), request.uri().path())
    }

    /// How many connections it has at once.
    fn connections(&self) -> usize {
        match self {
            Self { page: Some(_), .. } => PAGE_CONNECTIONS,
            Self { secure: Some(_), .. } => SECURE_CONNECTIONS,
            _ => CONNECTIONS,
        }
    }

    fn paths(&self) -> Vec<&'static str> {
        let health = self.readiness.iter().flat_map(|_| ["/healthz", "/readyz"]);
        let metrics = self.registry.iter().map(|_| "/metrics");
        health.chain(metrics).chain(self.page.iter().map(|page| page.path)).collect()
    }

    fn answer(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        let content = match (path, &self.readiness, &self.registry) {
            ("/healthz", Some(readiness), _) => (StatusCode::OK, TEXT, readiness.report("ok")),
            ("/readyz", Some(readiness), _) if readiness.is_ready() => {
                (StatusCode::OK, TEXT, readiness.report("ready"))
            }
            ("/readyz", Some(readiness), _) => {
                (StatusCode::SERVICE_UNAVAILABLE, TEXT, readiness.report("not ready"))
            }
            ("/metrics", _, Some(registry)) => scrape(registry),
            _ => match self.page.as_ref().filter(|page| page.path == path) {
                Some(page) => (StatusCode::OK, page.content_type, (page.content)()),
                None => {
                    (StatusCode::NOT_FOUND, TEXT, format!("not found; there is {}\n", self.paths().join(" ")))
                }
            },
        };
        let (status, kind, body) = content;
        if status != StatusCode::NOT_FOUND && method != Method::GET && method != Method::HEAD {
            let mut response =
                respond(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n".to_owned());
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        respond(status, kind, body)
    }
}

fn scrape(registry: &Registry) -> (StatusCode, &'static str, String) {
    let mut text = String::new();
    match encode(&mut text, registry) {
        Ok(()) => (StatusCode::OK, OPEN_METRICS, text),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, TEXT, "encoding the metrics failed\n".to_owned()),
    }
}

fn respond(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
