use std::sync::Arc;

use tokio_rustls::rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::ring,
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};

use super::*;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn wanted(names: &[&str]) -> Wanted {
    Wanted { names: names.iter().map(|name| (*name).to_owned()).collect(), lifetime: 30 * DAY }
}

fn after(days: u32) -> Timestamp {
    let start: Timestamp = "2030-01-01T00:00:00Z".parse().unwrap();
    start + SignedDuration::try_from(days * DAY).unwrap()
}

fn write(kept: Option<&Kept>, wanted: &Wanted, settled: bool, now: Timestamp) -> Kept {
    match Kept::step(kept, wanted, settled, now).unwrap() {
        Step::Write(kept) => kept,
        Step::Wait(until) => panic!("waits until {until}"),
        Step::Settle => panic!("waits until it is trusted"),
    }
}

/// Whether a client that trusts the authorities of one takes the certificate of another.
fn trusts(client: &Kept, server: &Kept, name: &str, now: Timestamp) -> bool {
    let mut roots = RootCertStore::empty();
    for authority in &client.authorities {
        roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap()).unwrap();
    }
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
    let certificate = CertificateDer::from_pem_slice(&server.current.certificate.0).unwrap();
    let now = UnixTime::since_unix_epoch(Duration::from_secs(now.as_second().try_into().unwrap()));
    let name = ServerName::try_from(name.to_owned()).unwrap();
    verifier.verify_server_cert(&certificate, &[], &name, &[], now).is_ok()
}

#[test]
fn a_certificate_is_good_for_its_names_and_its_time() {
    let kept = write(None, &wanted(&["*.ns.svc", "127.0.0.1"]), false, after(0));
    for (name, days, expected) in [
        ("config-webhook.ns.svc", 0, true),
        ("127.0.0.1", 29, true),
        ("127.0.0.1", 31, false),
        ("127.0.0.2", 0, false),
        ("webhook.other.svc", 0, false),
    ] {
        assert_eq!(trusts(&kept, &kept, name, after(days)), expected, "{name} after {days} days");
    }
    let error = Kept::step(None, &wanted(&["not a name\u{e9}"]), false, after(0)).err().unwrap();
    assert!(error.to_string().contains("check the names"), "{error}");
}

#[test]
fn at_no_step_of_a_rotation_is_a_certificate_shown_that_is_not_trusted() {
    let (wanted, name) = (wanted(&["webhook.ns.svc"]), "webhook.ns.svc");
    let first = write(None, &wanted, false, after(0));
    assert!(Kept::step(Some(&first), &wanted, true, after(19)).unwrap() == Step::Wait(after(20)));
    let prepared = write(Some(&first), &wanted, true, after(20));
    assert!(prepared.current == first.current, "nobody shows what is not trusted yet");
    assert!(Kept::step(Some(&prepared), &wanted, false, after(20)).unwrap() == Step::Settle);
    let promoted = write(Some(&prepared), &wanted, true, after(20));
    assert!(promoted.current != first.current && promoted.next.is_none());
    // A server that has heard of the last step or not, and a client that has heard of it or not.
    for (client, server) in [
        (&first, &prepared),
        (&prepared, &first),
        (&prepared, &promoted),
        (&promoted, &prepared),
        (&promoted, &first),
    ] {
        assert!(trusts(client, server, name, after(20)));
    }
    let again = write(Some(&promoted), &wanted, true, after(40));
    assert_eq!(again.authorities.len(), 2, "the one before the last is forgotten");
    assert!(trusts(&again, &promoted, name, after(40)) && !trusts(&again, &first, name, after(20)));
}

#[test]
fn other_names_are_prepared_at_once_and_what_has_expired_is_replaced() {
    let first = write(None, &wanted(&["a.ns.svc"]), false, after(0));
    let prepared = write(Some(&first), &wanted(&["b.ns.svc"]), false, after(1));
    assert!(prepared.next.is_some() && prepared.current == first.current);
    let fresh = write(Some(&first), &wanted(&["a.ns.svc"]), false, after(31));
    assert!(fresh.next.is_none() && trusts(&fresh, &fresh, "a.ns.svc", after(31)));
}

#[test]
fn a_secret_is_read_as_it_was_written_and_a_broken_one_not_at_all() {
    let first = write(None, &wanted(&["a.ns.svc"]), false, after(0));
    let prepared = write(Some(&first), &wanted(&["a.ns.svc"]), false, after(25));
    for kept in [first, prepared] {
        let secret = kept.secret("name", None);
        assert!(Kept::is_ours(&secret));
        assert!(Kept::read(&secret).unwrap() == kept);
        for key in [CERTIFICATE, KEY, AUTHORITIES] {
            let mut broken = secret.clone();
            broken.data.as_mut().unwrap().remove(key);
            assert!(Kept::read(&broken).is_none(), "{key}");
        }
        let mut foreign = secret.clone();
        foreign.metadata.annotations = None;
        assert!(!Kept::is_ours(&foreign));
    }
}
