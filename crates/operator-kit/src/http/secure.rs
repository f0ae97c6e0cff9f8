//! Metrics only for clients that may read them: by TLS, and by a token that the API server verifies.
//!
//! A client sends a token of a ServiceAccount (`Authorization: Bearer …`). A `TokenReview` gives its account, and a
//! `SubjectAccessReview` says whether that account may `get` the path `/metrics`. A bounded number of answers is kept for a short
//! time, and few questions are asked at once: any client that reaches the port may send any number of tokens.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::Arc,
    time::{Duration, Instant},
};

use hyper::{
    HeaderMap, StatusCode,
    header::{AUTHORIZATION, HeaderValue},
};
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec},
    authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use tokio::{net::TcpStream, sync::Semaphore, time::timeout};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig, server::TlsStream};
use tracing::warn;

use crate::{
    Permission,
    api_call::{ApiError, bounded},
};

/// What a process that serves secure metrics may do in the whole cluster.
pub const PERMISSIONS: &[Permission] = &[
    Permission::new("authentication.k8s.io", &["tokenreviews"], &["create"]),
    Permission::new("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
];

/// What a reader needs the right to `get`.
pub const PATH: &str = "/metrics";

/// How long a reader is admitted without another question.
const ADMITTED: Duration = Duration::from_secs(60);

/// For how long another one is refused.
const REFUSED: Duration = Duration::from_secs(10);

/// The number of readers that are remembered. Refused clients have places of their own, so that they displace no reader.
const MOST_READERS: usize = 32;
const MOST_REFUSED: usize = 256;

/// Questions at once.
const REVIEWS: usize = 4;

/// How long a client waits for an answer of the API server: less than its connection may last.
const WAITS: Duration = Duration::from_secs(4);

/// The time from one warning about unanswered questions to the next. Any client may cause such questions.
const WARNINGS: Duration = Duration::from_secs(10);

/// What TLS may hold for a client that reads nothing.
const UNSENT: usize = 16 * 1024;

/// What protects metrics.
#[derive(Clone)]
pub struct Secure {
    tls: TlsAcceptor,
    gate: Arc<Gate>,
}

impl std::fmt::Debug for Secure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secure")
    }
}

struct Gate {
    client: Client,
    reviews: Arc<Semaphore>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    readers: Recent<[u8; 32], ()>,
    refused: Recent<[u8; 32], Refusal>,
    warned: Option<Instant>,
}

/// Why metrics are not shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// There is no token, or none that is valid.
    NoToken,
    /// The token's account has no right to them.
    NoRight,
    /// The API server did not say.
    NotKnown,
}

impl Refusal {
    pub(super) const fn status(self) -> StatusCode {
        match self {
            Self::NoToken => StatusCode::UNAUTHORIZED,
            Self::NoRight => StatusCode::FORBIDDEN,
            Self::NotKnown => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::NoToken => "show a valid token: Authorization: Bearer TOKEN\n",
            Self::NoRight => "this account has no right to get the path /metrics\n",
            Self::NotKnown => "the API server does not say whose token this is; try again later\n",
        }
    }
}

impl Secure {
    /// Asks by this client who may read.
    pub fn new(tls: ServerConfig, client: Client) -> Self {
        Self { tls: TlsAcceptor::from(Arc::new(tls)), gate: Arc::new(Gate::new(client)) }
    }

    /// Agrees on TLS with a client.
    pub(super) async fn accept(&self, stream: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        self.tls.accept_with(stream, |tls| tls.set_buffer_limit(Some(UNSENT))).await
    }

    /// Whether the sender of these headers may read metrics.
    pub(super) async fn admit(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let token = headers.get(AUTHORIZATION).and_then(bearer).ok_or(Refusal::NoToken)?;
        self.gate.admit(token).await
    }
}

/// The token in the header `Authorization`.
fn bearer(value: &HeaderValue) -> Option<&str> {
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

impl Gate {
    fn new(client: Client) -> Self {
        Self { client, reviews: Arc::new(Semaphore::new(REVIEWS)), known: Mutex::default() }
    }

    async fn admit(self: &Arc<Self>, token: &str) -> Result<(), Refusal> {
        let key = key(token);
        if let Some(known) = self.known(&key) {
            return known;
        }
        timeout(WAITS, self.ask(key, token)).await.unwrap_or(Err(Refusal::NotKnown))
    }

    /// Asks the API server. A client that no longer waits does not end that: a later one gets the answer.
    async fn ask(self: &Arc<Self>, key: [u8; 32], token: &str) -> Result<(), Refusal> {
        // It is never closed.
        let permit = Arc::clone(&self.reviews).acquire_owned().await.map_err(|_| Refusal::NotKnown)?;
        // Another connection may have asked meanwhile.
        if let Some(known) = self.known(&key) {
            return known;
        }
        let (gate, token) = (Arc::clone(self), token.to_owned());
        let review = tokio::spawn(async move {
            let answer = gate.learn(key, &token).await;
            drop(permit);
            answer
        });
        review.await.unwrap_or(Err(Refusal::NotKnown))
    }

    async fn learn(&self, key: [u8; 32], token: &str) -> Result<(), Refusal> {
        let answer = self.review(token).await;
        let mut known = self.known.lock();
        let now = Instant::now();
        match answer {
            Ok(Ok(())) => known.readers.put(key, (), now + ADMITTED, MOST_READERS, now),
            Ok(Err(refusal)) => known.refused.put(key, refusal, now + REFUSED, MOST_REFUSED, now),
            Err(_) if known.warned.is_some_and(|at| now < at + WARNINGS) => {}
            Err(ref problem) => {
                known.warned = Some(now);
                warn!(%problem, "the API server does not say who may read metrics");
            }
        }
        answer.unwrap_or(Err(Refusal::NotKnown))
    }

    fn known(&self, key: &[u8; 32]) -> Option<Result<(), Refusal>> {
        let known = self.known.lock();
        let now = Instant::now();
        known.readers.get(key, now).map(Ok).or_else(|| known.refused.get(key, now).map(Err))
    }

    async fn review(&self, token: &str) -> Result<Result<(), Refusal>, ApiError> {
        let spec = TokenReviewSpec { token: token.to_owned().into(), ..TokenReviewSpec::default() };
        let review = TokenReview { spec, ..TokenReview::default() };
        let reviews: Api<TokenReview> = Api::all(self.client.clone());
        let status = bounded(reviews.create(&PostParams::default(), &review)).await?.status;
        let Some(user) = status.filter(|status| status.authenticated == Some(true)).and_then(|it| it.user)
        else {
            return Ok(Err(Refusal::NoToken));
        };
        let attributes = NonResourceAttributes { path: Some(PATH.to_owned()), verb: Some("get".to_owned()) };
        let spec = SubjectAccessReviewSpec {
            user: user.username,
            uid: user.uid,
            groups: user.groups,
            extra: user.extra,
            non_resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let status = bounded(reviews.create(&PostParams::default(), &review)).await?.status;
        Ok(if status.is_some_and(|status| status.allowed) { Ok(()) } else { Err(Refusal::NoRight) })
    }
}

/// Identifies a token. Nothing of the token itself is kept.
fn key(token: &str) -> [u8; 32] {
    let mut key = [0; 32];
    // Both have the length of the sum.
    key.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
    key
}

/// Recent answers, each kept for a while.
struct Recent<K, V>(HashMap<K, (V, Instant)>);

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash + Clone, V: Copy> Recent<K, V> {
    fn get(&self, key: &K, now: Instant) -> Option<V> {
        self.0.get(key).filter(|(_, until)| now < *until).map(|(value, _)| *value)
    }

    /// If there are `most` already, removes the one that would expire first.
    fn put(&mut self, key: K, value: V, until: Instant, most: usize, now: Instant) {
        self.0.retain(|_, (_, until)| now < *until);
        if self.0.len() >= most
            && let Some(first) =
                self.0.iter().min_by_key(|(_, (_, until))| *until).map(|(key, _)| key.clone())
        {
            self.0.remove(&first);
        }
        self.0.insert(key, (value, until));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{Answer, ApiServer, Call};

    const REVIEWED: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

    fn review(status: &Value) -> Call {
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {}, "status": status,
        });
        Call::post(REVIEWED).answer(Answer::object(&review))
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_gets_an_answer_also_from_a_server_that_hangs() {
        let invalid = review(&json!({ "authenticated": false }));
        let server = ApiServer::expecting([Call::post(REVIEWED).answer(Answer::hang()), invalid]);
        let gate = Arc::new(Gate::new(server.client()));
        let start = tokio::time::Instant::now();
        assert_eq!(gate.admit("token").await, Err(Refusal::NotKnown));
        assert_eq!(start.elapsed(), WAITS);
        // The question goes on until its own time limit, and then another one is asked.
        assert_eq!(gate.reviews.available_permits(), REVIEWS - 1);
        while gate.reviews.available_permits() < REVIEWS {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(gate.admit("token").await, Err(Refusal::NoToken));
        assert_eq!(gate.admit("token").await, Err(Refusal::NoToken), "it is remembered");
    }

    #[test]
    fn a_token_is_what_follows_the_scheme() {
        for (header, token) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc ", Some("abc")),
            ("Bearer", None),
            ("Bearer ", None),
            ("Basic abc", None),
            ("abc", None),
            ("", None),
        ] {
            assert_eq!(bearer(&HeaderValue::from_static(header)), token, "{header}");
        }
    }

    #[test]
    fn remembered_results_expire_and_are_bounded() {
        let (mut recent, now) = (Recent::default(), Instant::now());
        let second = Duration::from_secs(1);
        for key in 0..10_u32 {
            recent.put(key, key, now + (key + 1) * second, 4, now);
        }
        assert_eq!(recent.0.len(), 4);
        assert_eq!((recent.get(&5, now), recent.get(&9, now)), (None, Some(9)), "the oldest made room");
        assert_eq!(recent.get(&7, now + 7 * second), Some(7));
        assert_eq!(recent.get(&7, now + 8 * second), None);
        recent.put(10, 10, now + 60 * second, 4, now + 30 * second);
        assert_eq!(recent.0.len(), 1, "what is past its time is forgotten");
    }
}
