//! Checks whether API servers accept a certificate that the operator did not create *(no client)*.

use std::time::Duration;

use jiff::Timestamp;
use tokio_rustls::rustls::{
    CertificateError, Error, RootCertStore,
    client::{verify_server_cert_signed_by_trust_anchor, verify_server_name},
    crypto::ring::default_provider,
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
    server::ParsedCertificate,
};

use super::facts;

/// Why an API server that calls the webhook by this name and trusts these authorities rejects the first certificate in this PEM, as
/// the end of a sentence; `None` if it accepts it.
pub(crate) fn problem(
    certificate: &[u8],
    authorities: Option<&[u8]>,
    name: &str,
    now: Timestamp,
) -> Option<String> {
    let read = CertificateDer::from_pem_slice(certificate).ok().zip(facts::validity(certificate));
    let Some((der, (begins, expires))) = read else { return Some("cannot be read".to_owned()) };
    if now < begins {
        return Some(format!("is not valid before {begins:.0}"));
    }
    if expires <= now {
        return Some(format!("expired at {expires:.0}"));
    }
    let is_for_name = || {
        let (certificate, name) = (ParsedCertificate::try_from(&der).ok()?, ServerName::try_from(name).ok()?);
        verify_server_name(&certificate, &name).ok()
    };
    if is_for_name().is_none() {
        return Some(format!("is not for {name}"));
    }
    let is_untrusted = authorities.is_some_and(|authorities| is_untrusted(certificate, authorities, now));
    is_untrusted.then(|| "is not signed by an authority that API servers trust".to_owned())
}

/// Whether certainly none of these authorities signed the first certificate, directly or through the others. Where that is not
/// certain, API servers may judge otherwise than this library.
fn is_untrusted(certificates: &[u8], authorities: &[u8], now: Timestamp) -> bool {
    let all = |pem| CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let (Ok(certificates), Ok(authorities)) = (all(certificates), all(authorities)) else { return false };
    let Some((own, between)) = certificates.split_first() else { return false };
    // An API server trusts a certificate that is itself among the authorities.
    if authorities.contains(own) {
        return false;
    }
    let mut trusted = RootCertStore::empty();
    let (_, unreadable) = trusted.add_parsable_certificates(authorities);
    let (Ok(own), Ok(seconds), 0) =
        (ParsedCertificate::try_from(own), u64::try_from(now.as_second()), unreadable)
    else {
        return false;
    };
    let verified = verify_server_cert_signed_by_trust_anchor(
        &own,
        &trusted,
        between,
        UnixTime::since_unix_epoch(Duration::from_secs(seconds)),
        default_provider().signature_verification_algorithms.all,
    );
    let unknown = [CertificateError::UnknownIssuer, CertificateError::BadSignature];
    matches!(verified, Err(Error::InvalidCertificate(problem)) if unknown.contains(&problem))
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};

    use super::*;

    #[test]
    fn a_certificate_is_accepted_for_its_names_while_it_is_valid() {
        let made_until = |names: &[&str], end| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            let mut params = CertificateParams::new(names).unwrap();
            (params.not_before, params.not_after) = (date_time_ymd(2026, 1, 1), end);
            params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
        };
        let made = |names: &[&str]| made_until(names, date_time_ymd(2027, 1, 1));
        let at = |pem: &str, time: &str| problem(pem.as_bytes(), None, "a.ns.svc", time.parse().unwrap());
        let now = "2026-06-01T00:00:00Z";
        for good in [&["b.ns.svc", "a.ns.svc"][..], &["*.ns.svc"]] {
            assert_eq!(at(&made(good), now), None);
        }
        for other in [&["b.ns.svc"][..], &["a.ns"], &["*.svc"], &[]] {
            assert_eq!(at(&made(other), now).as_deref(), Some("is not for a.ns.svc"));
        }
        let good = made(&["a.ns.svc"]);
        let early = at(&good, "2025-12-31T00:00:00Z");
        assert_eq!(early.as_deref(), Some("is not valid before 2026-01-01T00:00:00Z"));
        let late = at(&good, "2027-01-01T00:00:00Z");
        assert_eq!(late.as_deref(), Some("expired at 2027-01-01T00:00:00Z"));
        assert_eq!(at(&made_until(&["a.ns.svc"], date_time_ymd(9999, 12, 31)), now), None, "it has no end");
        assert_eq!(at("", now).as_deref(), Some("cannot be read"));
        assert_eq!(at("-----BEGIN CERTIFICATE-----", now).as_deref(), Some("cannot be read"));
    }

    fn authority(by: Option<&CertifiedIssuer<'_, KeyPair>>) -> CertifiedIssuer<'static, KeyPair> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        match by {
            None => CertifiedIssuer::self_signed(params, key).unwrap(),
            Some(by) => CertifiedIssuer::signed_by(params, key, by).unwrap(),
        }
    }

    #[test]
    fn a_certificate_is_accepted_if_an_authority_signed_it_or_that_is_uncertain() {
        let (root, other) = (authority(None), authority(None));
        let between = authority(Some(&root));
        let leaf = |by: &CertifiedIssuer<'_, KeyPair>| {
            let params = CertificateParams::new(vec!["a.ns.svc".to_owned()]).unwrap();
            params.signed_by(&KeyPair::generate().unwrap(), by).unwrap().pem()
        };
        let alone = || {
            let params = CertificateParams::new(vec!["a.ns.svc".to_owned()]).unwrap();
            params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
        };
        let (direct, indirect) = (leaf(&root), leaf(&between));
        let (root, other, between) = (root.pem(), other.pem(), between.pem());
        let selfsigned = alone();
        let unreadable = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let now = "2026-06-01T00:00:00Z".parse().unwrap();
        for (certificates, authorities, taken) in [
            (direct.clone(), root.clone(), true),
            (direct.clone(), format!("{other}{root}"), true),
            (direct.clone(), direct.clone(), true),
            (indirect.clone() + &between, root.clone(), true),
            (selfsigned.clone(), selfsigned.clone(), true),
            (direct.clone(), unreadable.to_owned(), true),
            (direct.clone(), format!("{other}{unreadable}"), true),
            // The authorities have the same name and different keys.
            (direct.clone(), other.clone(), false),
            (indirect.clone(), root.clone(), false),
            (indirect + &between, other, false),
            (selfsigned, alone(), false),
        ] {
            let found = problem(certificates.as_bytes(), Some(authorities.as_bytes()), "a.ns.svc", now);
            assert_eq!(found.is_none(), taken, "{found:?} of {certificates} by {authorities}");
        }
    }
}
