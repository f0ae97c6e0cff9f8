//! A request, and how most clouds make theirs: a method and a URL, and perhaps a form or a JSON document *(no client)*.

use hyper::{
    Method, Request,
    body::Bytes,
    header::{CONTENT_TYPE, HeaderValue},
};
use secrecy::SecretString;
use serde_json::Value;

use super::{Pace, encoded};
use crate::provider::{Error, ErrorClass};

/// A request, and what the client has to know about it.
#[derive(Debug)]
pub(in crate::provider) struct Call {
    /// What is being done, for errors: "reading the VM".
    pub doing: &'static str,
    /// Which of the cloud's rates it counts for.
    pub pace: Pace,
    /// The request, its URI with scheme and host. Headers with a credential are marked sensitive.
    pub request: Request<Bytes>,
    /// Secrets that must not be quoted, beside sensitive headers.
    pub secrets: Vec<SecretString>,
    /// Whether the cloud counts it for another project or subscription than the operator's, or for a service that deletions do not
    /// need. A tenant may name any project, also one that takes no requests. So a refusal for too many requests makes this VM wait
    /// and no other, and teaches no rate.
    pub elsewhere: bool,
}

impl Call {
    /// A request without a credential in its body.
    pub fn new(doing: &'static str, pace: Pace, request: Request<Bytes>) -> Self {
        Self { doing, pace, request, secrets: Vec::new(), elsewhere: false }
    }

    /// This request, at the [pace](Pace::of) of its method. Without a request, `unusable` says what cannot be part of one.
    pub fn of(
        doing: &'static str,
        request: Result<Request<Bytes>, hyper::http::Error>,
        unusable: &'static str,
    ) -> Result<Self, Error> {
        let request = request.map_err(|_| Error::new(ErrorClass::Invalid, unusable))?;
        Ok(Self::new(doing, Pace::of(request.method()), request))
    }

    /// A request to this URL without a body, at the [pace](Pace::of) of its method.
    pub fn to(doing: &'static str, method: Method, url: &str) -> Result<Self, Error> {
        let request = Request::builder().method(method).uri(url).body(Bytes::new());
        Self::of(doing, request, "an identifier, or an endpoint of the settings, cannot be part of a URL")
    }

    /// The same with this header. Fails if its value has characters that a header cannot have.
    pub fn header(mut self, name: &'static str, value: &str) -> Result<Self, Error> {
        let value = HeaderValue::from_str(value).map_err(|_| {
            Error::new(ErrorClass::Invalid, "a value of the settings cannot be part of a header")
        })?;
        self.request.headers_mut().insert(name, value);
        Ok(self)
    }

    /// The same with these fields of a form as its body.
    pub fn form(self, fields: &[(&str, &str)]) -> Self {
        self.with_body("application/x-www-form-urlencoded", encoded(fields.iter().copied()))
    }

    /// The same with this document as its body.
    pub fn json(self, document: &Value) -> Self {
        self.with_body("application/json", document.to_string())
    }

    /// The same, and errors do not quote these secrets in its body.
    pub fn hiding<'a>(mut self, secrets: impl IntoIterator<Item = &'a SecretString>) -> Self {
        self.secrets.extend(secrets.into_iter().cloned());
        self
    }

    fn with_body(mut self, kind: &'static str, body: String) -> Self {
        self.request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        *self.request.body_mut() = body.into();
        self
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::ACCEPT;
    use serde_json::json;

    use super::*;

    fn to(url: &str) -> Result<Call, Error> {
        Call::to("asking", Method::POST, url)
    }

    #[test]
    fn a_request_has_its_headers_and_the_type_of_its_body() {
        let bare = to("https://a/b?c").unwrap().header("accept", "application/json").unwrap();
        assert!(bare.request.body().is_empty() && !bare.request.headers().contains_key(CONTENT_TYPE));
        assert_eq!(bare.request.headers()[ACCEPT], "application/json");
        let form = to("https://a").unwrap().form(&[("a", "b c"), ("d", "&")]);
        assert_eq!(form.request.headers()[CONTENT_TYPE], "application/x-www-form-urlencoded");
        assert_eq!(&form.request.body()[..], b"a=b+c&d=%26");
        let json = to("https://a").unwrap().json(&json!({ "a": 1 }));
        assert_eq!(json.request.headers()[CONTENT_TYPE], "application/json");
        assert_eq!(&json.request.body()[..], br#"{"a":1}"#);
    }

    #[test]
    fn a_deletion_alone_has_the_pace_of_a_change() {
        let pace = |method| Call::to("asking", method, "https://a").unwrap().pace;
        assert_eq!(
            [pace(Method::GET), pace(Method::POST), pace(Method::DELETE)],
            [Pace::Read, Pace::Read, Pace::Write]
        );
    }

    #[test]
    fn what_cannot_be_sent_is_refused_by_the_settings() {
        let invalid = |call: Result<Call, Error>| call.unwrap_err().class == ErrorClass::Invalid;
        assert!(invalid(to("https://a b")) && invalid(to("https://a/\n")));
        assert!(invalid(to("https://a").unwrap().header("crn", "a\r\nb")));
    }
}
