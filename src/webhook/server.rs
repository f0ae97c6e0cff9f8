//! Serves reviews over TLS, by HTTP/2 and HTTP/1.1.
//!
//! Whoever can reach the port may connect, so everything is bounded: connections, the time that each step takes, headers,
//! a body's length and what all bodies together hold.

use std::{convert::Infallible, io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::{
    Method, Request, StatusCode,
    body::{Body, Bytes, Incoming},
    header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue},
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig, server::TlsStream};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    metrics::ReviewMetrics,
    mutate::Options,
    review::{Answer, Outcome, review, status},
};
use crate::runtime::http::Readiness;

/// Where reviews of Pods are sent.
pub const PATH: &str = "/mutate-v1-pod";

/// Connections at once: each API server keeps a few. Further ones wait in the system's backlog.
const CONNECTIONS: usize = 256;

/// How long a client may take to agree on TLS.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);

/// How long a connection may say nothing, or be at the headers of a request.
const SILENCE: Duration = Duration::from_secs(60);

/// How long a request may take from its headers to the answer: the API server waits for 10 s unless told otherwise.
const REQUEST_TIME: Duration = Duration::from_secs(10);

/// How long connections may go on after the stop.
pub const LONGEST_STOP: Duration = Duration::from_secs(10);

/// How long connections of HTTP/1.1 that are idle stay open after the stop: on one that is closed at once a request may
/// be under way, which would be lost.
const LINGER: Duration = Duration::from_secs(2);

/// How long to leave the listener alone after it failed, as it does while descriptors are short.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// The longest body: an API server takes objects up to 3 MiB, and a review holds one Pod.
const MOST_BODY: usize = 4 * 1024 * 1024;

/// What all bodies together may hold, in KiB; further requests wait.
const ALL_BODIES: usize = 16 * 1024;

/// What all headers of a request may hold.
const MOST_HEADERS: u32 = 16 * 1024;

/// Requests at once on a connection.
const STREAMS: u32 = 128;

/// What may arrive on a connection before it is read.
const WINDOW: u32 = 128 * 1024;

/// What answers reviews.
#[derive(Debug)]
pub struct Webhook {
    options: Options,
    metrics: ReviewMetrics,
    readiness: Readiness,
    /// KiB that are left for bodies.
    memory: Semaphore,
}

impl Webhook {
    /// A webhook that changes Pods by these options.
    pub fn new(options: Options, metrics: ReviewMetrics, readiness: Readiness) -> Self {
        Self { options, metrics, readiness, memory: Semaphore::new(ALL_BODIES) }
    }

    async fn respond(&self, request: Request<Incoming>) -> hyper::Response<Full<Bytes>> {
        let get = matches!(*request.method(), Method::GET | Method::HEAD);
        match request.uri().path() {
            PATH if request.method() == Method::POST => {
                let start = Instant::now();
                let answer = timeout(REQUEST_TIME, self.answer(request)).await.unwrap_or_else(|_| {
                    status(408, "Timeout", "the review did not arrive in time", Outcome::Malformed)
                });
                self.metrics.answered(answer.outcome, start.elapsed());
                json(answer)
            }
            PATH => not_allowed("POST"),
            "/healthz" if get => text(StatusCode::OK, "ok\n"),
            "/readyz" if get && self.readiness.is_ready() => text(StatusCode::OK, "ready\n"),
            "/readyz" if get => text(StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
            "/healthz" | "/readyz" => not_allowed("GET, HEAD"),
            _ => text(StatusCode::NOT_FOUND, "not found; there are /mutate-v1-pod, /healthz and /readyz\n"),
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let length = request.body().size_hint().upper().unwrap_or(u64::MAX);
        let length = usize::try_from(length).unwrap_or(usize::MAX).min(MOST_BODY);
        // At most 4096.
        let kibibytes = u32::try_from(length.div_ceil(1024)).unwrap_or(u32::MAX);
        let Ok(_memory) = self.memory.acquire_many(kibibytes).await else {
            return status(500, "InternalError", "the webhook takes no reviews", Outcome::Malformed);
        };
        match Limited::new(request.into_body(), MOST_BODY).collect().await {
            Ok(body) => review(&body.to_bytes(), &self.options),
            Err(problem) if problem.is::<LengthLimitError>() => {
                let message = format!("the review is longer than {MOST_BODY} bytes");
                status(413, "RequestEntityTooLarge", &message, Outcome::Malformed)
            }
            Err(problem) => status(
                400,
                "BadRequest",
                &format!("the review did not arrive: {problem}"),
                Outcome::Malformed,
            ),
        }
    }
}

fn json(answer: Answer) -> hyper::Response<Full<Bytes>> {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    with_type(status, "application/json", answer.body.into())
}

fn text(status: StatusCode, text: &'static str) -> hyper::Response<Full<Bytes>> {
    with_type(status, "text/plain; charset=utf-8", Bytes::from_static(text.as_bytes()))
}

fn with_type(status: StatusCode, kind: &'static str, body: Bytes) -> hyper::Response<Full<Bytes>> {
    let mut response = hyper::Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn not_allowed(allowed: &'static str) -> hyper::Response<Full<Bytes>> {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "this method is not for this path\n");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

/// Why an address cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {problem}; choose another address with --addr")]
pub struct ServeError {
    address: SocketAddr,
    problem: io::Error,
}

/// The server that [`serve`] started.
#[derive(Debug)]
pub struct Server {
    /// Where it is, with the port that the system chose if it was asked to.
    pub address: SocketAddr,
    tasks: JoinSet<()>,
}

impl Server {
    /// Returns when all connections have ended after the stop, which takes 10 seconds at most.
    pub async fn stopped(mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Serves reviews until `stop`: then whatever was asked is answered, and clients are told to go elsewhere. The address is
/// bound when this returns.
pub async fn serve(
    address: SocketAddr,
    tls: ServerConfig,
    webhook: Webhook,
    stop: CancellationToken,
) -> Result<Server, ServeError> {
    let failed = |problem| ServeError { address, problem };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    info!(%address, path = PATH, "serving");
    let mut tasks = JoinSet::new();
    tasks.spawn(listen(listener, TlsAcceptor::from(Arc::new(tls)), Arc::new(webhook), stop));
    Ok(Server { address, tasks })
}

async fn listen(listener: TcpListener, tls: TlsAcceptor, webhook: Arc<Webhook>, stop: CancellationToken) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < CONNECTIONS => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(converse(stream, tls.clone(), Arc::clone(&webhook), stop.clone()));
                }
                Err(error) => {
                    warn!(%error, "cannot accept a connection");
                    // Whichever comes first.
                    let _ = timeout(ACCEPT_PAUSE, stop.cancelled()).await;
                }
            }
        }
    }
    drop(listener);
    let ended = async { while connections.join_next().await.is_some() {} };
    if timeout(LONGEST_STOP, ended).await.is_err() {
        debug!("connections that did not end were cut");
    }
}

async fn converse(stream: TcpStream, tls: TlsAcceptor, webhook: Arc<Webhook>, stop: CancellationToken) {
    // Answers are small and nobody waits for more of them. It fails only if the connection has.
    let _ = stream.set_nodelay(true);
    let handshake = tokio::select! {
        handshake = timeout(HANDSHAKE_TIME, tls.accept(stream)) => handshake,
        () = stop.cancelled() => return,
    };
    let ended = match handshake {
        Ok(Ok(stream)) if stream.get_ref().1.alpn_protocol() == Some(b"h2") => {
            http2(stream, webhook, stop).await
        }
        Ok(Ok(stream)) => http1(stream, webhook, stop).await,
        Ok(Err(error)) => return debug!(%error, "a client and this server do not agree on TLS"),
        Err(_) => return debug!("a client took too long to agree on TLS"),
    };
    if let Err(error) = ended {
        debug!(%error, "a connection failed");
    }
}

async fn http2(
    stream: TlsStream<TcpStream>,
    webhook: Arc<Webhook>,
    stop: CancellationToken,
) -> hyper::Result<()> {
    let service = service_fn(|request| {
        let webhook = Arc::clone(&webhook);
        async move { Ok::<_, Infallible>(webhook.respond(request).await) }
    });
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(SILENCE / 2)
        .keep_alive_timeout(SILENCE / 2)
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(MOST_HEADERS)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    }
}

async fn http1(
    stream: TlsStream<TcpStream>,
    webhook: Arc<Webhook>,
    stop: CancellationToken,
) -> hyper::Result<()> {
    let service = service_fn(|request| {
        let (webhook, stop) = (Arc::clone(&webhook), stop.clone());
        async move {
            let mut response = webhook.respond(request).await;
            if stop.is_cancelled() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(SILENCE)
        .max_buf_size(MOST_HEADERS as usize)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let lingered = async {
        stop.cancelled().await;
        sleep(LINGER).await;
    };
    tokio::select! {
        ended = connection.as_mut() => ended,
        () = lingered => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    }
}

#[cfg(test)]
mod tests;
