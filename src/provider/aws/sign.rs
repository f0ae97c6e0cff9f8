//! Requests with signatures of version 4.

use hyper::{Request, body::Bytes, header::HeaderValue};
use operator_kit::Message;
use reqsign_aws_v4::{Credential, RequestSigner};
use reqsign_core::{Context, SignRequest as _, hash::hex_sha256};
use secrecy::ExposeSecret as _;

use crate::provider::{Error, ErrorClass, http::AccessKey};

/// The request with a signature by this key for this service in this region.
pub(super) async fn signed(
    request: Request<Bytes>,
    service: &str,
    region: &str,
    key: &AccessKey,
) -> Result<Request<Bytes>, Error> {
    let (mut head, body) = request.into_parts();
    let hash = hex_sha256(&body);
    head.headers.insert(
        "x-amz-content-sha256",
        HeaderValue::try_from(hash)
            .map_err(|_| Error::new(ErrorClass::Invalid, "a hash cannot be part of a header"))?,
    );
    let credential = Credential {
        access_key_id: key.id.expose_secret().to_owned(),
        secret_access_key: key.secret.expose_secret().to_owned(),
        session_token: key.token.as_ref().map(|token| token.expose_secret().to_owned()),
        expires_in: None,
    };
    let signer = RequestSigner::new(service, region);
    signer.sign_request(&Context::new(), &mut head, Some(&credential), None).await.map_err(|problem| {
        let public = "a request cannot be signed with these credentials";
        Error::new(ErrorClass::Unauthorized, Message::new(public, format!("{public}: {:?}", problem.kind())))
    })?;
    for name in ["authorization", "x-amz-security-token"] {
        if let Some(value) = head.headers.get_mut(name) {
            value.set_sensitive(true);
        }
    }
    Ok(Request::from_parts(head, body))
}
