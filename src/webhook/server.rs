//! Serves reviews over TLS, by HTTP/1.1, which API servers use for Services. By HTTP/2 all calls would use one connection to one
//! replica. The webhook does not offer it, because each of its connections needs as much memory as hundreds.
//!
//! Every client that can reach the port may connect, so everything is bounded: connections, the time of each step, headers, the
//! length of a body and the memory of all bodies together.

mod body;
mod request_timeout;

use std::{
    convert::Infallible,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use http_body_util::Full;
use hyper::{
    Method, Request, StatusCode,
    body::{Bytes, Incoming},
    header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::BufReader,
    net::TcpStream,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig, server::TlsStream};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use body::{Memory, Problem};
use operator_kit::{
    ListenAt, ListenError,
    connection_limit::{ConnectionLimit, Slot},
    http::Readiness,
    listener::Listener,
};
use request_timeout::RequestTimeout;

use super::{
    PATH,
    metrics::ReviewMetrics,
    mutate::Options,
    review::{Answer, OtherClasses, Outcome, review, status},
};

/// Connections at once. Each call at the same time has its own, and an API server keeps up to 25 of them for later.
const CONNECTIONS: usize = 152;

/// How long a connection is kept without a request. API servers drop it after 90 s. If the webhook dropped it first, a review
/// could be on its way already, and the API server does not repeat it.
const IDLE: Duration = Duration::from_secs(120);

/// How long a client may take to agree on TLS.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);

/// How long a request may take from its first byte to the answer: the API server waits for 5 s.
const REQUEST_TIME: Duration = Duration::from_secs(4);

/// How long a review may take that is longer than [`body::OWN`], or has such an answer, to arrive and to find memory.
const BODY_TIME: Duration = Duration::from_secs(2);

/// How long a connection that must close may take to answer a request that has arrived. One whose request has not ends at once: clients
/// that never finish a request would keep all places otherwise.
const LEAVE_TIME: Duration = Duration::from_secs(1);

/// How long connections may last after the stop.
pub const LONGEST_STOP: Duration = Duration::from_secs(10);

/// How long idle connections stay open after the stop. If a connection is closed at once, a request on its way is lost.
const LINGER: Duration = Duration::from_secs(2);

/// What all headers of a request may hold.
const MOST_HEADERS: usize = 16 * 1024;

/// What is read from a connection at once. Without it, rustls reads 4 KiB at a time, so most reviews took two reads.
const READ: usize = 8 * 1024;

/// The buffer of TLS for a client that reads nothing.
const UNSENT: usize = 16 * 1024;

/// What a connection may hold: what was read, the longest message of an incomplete handshake, what TLS has not taken apart yet, the
/// head of a request, its body or the answer, and the part of the answer that is not sent yet.
const ROOM: usize = READ + 64 * 1024 + 16 * 1024 + MOST_HEADERS + body::OWN + UNSENT;

// While clients wait, they can make the program hold half of what its Pod may take: 152 of 152 KiB, and 9 MiB. The other half is
// for the program itself, and for the one review that is being read.
const _: () = assert!(CONNECTIONS * ROOM + body::SHARED + body::ANSWERS <= 32 * 1024 * 1024);

/// What answers reviews.
#[derive(Debug)]
pub struct Webhook {
    options: Options,
    others: OtherClasses,
    metrics: ReviewMetrics,
    readiness: Readiness,
    memory: Memory,
}

impl Webhook {
    /// A webhook that changes Pods by these options.
    pub fn new(options: Options, others: OtherClasses, metrics: ReviewMetrics, readiness: Readiness) -> Self {
        Self { options, others, metrics, readiness, memory: Memory::new() }
    }

    async fn respond(&self, request: Request<Incoming>, slot: &Slot) -> hyper::Response<Full<Bytes>> {
        let get = matches!(*request.method(), Method::GET | Method::HEAD);
        let response = match request.uri().path() {
            PATH if request.method() == Method::POST => {
                let start = Instant::now();
                let (outcome, response) = self.answer(request.into_body(), start, slot).await;
                self.metrics.answered(outcome, start.elapsed());
                response
            }
            PATH => not_allowed("POST"),
            "/healthz" if get => text(StatusCode::OK, "ok\n"),
            "/readyz" if get && self.readiness.is_ready() => text(StatusCode::OK, "ready\n"),
            "/readyz" if get => text(StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
            "/healthz" | "/readyz" => not_allowed("GET, HEAD"),
            _ => text(StatusCode::NOT_FOUND, "not found; there are /mutate-v1-pod, /healthz and /readyz\n"),
        };
        slot.answered();
        response
    }

    async fn answer(
        &self,
        body: Incoming,
        start: Instant,
        slot: &Slot,
    ) -> (Outcome, hyper::Response<Full<Bytes>>) {
        let problem = match self.review(body, start + BODY_TIME, slot).await {
            Ok(answered) => return answered,
            Err(problem) => problem,
        };
        let (code, reason, outcome) = match problem {
            Problem::TooLong => (413, "RequestEntityTooLarge", Outcome::Malformed),
            Problem::Broken(_) => (400, "BadRequest", Outcome::Malformed),
            Problem::Displaced => (503, "ServiceUnavailable", Outcome::Unread),
            Problem::Late => (408, "Timeout", Outcome::Unread),
        };
        let Answer { status, body, outcome } = status(code, reason, &problem.to_string(), outcome);
        (outcome, json(status, body.into()))
    }

    async fn review(
        &self,
        body: Incoming,
        end: Instant,
        slot: &Slot,
    ) -> Result<(Outcome, hyper::Response<Full<Bytes>>), Problem> {
        let body = self.memory.read(body, end).await?;
        slot.arrived();
        let Answer { status, body: answer, outcome } = review(body.as_ref(), &self.options, self.others);
        let answer = self.memory.replace(body, answer, end).await?;
        Ok((outcome, json(status, answer)))
    }
}

fn json(status: u16, body: Bytes) -> hyper::Response<Full<Bytes>> {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    with_type(status, "application/json", body)
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
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "this path does not allow this method\n");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
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

/// Serves reviews until `stop`. Then it answers the pending requests and tells clients to reconnect elsewhere. The address is bound
/// when this returns. Call it within tokio's runtime.
pub fn serve(
    at: ListenAt,
    tls: ServerConfig,
    webhook: Webhook,
    stop: CancellationToken,
) -> Result<Server, ListenError> {
    let listener = Listener::bind(&at.chosen_by("--addr"))?;
    let address = listener.address();
    info!(%address, path = PATH, "serving");
    let mut tasks = JoinSet::new();
    tasks.spawn(listen(listener, TlsAcceptor::from(Arc::new(tls)), Arc::new(webhook), stop));
    Ok(Server { address, tasks })
}

async fn listen(listener: Listener, tls: TlsAcceptor, webhook: Arc<Webhook>, stop: CancellationToken) {
    let mut connections = ConnectionLimit::new(CONNECTIONS);
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(()) = connections.one_ended() => {}
            stream = listener.accept(), if !connections.is_full() => {
                connections.admit(|slot| serve_connection(stream, tls.clone(), Arc::clone(&webhook), slot, stop.clone()));
            }
        }
    }
    drop(listener);
    if !connections.all_ended(LONGEST_STOP).await {
        debug!("cut the connections that did not end");
    }
}

async fn serve_connection(
    stream: TcpStream,
    tls: TlsAcceptor,
    webhook: Arc<Webhook>,
    slot: Arc<Slot>,
    stop: CancellationToken,
) {
    // Answers are small, and no further data is to follow. It fails only if the connection has.
    let _ = stream.set_nodelay(true);
    let accept =
        tls.accept_with(BufReader::with_capacity(READ, stream), |tls| tls.set_buffer_limit(Some(UNSENT)));
    let handshake = tokio::select! {
        handshake = timeout(HANDSHAKE_TIME, accept) => handshake,
        () = stop.cancelled() => return,
        () = slot.must_close(IDLE) => return,
    };
    let ended = match handshake {
        Ok(Ok(stream)) => serve_requests(stream, webhook, slot, stop).await,
        Ok(Err(error)) => return debug!(%error, "the TLS handshake with a client failed"),
        Err(_) => return debug!("the TLS handshake with a client took too long"),
    };
    if let Err(error) = ended {
        debug!(%error, "a connection failed");
    }
}

async fn serve_requests(
    stream: TlsStream<BufReader<TcpStream>>,
    webhook: Arc<Webhook>,
    slot: Arc<Slot>,
    stop: CancellationToken,
) -> hyper::Result<()> {
    let stream = RequestTimeout::new(stream, Arc::clone(&slot), REQUEST_TIME);
    let service = service_fn(async |request| {
        let mut response = webhook.respond(request, &slot).await;
        if stop.is_cancelled() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok::<_, Infallible>(response)
    });
    let connection = http1::Builder::new()
        // It would run while a connection waits for a request, too.
        .header_read_timeout(None)
        .max_buf_size(MOST_HEADERS)
        // Else it reads in the middle of each review, to see whether the client leaves. A review waits for a short time only.
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service);
    let lingered = async {
        stop.cancelled().await;
        sleep(LINGER).await;
    };
    serve_until_closed(connection, http1::Connection::graceful_shutdown, &slot, lingered).await
}

/// Serves a connection until it must close or all must. Then it answers the pending request and no more. If the connection alone must
/// close, it does not wait for the rest of a request.
async fn serve_until_closed<C: Future<Output = hyper::Result<()>>>(
    connection: C,
    take_no_more: impl FnOnce(Pin<&mut C>),
    slot: &Slot,
    stop: impl Future<Output = ()>,
) -> hyper::Result<()> {
    let mut connection = pin!(connection);
    let grace = tokio::select! {
        ended = connection.as_mut() => return ended,
        () = stop => LONGEST_STOP,
        () = slot.must_close(IDLE) => if slot.is_answering() { LEAVE_TIME } else { Duration::ZERO },
    };
    take_no_more(connection.as_mut());
    timeout(grace, connection).await.unwrap_or(Ok(()))
}

#[cfg(test)]
mod tests;
