//! Reads certificates in PEM *(no client)*.

use jiff::Timestamp;
use operator_kit::text::hex;
use ring::digest::{SHA256, digest};
use tokio_rustls::rustls::pki_types::{CertificateDer, pem::PemObject};
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

/// The validity of the first certificate. `None` if it cannot be read.
pub(super) fn validity(pem: &[u8]) -> Option<(Timestamp, Timestamp)> {
    validity_of(&CertificateDer::from_pem_slice(pem).ok()?)
}

/// The validity of a certificate. `None` if it cannot be read.
pub(super) fn validity_of(certificate: &CertificateDer) -> Option<(Timestamp, Timestamp)> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let validity = certificate.validity();
    // One without an end ends in the last second of the year 9999, which is later than the last timestamp.
    let moment = |seconds| {
        let end = if seconds < 0 { Timestamp::MIN } else { Timestamp::MAX };
        Timestamp::from_second(seconds).unwrap_or(end)
    };
    Some((moment(validity.not_before.timestamp()), moment(validity.not_after.timestamp())))
}

/// Whether the first certificate is signed with this authority's key.
pub(super) fn is_signed_by(pem: &[u8], authority: &[u8]) -> bool {
    let (Ok(own), Ok(authority)) =
        (CertificateDer::from_pem_slice(pem), CertificateDer::from_pem_slice(authority))
    else {
        return false;
    };
    let (Ok((_, own)), Ok((_, authority))) =
        (X509Certificate::from_der(&own), X509Certificate::from_der(&authority))
    else {
        return false;
    };
    own.verify_signature(Some(authority.public_key())).is_ok()
}

/// SHA-256 of these bytes, in lower-case hexadecimal digits.
pub(super) fn fingerprint(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}
