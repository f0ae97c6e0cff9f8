//! JSON Web Tokens: one that the operator signs, and what another one says *(no client)*.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use ring::{
    rand::SystemRandom,
    signature::{RSA_PKCS1_SHA256, RsaKeyPair},
};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};
use tokio_rustls::rustls::pki_types::{PrivatePkcs8KeyDer, pem::PemObject as _};

/// A key that signs tokens.
pub(in crate::provider) struct SigningKey(RsaKeyPair);

impl SigningKey {
    /// The RSA key in this PEM, if it has one in PKCS #8.
    pub fn read(pem: &SecretString) -> Option<Self> {
        let key = PrivatePkcs8KeyDer::from_pem_slice(pem.expose_secret().as_bytes()).ok()?;
        RsaKeyPair::from_pkcs8(key.secret_pkcs8_der()).ok().map(Self)
    }

    /// A token with these claims, signed by this key, whose identifier is `id`.
    pub fn token(&self, id: &str, claims: &Value) -> Option<SecretString> {
        let head = json!({ "alg": "RS256", "typ": "JWT", "kid": id });
        let [head, claims] = [&head, claims].map(|part| BASE64_URL_SAFE_NO_PAD.encode(part.to_string()));
        let signed = format!("{head}.{claims}");
        let mut signature = vec![0; self.0.public().modulus_len()];
        self.0.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), signed.as_bytes(), &mut signature).ok()?;
        Some(format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature)).into())
    }
}

/// What this token says, if it is one. Its signature is not verified.
pub(in crate::provider) fn claims(token: &str) -> Option<Value> {
    let claims = token.split('.').nth(1)?.trim_end_matches('=');
    serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
}
