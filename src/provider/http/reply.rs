//! What a cloud answered, and the error that it means.

use std::{sync::Arc, time::Duration};

use hyper::{HeaderMap, Response, StatusCode, body::Bytes, header};
use jiff::Timestamp;
use operator_kit::Message;
use secrecy::{ExposeSecret, SecretString};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;

use super::{
    Body,
    pacing::{Pacing, Turn},
    xml::Node,
};
use crate::provider::{Error, ErrorClass};

/// The shortest pause that a cloud may ask for.
const LEAST_RETRY_AFTER: Duration = Duration::from_secs(1);

/// The longest pause, whatever the cloud says.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(600);

/// The most characters of a cloud's text that are quoted.
const QUOTED: usize = 400;

/// The most characters of a cloud's error code that are quoted.
const CODE: usize = 80;

/// Headers with the request's ID, which the cloud's support asks for.
const REQUEST_IDS: [&str; 4] = ["x-amzn-requestid", "x-ms-request-id", "x-request-id", "x-goog-request-id"];

/// A whole answer.
#[derive(Debug)]
pub(in crate::provider) struct Reply {
    doing: &'static str,
    /// `None`: the request was not counted for the operator ([`Call::elsewhere`](super::Call)).
    turn: Option<Turn>,
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
    /// The body's place among the long ones.
    _place: Option<OwnedSemaphorePermit>,
    secrets: Vec<SecretString>,
    pacing: Arc<Pacing>,
}

impl Reply {
    pub(super) fn new(
        doing: &'static str,
        turn: Option<Turn>,
        answer: Response<Body>,
        secrets: Vec<SecretString>,
        pacing: Arc<Pacing>,
    ) -> Self {
        let (head, Body { bytes: body, place }) = answer.into_parts();
        let (status, headers) = (head.status, head.headers);
        Self { doing, turn, status, headers, body, _place: place, secrets, pacing }
    }

    /// An answer with this status and this body.
    #[cfg(test)]
    pub fn of(status: StatusCode, body: &str) -> Self {
        let mut answer = Response::new(Body { bytes: Bytes::from(body.to_owned()), place: None });
        *answer.status_mut() = status;
        Self::new("asking", None, answer, Vec::new(), Arc::default())
    }

    /// The reply if it is a success, else the error that `meaning` makes of it.
    pub fn success_or<E>(self, meaning: impl FnOnce(&Self) -> E) -> Result<Self, E> {
        if self.status.is_success() { Ok(self) } else { Err(meaning(&self)) }
    }

    /// The body as this type.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_slice(&self.body).map_err(|problem| self.unreadable("JSON", &problem.to_string()))
    }

    /// The body as an element of XML.
    pub fn xml(&self) -> Result<Node, Error> {
        let read = str::from_utf8(&self.body).map_err(|problem| problem.to_string()).and_then(Node::parse);
        read.map_err(|problem| self.unreadable("XML", &problem))
    }

    /// The body, which holds a credential, as this type. An error quotes nothing of it.
    pub fn credential<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_slice(&self.body).map_err(|_| self.no_credential())
    }

    /// The texts of an error that the body, JSON, has: each at the first of its pointers that lead to one; else empty.
    pub fn texts<const N: usize>(&self, pointers: [&[&str]; N]) -> [String; N] {
        let json: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        pointers.map(|pointers| {
            let text = pointers.iter().find_map(|pointer| json.pointer(pointer)?.as_str());
            text.unwrap_or_default().to_owned()
        })
    }

    /// The error that the body does not hold the credential that was asked for. It quotes nothing.
    pub fn no_credential(&self) -> Error {
        let text = format!("{} failed: the cloud's answer holds no credential", self.doing);
        Error::new(ErrorClass::Transient, Message::public(text))
    }

    /// The error that the body is not what the cloud should have answered.
    pub fn unreadable(&self, wanted: &str, problem: &str) -> Error {
        let public =
            format!("{} failed: the cloud's answer is not the {wanted} that was expected", self.doing);
        // The problem may quote the body, too.
        let (problem, begin) = (masked(problem, &self.secrets), String::from_utf8_lossy(&self.body));
        let full = format!("{public}: {problem}; it begins with {:?}", masked(&begin, &self.secrets));
        Error::new(ErrorClass::Transient, Message::new(public, full))
    }

    /// The error that this answer means, with the cloud's own `code` and `message`. `class` is for codes that the cloud
    /// documents; without it the status decides. A status alone never means absence.
    ///
    /// An answer without the cloud's words is probably another server's, such as a proxy's: the log quotes how it begins.
    ///
    /// If the cloud refused because of too many requests, the client becomes slower: call this once for each reply.
    pub fn error(&self, code: &str, message: &str, class: Option<ErrorClass>) -> Error {
        let class = match (class.unwrap_or_else(|| self.class()), self.turn) {
            (ErrorClass::Throttled { retry_after }, Some(turn)) => {
                let retry_after = self.retry_after().or(retry_after).map(|it| it.max(LEAST_RETRY_AFTER));
                self.pacing.refused(turn, retry_after.is_some());
                ErrorClass::Throttled { retry_after }
            }
            // An outage of another project ends for all at once.
            (ErrorClass::Throttled { .. }, None) if self.status.is_server_error() => ErrorClass::Transient,
            // A tenant can write thousands of such PeerPods. They count as stuck.
            (ErrorClass::Throttled { .. }, None) => ErrorClass::Refused,
            (class, _) => class,
        };
        let code: String = code.chars().filter(char::is_ascii_graphic).take(CODE).collect();
        let separator = if code.is_empty() { "" } else { " " };
        let status = self.status.as_u16();
        let public = format!("{} failed: the cloud answered {status}{separator}{code}", self.doing);
        let request = self.request_id().map(|id| format!(" (request {id})")).unwrap_or_default();
        let said = match message.trim() {
            "" if self.body.is_empty() => String::new(),
            "" => {
                format!(": it begins with {:?}", masked(&String::from_utf8_lossy(&self.body), &self.secrets))
            }
            message => format!(": {}", masked(message, &self.secrets)),
        };
        let full = format!("{public}{said}{request}");
        Error::new(class, Message::new(public, full))
    }

    /// How long the cloud wants no requests, or when it wants to be asked again.
    pub fn retry_after(&self) -> Option<Duration> {
        let text = self.headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
        let time = text.parse().map(Duration::from_secs).ok().or_else(|| {
            let then = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
            Some(Duration::try_from(then.duration_since(Timestamp::now())).unwrap_or_default())
        });
        time.map(|time| time.min(LONGEST_RETRY_AFTER))
    }

    fn class(&self) -> ErrorClass {
        match self.status.as_u16() {
            401 | 403 => ErrorClass::Unauthorized,
            429 => ErrorClass::Throttled { retry_after: None },
            503 if self.headers.contains_key(header::RETRY_AFTER) => {
                ErrorClass::Throttled { retry_after: None }
            }
            408 | 425 | 500..=599 => ErrorClass::Transient,
            409 | 423 => ErrorClass::Refused,
            _ => ErrorClass::Invalid,
        }
    }

    fn request_id(&self) -> Option<String> {
        let id = REQUEST_IDS.iter().find_map(|name| self.headers.get(*name))?.to_str().ok()?;
        Some(id.chars().take(CODE).collect())
    }
}

/// `text` on one line, without secrets, and short enough for a log line.
pub(super) fn masked(text: &str, secrets: &[SecretString]) -> String {
    let secrets = secrets.iter().map(ExposeSecret::expose_secret).filter(|secret| !secret.is_empty());
    let text = secrets.fold(text.to_owned(), |text, secret| text.replace(secret, "…"));
    let line = text.chars().map(|character| if character.is_control() { ' ' } else { character });
    line.take(QUOTED).collect()
}
