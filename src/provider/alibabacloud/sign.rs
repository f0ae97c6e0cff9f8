//! Requests with signatures of the kind ACS3-HMAC-SHA256.

use hyper::{
    Request,
    body::Bytes,
    header::{HeaderName, HeaderValue},
};
use reqsign_core::hash::{hex_hmac_sha256, hex_sha256};
use secrecy::ExposeSecret as _;

use crate::provider::http::AccessKey;

const ALGORITHM: &str = "ACS3-HMAC-SHA256";

/// A request to the service at `url`, signed if there is a key. `None` if something cannot be part of a request.
pub(super) fn request(
    url: &str,
    [action, version, date, nonce]: [&str; 4],
    parameters: &[(&str, &str)],
    key: Option<&AccessKey>,
) -> Option<Request<Bytes>> {
    // What is signed is what is sent.
    let mut parameters = parameters.to_vec();
    parameters.sort_unstable();
    let pairs = parameters.iter().map(|(name, value)| format!("{}={}", encoded(name), encoded(value)));
    let query = pairs.collect::<Vec<_>>().join("&");
    let separator = if query.is_empty() { "" } else { "?" };
    let mut request = Request::post(format!("{url}/{separator}{query}")).body(Bytes::new()).ok()?;
    let (host, payload) = (request.uri().authority()?.to_string(), hex_sha256(&[]));
    let mut headers = vec![
        ("host", host.as_str()),
        ("x-acs-action", action),
        ("x-acs-content-sha256", &payload),
        ("x-acs-date", date),
        ("x-acs-signature-nonce", nonce),
        ("x-acs-version", version),
    ];
    if let Some(AccessKey { id, token: Some(token), .. }) = key {
        let temporary = [("x-acs-accesskey-id", id), ("x-acs-security-token", token)];
        headers.extend(temporary.map(|(name, value)| (name, value.expose_secret())));
        headers.sort_unstable();
    }
    let authorization = key.map(|AccessKey { id, secret, .. }| {
        let lines = headers.iter().map(|(name, value)| format!("{name}:{}", value.trim()));
        let (lines, names) = (lines.collect::<Vec<_>>().join("\n"), headers.iter().map(|(name, _)| *name));
        let signed = names.collect::<Vec<_>>().join(";");
        let path = request.uri().path();
        let canonical = format!("POST\n{path}\n{query}\n{lines}\n\n{signed}\n{payload}");
        let text = format!("{ALGORITHM}\n{}", hex_sha256(canonical.as_bytes()));
        let signature = hex_hmac_sha256(secret.expose_secret().as_bytes(), text.as_bytes());
        let id = id.expose_secret();
        format!("{ALGORITHM} Credential={id},SignedHeaders={signed},Signature={signature}")
    });
    headers.extend(authorization.as_deref().map(|text| ("authorization", text)));
    headers.push(("accept", "application/json"));
    // hyper sends no length for an empty body. Alibaba Cloud's libraries send it, unsigned.
    headers.push(("content-length", "0"));
    for (name, value) in headers {
        let mut value = HeaderValue::from_str(value).ok()?;
        value.set_sensitive(["authorization", "x-acs-accesskey-id", "x-acs-security-token"].contains(&name));
        request.headers_mut().insert(HeaderName::from_static(name), value);
    }
    Some(request)
}

fn encoded(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}
