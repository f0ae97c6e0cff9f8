//! One `AdmissionReview` in, one out *(no client)*.

use std::{
    fmt::{self, Write as _},
    io,
};

use base64::{display::Base64Display, engine::general_purpose::STANDARD};
use operator_kit::text::cut;
use serde::{Deserialize, Serialize};
use serde_json::ser::{Formatter, Serializer};

use super::mutate::{Options, Pod, Text, mutate};

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

/// The longest uid, in bytes: those of API servers have 36. It is a part of every answer.
const MOST_UID: usize = 256;

/// Room for the patch of a usual Pod, and for its answer.
const USUAL: usize = 2048;

/// The longest problem in an answer, in bytes: it may quote what a client sent.
const MAX_MESSAGE: usize = 1024;

/// What is answered to a review.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status: 200 for an `AdmissionReview`, 400 for a `Status`.
    pub status: u16,
    /// JSON.
    pub body: Vec<u8>,
    /// The outcome.
    pub outcome: Outcome,
}

/// What becomes of Pods of another runtime class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherClasses {
    /// They are admitted unchanged: the registration sends Pods of all classes.
    Admit,
    /// They are refused: the registration sends Pods of one class. If that is another one, this webhook is being replaced, and the
    /// Pod would stay unchanged.
    Refuse,
}

/// The outcome of a review.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The Pod must be changed.
    Mutated,
    /// The Pod stays unchanged: it is no peer pod, or was changed before.
    Unchanged,
    /// The Pod cannot be changed: the answer says why.
    Refused,
    /// The request was no review.
    Malformed,
    /// The review did not arrive in time, or found no memory.
    Unread,
}

operator_kit::labels! {
    /// Its name as a metric's label.
    pub Outcome {
        Mutated => "mutated",
        Unchanged => "unchanged",
        Refused => "refused",
        Malformed => "malformed",
        Unread => "unread",
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a, R> {
    #[serde(borrow)]
    api_version: Option<Text<'a>>,
    #[serde(borrow)]
    kind: Option<Text<'a>>,
    request: Option<R>,
}

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    uid: Text<'a>,
    #[serde(borrow)]
    operation: Option<Text<'a>>,
    #[serde(borrow)]
    object: Option<Pod<'a>>,
}

/// What is left to read of a request whose object is not a Pod.
#[derive(Deserialize)]
struct Identity<'a> {
    #[serde(borrow)]
    uid: Text<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Reviewed<'a> {
    api_version: &'static str,
    kind: &'static str,
    response: Response<'a>,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Response<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<Bytes>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    warnings: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Problem<'a>>,
}

#[derive(Serialize)]
struct Problem<'a> {
    code: u16,
    reason: &'static str,
    message: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Status<'a> {
    api_version: &'static str,
    kind: &'static str,
    #[serde(rename = "status")]
    outcome: &'static str,
    #[serde(flatten)]
    problem: Problem<'a>,
}

/// Bytes in a [`GoJson`].
struct Bytes(Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

/// JSON as Go writes it: bytes are base64, which has nothing to escape.
struct GoJson;

impl Formatter for GoJson {
    fn write_byte_array<W: ?Sized + io::Write>(&mut self, writer: &mut W, bytes: &[u8]) -> io::Result<()> {
        write!(writer, "\"{}\"", Base64Display::new(bytes, &STANDARD))
    }
}

/// Answers a review. Every request gets an answer: an `AdmissionReview` if the request's uid can be read, which refuses an
/// invalid request; else a `Status` with code 400.
pub fn review(body: &[u8], options: &Options, others: OtherClasses) -> Answer {
    // JSON is UTF-8. To check all of it at once costs less than each of its texts.
    let body = match str::from_utf8(body) {
        Ok(body) => body,
        Err(error) => return malformed(&format!("the body is not an {KIND}: {error}")),
    };
    match serde_json::from_str::<Review<Request>>(body) {
        Ok(Review { request: Some(request), .. }) if request.uid.len() > MOST_UID => too_long(),
        Ok(Review { api_version, kind, request: Some(request) }) => {
            if api_version.as_deref() == Some(API_VERSION) && kind.as_deref() == Some(KIND) {
                admit(&request, options, others)
            } else {
                let problem =
                    format!("the body is not an {KIND} of {API_VERSION}, which this webhook requires");
                refuse(&request.uid, 400, "BadRequest", &problem)
            }
        }
        Ok(Review { request: None, .. }) => malformed(&format!("the {KIND} has no request")),
        Err(error) => match serde_json::from_str::<Review<Identity>>(body) {
            Ok(Review { request: Some(request), .. }) if request.uid.len() > MOST_UID => too_long(),
            Ok(Review { request: Some(request), .. }) => {
                let problem = Truncated::of(format_args!("the request cannot be read: {error}"));
                refuse(&request.uid, 400, "BadRequest", &problem)
            }
            Ok(_) | Err(_) => malformed(&Truncated::of(format_args!("the body is not an {KIND}: {error}"))),
        },
    }
}

fn admit(request: &Request, options: &Options, others: OtherClasses) -> Answer {
    let uid = &*request.uid;
    let unchanged = Response { uid, allowed: true, ..Response::default() };
    // None of the fields to change can be changed in an existing Pod.
    let created = request.operation.as_deref().is_none_or(|operation| operation == "CREATE");
    let Some(pod) = request.object.as_ref().filter(|_| created) else {
        return answer(unchanged, Outcome::Unchanged);
    };
    if others == OtherClasses::Refuse && !pod.is_of_class(&options.runtime_class) {
        let problem = Truncated::of(format_args!(
            "this replica of the webhook serves the runtime class {}; if that setting has just changed, create the Pod again in a \
             minute",
            options.runtime_class
        ));
        return refuse(uid, 503, "ServiceUnavailable", &problem);
    }
    let mutation = match mutate(pod, options) {
        Ok(mutation) => mutation,
        Err(problem) => return refuse(uid, 422, "Invalid", &problem.to_string()),
    };
    let warnings = &*mutation.warnings;
    if mutation.patch.is_empty() {
        return answer(Response { warnings, ..unchanged }, Outcome::Unchanged);
    }
    let mut patch = Vec::with_capacity(USUAL);
    match serde_json::to_writer(&mut patch, &mutation.patch) {
        Ok(()) => {
            let (patch_type, patch) = (Some("JSONPatch"), Some(Bytes(patch)));
            answer(Response { patch_type, patch, warnings, ..unchanged }, Outcome::Mutated)
        }
        Err(error) => refuse(uid, 500, "InternalError", &format!("writing the patch failed: {error}")),
    }
}

fn refuse(uid: &str, code: u16, reason: &'static str, message: &str) -> Answer {
    let status = Some(Problem { code, reason, message });
    answer(Response { uid, status, ..Response::default() }, Outcome::Refused)
}

fn answer(response: Response, outcome: Outcome) -> Answer {
    let reviewed = Reviewed { api_version: API_VERSION, kind: KIND, response };
    let mut body = Vec::with_capacity(USUAL);
    match reviewed.serialize(&mut Serializer::with_formatter(&mut body, GoJson)) {
        Ok(()) => Answer { status: 200, body, outcome },
        Err(error) => status(500, "InternalError", &format!("writing the answer failed: {error}"), outcome),
    }
}

fn too_long() -> Answer {
    malformed(&format!("the uid of the request is longer than {MOST_UID} bytes"))
}

/// The beginning of a text. No more of it is formatted.
struct Truncated(String);

impl Truncated {
    fn of(text: fmt::Arguments) -> String {
        let mut truncated = Self(String::new());
        if truncated.write_fmt(text).is_err() {
            truncated.0.push('…');
        }
        truncated.0
    }
}

impl fmt::Write for Truncated {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let room = MAX_MESSAGE - self.0.len().min(MAX_MESSAGE);
        self.0.push_str(&cut(part, room));
        if part.len() <= room { Ok(()) } else { Err(fmt::Error) }
    }
}

fn malformed(message: &str) -> Answer {
    status(400, "BadRequest", message, Outcome::Malformed)
}

/// An answer that is no `AdmissionReview`: a `Status` as the API server writes them.
pub(super) fn status(code: u16, reason: &'static str, message: &str, outcome: Outcome) -> Answer {
    let problem = Problem { code, reason, message };
    let status = Status { api_version: "v1", kind: "Status", outcome: "Failure", problem };
    // Strings and a number can always be written.
    Answer { status: code, body: serde_json::to_vec(&status).unwrap_or_default(), outcome }
}

#[cfg(test)]
mod tests;
