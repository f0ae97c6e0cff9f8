//! A call that a test expects.

use std::fmt;

use hyper::{Method, Uri};
use serde_json::{Map, Value};

use super::Answer;

/// A call that a test expects, and its answer.
#[derive(Clone, Debug)]
pub struct Call {
    method: Method,
    path: String,
    body: Option<Body>,
    pub(super) answer: Answer,
}

#[derive(Clone, Debug)]
enum Body {
    Equal(Value),
    With(Value),
}

/// A call as it arrived.
pub(super) struct Arrived {
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) body: Vec<u8>,
}

impl Call {
    /// Reads an object or a list. `path` is the path of the call; if it has a query, then the call's query must be the same,
    /// in any order.
    pub fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path)
    }

    /// Creates an object. See [`get`](Self::get) for the path.
    pub fn post(path: impl Into<String>) -> Self {
        Self::new(Method::POST, path)
    }

    /// Replaces an object. See [`get`](Self::get) for the path.
    pub fn put(path: impl Into<String>) -> Self {
        Self::new(Method::PUT, path)
    }

    /// Patches or applies an object. See [`get`](Self::get) for the path.
    pub fn patch(path: impl Into<String>) -> Self {
        Self::new(Method::PATCH, path)
    }

    /// Deletes an object. See [`get`](Self::get) for the path.
    pub fn delete(path: impl Into<String>) -> Self {
        Self::new(Method::DELETE, path)
    }

    fn new(method: Method, path: impl Into<String>) -> Self {
        Self {
            method,
            path: path.into(),
            body: None,
            answer: Answer::object(&Map::<String, Value>::default()),
        }
    }

    /// The call's body must be this document, such as a JSON patch.
    #[must_use]
    pub fn body(self, document: Value) -> Self {
        Self { body: Some(Body::Equal(document)), ..self }
    }

    /// The call's body must have all members of this document, with the same values. It may have others, too.
    #[must_use]
    pub fn body_with(self, document: Value) -> Self {
        Self { body: Some(Body::With(document)), ..self }
    }

    /// The answer to the call; by default an empty object.
    #[must_use]
    pub fn answer(self, answer: Answer) -> Self {
        Self { answer, ..self }
    }

    /// Whether this call arrived; else the difference.
    pub(super) fn check(&self, arrived: &Arrived) -> Result<(), String> {
        let (path, query) =
            self.path.split_once('?').map_or((&*self.path, None), |(path, query)| (path, Some(query)));
        let same_query =
            query.is_none_or(|query| parts(query) == parts(arrived.uri.query().unwrap_or_default()));
        if self.method != arrived.method || path != arrived.uri.path() || !same_query {
            return Err(format!("unexpected call: {arrived}\n   expected now: {self}"));
        }
        let Some(body) = &self.body else { return Ok(()) };
        let found = serde_json::from_slice(&arrived.body).unwrap_or(Value::Null);
        let (holds, must, wanted) = match body {
            Body::Equal(wanted) => (found == *wanted, "be", wanted),
            Body::With(wanted) => (has(&found, wanted), "have", wanted),
        };
        if holds {
            return Ok(());
        }
        Err(format!("the body of {self}\n           is: {found}\n    must {must}: {wanted}"))
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

impl fmt::Display for Arrived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.uri)?;
        if self.body.is_empty() { Ok(()) } else { write!(f, " {}", String::from_utf8_lossy(&self.body)) }
    }
}

/// The parts of a query. kube writes an empty one first.
fn parts(query: &str) -> Vec<&str> {
    let mut parts: Vec<_> = query.split('&').filter(|part| !part.is_empty()).collect();
    parts.sort_unstable();
    parts
}

/// Whether a document has all members of another.
fn has(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => {
            wanted.iter().all(|(name, wanted)| found.get(name).is_some_and(|found| has(found, wanted)))
        }
        _ => found == wanted,
    }
}
