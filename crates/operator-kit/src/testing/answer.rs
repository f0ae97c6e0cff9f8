//! What a scripted API server answers.

use serde::Serialize;
use serde_json::{Value, json};

/// The answer to one call.
#[derive(Clone, Debug)]
pub struct Answer(pub(super) Kind);

#[derive(Clone, Debug)]
pub(super) enum Kind {
    /// A status code and a body.
    Response(u16, String),
    /// Success, with the body of the call.
    AsSent,
    /// No answer ever comes.
    Hang,
    /// The connection ends before an answer.
    Dropped,
}

impl Answer {
    /// Success, with this object, list or review.
    pub fn object(object: &impl Serialize) -> Self {
        Self::json(200, &json!(object))
    }

    /// An error as an API server sends it: a `Status` with this code, reason and message.
    pub fn error(code: u16, reason: &str, message: &str) -> Self {
        Self::status(code, reason, message, &json!({}))
    }

    /// The object of this name does not exist.
    pub fn not_found(resource: &str, name: &str) -> Self {
        let message = format!("{resource} {name:?} not found");
        Self::status(404, "NotFound", &message, &json!({ "kind": resource, "name": name }))
    }

    /// The object of this name differs from the call's precondition.
    pub fn conflict(resource: &str, name: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {resource} {name:?}");
        Self::status(409, "Conflict", &message, &json!({ "kind": resource, "name": name }))
    }

    /// A 404 in plain text: from a proxy, or from an API server that does not know the kind.
    pub fn page_not_found() -> Self {
        Self::text(404, "404 page not found\n")
    }

    /// Any text, such as a proxy's page.
    pub fn text(code: u16, text: impl Into<String>) -> Self {
        Self(Kind::Response(code, text.into()))
    }

    /// Any JSON document.
    pub fn json(code: u16, document: &Value) -> Self {
        Self::text(code, document.to_string())
    }

    /// Success, with the object that the call applied or created.
    pub fn as_sent() -> Self {
        Self(Kind::AsSent)
    }

    /// No answer ever comes.
    pub fn hang() -> Self {
        Self(Kind::Hang)
    }

    /// The connection ends before an answer.
    pub fn dropped() -> Self {
        Self(Kind::Dropped)
    }

    fn status(code: u16, reason: &str, message: &str, details: &Value) -> Self {
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "code": code, "reason": reason, "message": message, "details": details,
        });
        Self::json(code, &status)
    }
}

/// 404s that do not mean that the object of this name is absent: from a proxy, or about something else.
pub fn not_of(name: &str) -> [Answer; 4] {
    [
        Answer::page_not_found(),
        Answer::not_found("pods", &format!("not-{name}")),
        Answer::error(404, "NotFound", ""),
        Answer::status(404, "", "", &json!({ "name": name })),
    ]
}
