//! Trust in one certificate, by its fingerprint.

use std::sync::Arc;

use ring::digest::{Algorithm, SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
};

/// The hash of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::provider) struct Fingerprint(Vec<u8>);

impl Fingerprint {
    /// Reads hexadecimal digits, with colons or without: 20 bytes of SHA-1, or 32 of SHA-256.
    pub(in crate::provider) fn parse(text: &str) -> Option<Self> {
        let digits: String = text.chars().filter(|it| *it != ':').collect();
        let byte = |index| u8::from_str_radix(digits.get(index..index + 2)?, 16).ok();
        let is_hex = digits.bytes().all(|it| it.is_ascii_hexdigit());
        let hash = Self((0..digits.len()).step_by(2).map(byte).collect::<Option<_>>().filter(|_| is_hex)?);
        hash.algorithm().map(|_| hash)
    }

    fn algorithm(&self) -> Option<&'static Algorithm> {
        match self.0.len() {
            20 => Some(&SHA1_FOR_LEGACY_USE_ONLY),
            32 => Some(&SHA256),
            _ => None,
        }
    }

    fn is_of(&self, certificate: &CertificateDer<'_>) -> bool {
        self.algorithm().is_some_and(|algorithm| digest(algorithm, certificate).as_ref() == self.0)
    }
}

/// Trusts the certificate with the fingerprint and no other one. The signature and the names in it do not matter.
#[derive(Debug)]
pub(super) struct Pinned {
    pub(super) fingerprint: Fingerprint,
    pub(super) provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.fingerprint.is_of(certificate) {
            return Ok(ServerCertVerified::assertion());
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    // The handshake shows that the server has the certificate's key.
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_read_in_its_usual_spellings_and_nothing_else_is_one() {
        let certificate = CertificateDer::from(b"a certificate".to_vec());
        for algorithm in [&SHA1_FOR_LEGACY_USE_ONLY, &SHA256] {
            let hash = digest(algorithm, &certificate);
            let bytes: Vec<_> = hash.as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
            for text in [bytes.join(":"), bytes.concat(), bytes.concat().to_lowercase()] {
                let fingerprint = Fingerprint::parse(&text).unwrap();
                assert!(fingerprint.is_of(&certificate), "{text}");
                assert!(!fingerprint.is_of(&CertificateDer::from(b"another".to_vec())), "{text}");
            }
            assert_eq!(Fingerprint::parse(&bytes[1..].concat()), None);
            assert_eq!(Fingerprint::parse(&bytes.concat()[1..]), None);
        }
        for text in ["", ":", "AB", &"xy".repeat(20), &"é".repeat(20), &format!("{} ", "ab".repeat(20))] {
            assert_eq!(Fingerprint::parse(text), None, "{text}");
        }
    }
}
