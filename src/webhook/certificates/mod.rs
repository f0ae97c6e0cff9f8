//! The certificate that the webhook serves, and its sources.
//!
//! | source | who writes it |
//! |---|---|
//! | two [files] | the program that mounts them; the webhook reads them again when they change |
//! | a Secret | another program, such as cert-manager; or the leading replica, if the Secret is [blank](managed_secret::blank) |
//!
//! New connections get a new certificate; open connections keep theirs. The webhook reports the [expiry] of a certificate from any
//! source.

pub mod expiry;
mod facts;
pub mod files;
pub mod managed_secret;
pub mod rotation;
pub mod secret;
pub(crate) mod validation;

use std::{fmt, sync::Arc};

use tokio::sync::watch;
use tokio_rustls::rustls::{
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

pub use self::facts::Term;

/// The certificate that the webhook serves, if there is one. It can be replaced at any time.
#[derive(Default)]
pub struct Serving(watch::Sender<Option<Arc<CertifiedKey>>>);

/// Why a certificate cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// There is no certificate in it, or one that cannot be read.
    #[error("tls.crt, or the file of the certificate, has no certificate in PEM: {0}")]
    Certificate(String),
    /// There is no private key in it, or one that cannot be read.
    #[error("tls.key, or the file of the key, has no unencrypted private key in PEM")]
    Key,
    /// The two do not belong together, or are of a kind that is not supported.
    #[error("the certificate and the private key cannot be used together: {0}")]
    Pair(String),
}

impl Serving {
    /// Serves this certificate (the server's first, then the intermediate ones) from now on, if it is valid. Returns whether it is
    /// new.
    pub fn show(&self, certificate: &[u8], key: &[u8]) -> Result<bool, CertificateError> {
        let chain = CertificateDer::pem_slice_iter(certificate)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|problem| CertificateError::Certificate(problem.to_string()))?;
        if chain.is_empty() {
            return Err(CertificateError::Certificate("there is none".to_owned()));
        }
        // The problem with a key is not reported: it could contain a part of the key.
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| CertificateError::Key)?;
        let pair = CertifiedKey::from_der(chain, key, &ring::default_provider())
            .map_err(|problem| CertificateError::Pair(problem.to_string()))?;
        Ok(self.0.send_if_modified(|shown| {
            // Each certificate has exactly one key.
            let is_new = shown.as_ref().is_none_or(|shown| shown.cert != pair.cert);
            if is_new {
                *shown = Some(Arc::new(pair));
            }
            is_new
        }))
    }

    fn shown(&self) -> Option<Arc<CertifiedKey>> {
        self.0.borrow().clone()
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello) -> Option<Arc<CertifiedKey>> {
        self.shown()
    }
}

/// Shows only whether there is a certificate.
impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Serving({})", if self.shown().is_some() { "a certificate" } else { "none" })
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertifiedKey as Made, KeyPair, generate_simple_self_signed};

    use super::*;

    #[test]
    fn a_bad_pair_does_not_replace_a_good_one() {
        let serving = Serving::default();
        let Made { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (cert, key) = (cert.pem(), signing_key.serialize_pem());
        assert_eq!(serving.show(cert.as_bytes(), key.as_bytes()), Ok(true));
        assert_eq!(serving.show(cert.as_bytes(), key.as_bytes()), Ok(false));
        let shown = serving.shown().unwrap();
        let other = KeyPair::generate().unwrap().serialize_pem();
        for (cert, key, words) in [
            ("", key.as_str(), "there is none"),
            (&key, &key, "there is none"),
            (&cert, "", "no unencrypted private key in PEM"),
            (&cert, &cert, "no unencrypted private key in PEM"),
            (&cert, &other, "cannot be used together"),
        ] {
            let problem = serving.show(cert.as_bytes(), key.as_bytes()).unwrap_err().to_string();
            assert!(problem.contains(words), "{problem}");
        }
        assert!(Arc::ptr_eq(&shown, &serving.shown().unwrap()));
    }
}
