//! Access tokens, as endpoints of OAuth 2.0 give them.

use std::time::Duration;

use hyper::StatusCode;
use jiff::Timestamp;
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::Value;

use super::{Call, Client, Fresh, Reply, identity::read_file};
use crate::provider::{Error, ErrorClass};

/// What proves to an endpoint who asks.
#[derive(Debug)]
pub(in crate::provider) enum Proof {
    /// This secret.
    Secret(SecretString),
    /// The text of a file: what the file is, for errors, and its path.
    File(&'static str, String),
}

impl Proof {
    /// The secret, or the text of the file as it is now.
    pub async fn read(&self) -> Result<SecretString, Error> {
        match self {
            Self::Secret(secret) => Ok(secret.clone()),
            Self::File(what, path) => read_file(what, path).await,
        }
    }
}

/// What an endpoint answers.
#[derive(Deserialize)]
struct Token {
    /// The access token.
    #[serde(alias = "accessToken")]
    access_token: SecretString,
    /// In seconds: a number, or the same as text. Google also says when the token ends.
    #[serde(alias = "expireTime")]
    expires_in: Value,
}

impl From<Token> for Fresh<SecretString> {
    /// A token without a readable end counts as ended: it serves one request.
    fn from(Token { access_token, expires_in }: Token) -> Self {
        let (now, text) = (Timestamp::now(), expires_in.as_str().unwrap_or_default());
        let seconds = expires_in.as_u64().or_else(|| text.parse().ok());
        let lasts = seconds.map(|seconds| now + Duration::from_secs(seconds.min(24 * 3600)));
        let expires = lasts.or_else(|| text.parse().ok()).unwrap_or(now);
        Self { value: access_token, expires }
    }
}

impl Client {
    /// The access token that an endpoint gives for this call.
    pub async fn token(&self, call: Call) -> Result<Fresh<SecretString>, Error> {
        self.send(call).await?.success_or(Reply::refusal)?.token()
    }
}

impl Reply {
    /// The access token that the body holds. An error quotes nothing of it.
    pub fn token(&self) -> Result<Fresh<SecretString>, Error> {
        self.credential::<Token>().map(Fresh::from)
    }

    /// The error of an endpoint that gives no token. Endpoints answer 400 with a code to credentials that they refuse.
    pub fn refusal(&self) -> Error {
        let messages = ["/error_description", "/errorMessage", "/error/message"];
        let [code, message, of_google] =
            self.texts([&["/error", "/errorCode"], &messages, &["/error/status"]]);
        let is_of_credentials = self.status == StatusCode::BAD_REQUEST && !code.is_empty();
        // Some of Google's endpoints answer in the form of its other APIs.
        let code = if code.is_empty() { of_google } else { code };
        // A description of Microsoft Entra begins with a code that is more precise.
        let precise = message.split(':').next().filter(|code| code.starts_with("AADSTS"));
        let class = is_of_credentials.then_some(ErrorClass::Unauthorized);
        self.error(precise.unwrap_or(&code), &message, class)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_token_lasts_as_long_as_its_endpoint_says_and_no_longer_than_a_day() {
        let lasts = |expires_in: Value| {
            let token = json!({ "access_token": "a", "expires_in": expires_in });
            let fresh = Fresh::from(serde_json::from_value::<Token>(token).unwrap());
            (fresh.expires.as_second() - Timestamp::now().as_second() + 30) / 60
        };
        assert_eq!([lasts(json!(3600)), lasts(json!("3600"))], [60, 60]);
        let in_an_hour = (Timestamp::now() + Duration::from_secs(3600)).to_string();
        assert_eq!(lasts(json!(in_an_hour)), 60);
        assert_eq!([lasts(json!(-1)), lasts(json!("soon")), lasts(json!(u64::MAX))], [0, 0, 24 * 60]);
    }

    fn refusal(status: u16, body: &str) -> Error {
        Reply::of(status.try_into().unwrap(), body).refusal()
    }

    #[test]
    fn an_endpoint_refuses_credentials_by_a_400_with_a_code() {
        let of_code = |code: &str| json!({ "error": code }).to_string();
        let of_ibm = json!({ "errorCode": "BXNIM0415E", "errorMessage": "no" }).to_string();
        for (status, body, class) in [
            (400, of_code("invalid_request"), ErrorClass::Unauthorized),
            (400, of_code("invalid_grant"), ErrorClass::Unauthorized),
            (400, of_ibm.clone(), ErrorClass::Unauthorized),
            (400, String::new(), ErrorClass::Invalid),
            (400, "<html>".to_owned(), ErrorClass::Invalid),
            (401, String::new(), ErrorClass::Unauthorized),
            (400, json!({ "error": { "status": "INVALID_ARGUMENT" } }).to_string(), ErrorClass::Invalid),
            (404, of_ibm, ErrorClass::Invalid),
            (500, of_code("invalid_grant"), ErrorClass::Transient),
            (503, of_code("temporarily_unavailable"), ErrorClass::Transient),
        ] {
            assert_eq!(refusal(status, &body).class, class, "{status} {body}");
        }
    }

    #[test]
    fn a_refusal_has_the_code_of_any_endpoint() {
        let of_entra = |code: &str, description: &str| {
            json!({ "error": code, "error_description": description }).to_string()
        };
        for (body, code) in [
            (of_entra("invalid_client", "AADSTS7000215: Invalid client secret."), "AADSTS7000215"),
            (of_entra("invalid_request", "AADSTS90002: Tenant not found."), "AADSTS90002"),
            (of_entra("invalid_request", "Identity not found"), "invalid_request"),
            (json!({ "errorCode": "BXNIM0415E" }).to_string(), "BXNIM0415E"),
        ] {
            let error = refusal(400, &body);
            assert_eq!(error.class, ErrorClass::Unauthorized, "{body}");
            assert_eq!(error.to_string(), format!("asking failed: the cloud answered 400 {code}"));
        }
    }
}
