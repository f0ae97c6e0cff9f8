use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
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

fn write(managed: Option<&ManagedSecret>, wanted: &Wanted, settled: bool, now: Timestamp) -> ManagedSecret {
    match ManagedSecret::step(managed, wanted, settled, now).unwrap() {
        Step::Write(managed) => managed,
        Step::Wait(until) => panic!("waits until {until}"),
        Step::Settle(_) => panic!("waits until it is trusted"),
    }
}

/// Whether a client that trusts the authorities of `client` accepts the certificate of `server`.
fn trusts(client: &ManagedSecret, server: &ManagedSecret, name: &str, now: Timestamp) -> bool {
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
    let managed = write(None, &wanted(&["*.ns.svc", "127.0.0.1"]), false, after(0));
    for (name, days, expected) in [
        ("config-webhook.ns.svc", 0, true),
        ("127.0.0.1", 29, true),
        ("127.0.0.1", 31, false),
        ("127.0.0.2", 0, false),
        ("webhook.other.svc", 0, false),
    ] {
        assert_eq!(trusts(&managed, &managed, name, after(days)), expected, "{name} after {days} days");
    }
    let error = ManagedSecret::step(None, &wanted(&["not a name\u{e9}"]), false, after(0)).err().unwrap();
    assert!(error.to_string().contains("check the names"), "{error}");
}

#[test]
fn at_no_step_of_a_rotation_is_a_certificate_shown_that_is_not_trusted() {
    let (wanted, name) = (wanted(&["webhook.ns.svc"]), "webhook.ns.svc");
    let first = write(None, &wanted, false, after(0));
    assert!(ManagedSecret::step(Some(&first), &wanted, true, after(19)).unwrap() == Step::Wait(after(20)));
    let prepared = write(Some(&first), &wanted, true, after(20));
    assert!(prepared.current == first.current, "nobody shows what is not trusted yet");
    assert!(
        ManagedSecret::step(Some(&prepared), &wanted, false, after(20)).unwrap()
            == Step::Settle(prepared.current.expires)
    );
    let promoted = write(Some(&prepared), &wanted, true, after(20));
    assert!(promoted.current != first.current && promoted.next.is_none());
    // The server may or may not know the last step, and so may the client.
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
    let other = write(None, &wanted(&["a.ns.svc"]), false, after(0)).secret(&blank("name")).data.unwrap();
    for managed in [first, prepared] {
        let secret = managed.secret(&blank("name"));
        assert!(ManagedSecret::is_ours(&secret));
        assert!(ManagedSecret::read(&secret).unwrap() == managed);
        for key in [CERTIFICATE, KEY, AUTHORITIES] {
            for replacement in [None, other.get(key)] {
                let mut broken = secret.clone();
                let data = broken.data.as_mut().unwrap();
                data.remove(key);
                data.extend(replacement.map(|replacement| (key.to_owned(), replacement.clone())));
                assert!(ManagedSecret::read(&broken).is_none() && ManagedSecret::is_ours(&broken), "{key}");
                let step = ManagedSecret::next_step(
                    &broken,
                    Some(&managed),
                    &wanted(&["a.ns.svc"]),
                    false,
                    after(26),
                );
                assert!(step.unwrap() == Step::Write(managed.clone()), "what was trusted is put back: {key}");
            }
        }
    }
}

#[test]
fn a_secret_that_is_to_be_filled_is_and_keeps_what_else_is_in_it() {
    let mut empty = blank("name");
    empty.metadata.owner_references =
        Some(vec![OwnerReference { uid: "1".to_owned(), ..OwnerReference::default() }]);
    empty.metadata.resource_version = Some("7".to_owned());
    assert!(ManagedSecret::is_ours(&empty) && ManagedSecret::read(&empty).is_none());
    let Step::Write(managed) =
        ManagedSecret::next_step(&empty, None, &wanted(&["a.ns.svc"]), false, after(0)).unwrap()
    else {
        panic!("it is not filled")
    };
    let filled = managed.secret(&empty);
    assert!(ManagedSecret::is_ours(&filled) && ManagedSecret::read(&filled).unwrap() == managed);
    assert_eq!(filled.metadata.owner_references, empty.metadata.owner_references);
    let (version, before) = (filled.metadata.resource_version, empty.metadata.resource_version);
    assert_eq!(version, before, "it replaces no other content");
    assert_eq!((filled.metadata.name, filled.type_), (empty.metadata.name, empty.type_));
    // An empty Secret that the operator does not manage waits for its owner to fill it.
    assert!(!ManagedSecret::is_ours(&Secret { metadata: ObjectMeta::default(), ..blank("name") }));
}

#[test]
fn a_secret_is_ours_only_while_it_holds_what_was_written_here() {
    let written = |name| write(None, &wanted(&[name]), false, after(0)).secret(&blank("name"));
    let secret = written("a.ns.svc");
    let mut without = secret.clone();
    without.metadata.annotations = None;
    assert!(ManagedSecret::is_ours(&secret) && !ManagedSecret::is_ours(&without));
    // An apply of the data alone keeps the former annotations.
    let replaced = Secret { data: written("b.ns.svc").data, ..secret };
    assert!(!ManagedSecret::is_ours(&replaced));
}

#[test]
fn the_served_certificate_stays_trusted_after_the_secret_is_deleted() {
    let (wanted, name) = (wanted(&["a.ns.svc"]), "a.ns.svc");
    let first = write(None, &wanted, false, after(0));
    let prepared = write(Some(&first), &wanted, false, after(20));
    let promoted = write(Some(&prepared), &wanted, true, after(20));
    let again = write(Some(&promoted), &wanted, false, after(40));
    for (step, before) in [first, prepared, promoted, again].iter().enumerate() {
        let now = before.current.expires - SignedDuration::from_secs(60);
        let Step::Write(after) =
            ManagedSecret::next_step(&blank("name"), Some(before), &wanted, true, now).unwrap()
        else {
            panic!("step {step}: none is made")
        };
        assert!(after.current == before.current && after.next.is_some(), "step {step}");
        assert!(trusts(&after, before, name, now), "step {step}: what is shown is not trusted any more");
    }
}

#[test]
fn the_next_certificate_replaces_an_expired_one() {
    let wanted = wanted(&["a.ns.svc"]);
    let first = write(None, &wanted, false, after(0));
    let prepared = write(Some(&first), &wanted, false, after(29));
    assert!(prepared.current.expires == after(30), "until when the certificate that is shown is good");
    assert!(
        ManagedSecret::step(Some(&prepared), &wanted, false, after(29)).unwrap()
            == Step::Settle(prepared.current.expires)
    );
    let promoted = write(Some(&prepared), &wanted, false, after(31));
    assert!(Some(&promoted.current) == prepared.next.as_ref() && promoted.current.expires == after(59));
    let fresh = write(Some(&prepared), &wanted, false, after(60));
    assert!(fresh.next.is_none() && fresh.authorities.len() == 1);
}

#[test]
fn what_a_clock_that_was_ahead_made_is_replaced_at_once() {
    let (wanted, name) = (wanted(&["a.ns.svc"]), "a.ns.svc");
    let early = write(None, &wanted, false, after(20));
    assert!(trusts(&early, &early, name, after(17)), "clocks may differ by an eighth of the lifetime");
    assert!(ManagedSecret::step(Some(&early), &wanted, true, after(17)).unwrap() == Step::Wait(after(40)));
    let fresh = write(Some(&early), &wanted, false, after(0));
    assert!(fresh.next.is_none() && trusts(&fresh, &fresh, name, after(0)));

    // Its Secret was deleted meanwhile.
    let prepared = early.prepared(&wanted, after(0)).unwrap();
    let promoted = write(Some(&prepared), &wanted, false, after(0));
    assert!(Some(&promoted.current) == prepared.next.as_ref(), "no client accepts the other one");

    // The next one alone was made so. The one in use stays.
    let ahead = write(Some(&fresh), &wanted, true, after(20));
    let again = write(Some(&ahead), &wanted, true, after(1));
    assert!(again.current == fresh.current && again.next != ahead.next && again.next.is_some());
    assert!(trusts(&again, &fresh, name, after(1)));
    let promoted = write(Some(&again), &wanted, true, after(1));
    assert!(trusts(&again, &promoted, name, after(1)));
}

#[test]
fn api_servers_have_a_minute_to_learn_authorities_or_a_part_of_a_short_lifetime() {
    let settling = |lifetime| Wanted { lifetime, ..wanted(&["a.ns.svc"]) }.settling();
    assert_eq!(settling(30 * DAY), Duration::from_secs(60));
    assert_eq!(settling(Duration::from_secs(30)), Duration::from_millis(1500));
}
