//! Why an API server does not take a certificate that somebody else made *(no client)*.

use jiff::Timestamp;
use tokio_rustls::rustls::{
    client::verify_server_name,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
    server::ParsedCertificate,
};

use super::facts;

/// What is wrong with the first of the certificates in this PEM for an API server that calls the webhook by this name, as the
/// end of a sentence; `None` if nothing is. Whether an authority that it trusts signed it is not looked at.
pub(crate) fn refusal(certificate: &[u8], name: &str, now: Timestamp) -> Option<String> {
    let read = CertificateDer::from_pem_slice(certificate).ok().zip(facts::validity(certificate));
    let Some((der, (begins, expires))) = read else { return Some("cannot be read".to_owned()) };
    if now < begins {
        return Some(format!("is good from {begins:.0} on only"));
    }
    if expires <= now {
        return Some(format!("expired at {expires:.0}"));
    }
    let is_for_name = || {
        let (certificate, name) = (ParsedCertificate::try_from(&der).ok()?, ServerName::try_from(name).ok()?);
        verify_server_name(&certificate, &name).ok()
    };
    is_for_name().is_none().then(|| format!("is not for {name}"))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    #[test]
    fn a_certificate_is_taken_for_its_names_while_it_is_good() {
        let made = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            let mut params = CertificateParams::new(names).unwrap();
            (params.not_before, params.not_after) = (date_time_ymd(2026, 1, 1), date_time_ymd(2027, 1, 1));
            params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
        };
        let at = |pem: &str, time: &str| refusal(pem.as_bytes(), "a.ns.svc", time.parse().unwrap());
        let now = "2026-06-01T00:00:00Z";
        for good in [&["b.ns.svc", "a.ns.svc"][..], &["*.ns.svc"]] {
            assert_eq!(at(&made(good), now), None);
        }
        for other in [&["b.ns.svc"][..], &["a.ns"], &["*.svc"], &[]] {
            assert_eq!(at(&made(other), now).as_deref(), Some("is not for a.ns.svc"));
        }
        let good = made(&["a.ns.svc"]);
        let early = at(&good, "2025-12-31T00:00:00Z");
        assert_eq!(early.as_deref(), Some("is good from 2026-01-01T00:00:00Z on only"));
        let late = at(&good, "2027-01-01T00:00:00Z");
        assert_eq!(late.as_deref(), Some("expired at 2027-01-01T00:00:00Z"));
        assert_eq!(at("", now).as_deref(), Some("cannot be read"));
        assert_eq!(at("-----BEGIN CERTIFICATE-----", now).as_deref(), Some("cannot be read"));
    }
}
