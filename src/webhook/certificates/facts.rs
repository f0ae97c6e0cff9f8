//! Reads certificates in PEM *(no client)*.

use jiff::{SignedDuration, Timestamp};
use operator_kit::text::hex;
use ring::digest::{SHA256, digest};
use tokio_rustls::rustls::pki_types::{CertificateDer, pem::PemObject};
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

/// A certificate with a long lifetime is overdue when it is valid for less than this.
const LONGEST_REST: SignedDuration = SignedDuration::from_hours(30 * 24);

/// The term of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// When it is overdue: when a quarter of its lifetime is left, at most 30 days. A renewal after two thirds, as here and by
    /// cert-manager, comes before.
    pub overdue: Timestamp,
    /// When it expires.
    pub expires: Timestamp,
}

impl Term {
    pub(super) fn new((from, expires): (Timestamp, Timestamp)) -> Self {
        let rest = (expires.duration_since(from) / 4).min(LONGEST_REST);
        Self { overdue: expires.saturating_sub(rest).unwrap_or(expires), expires }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_overdue_in_the_last_quarter_of_its_life_and_its_last_month() {
        let after = |hours| Timestamp::UNIX_EPOCH + SignedDuration::from_hours(hours);
        for (from, expires, overdue) in
            [(2400, 3120, 2940), (0, 40 * 24, 30 * 24), (0, 365 * 24, 335 * 24), (5, 5, 5)]
        {
            let term = Term::new((after(from), after(expires)));
            assert_eq!(term, Term { overdue: after(overdue), expires: after(expires) });
        }
    }
}
