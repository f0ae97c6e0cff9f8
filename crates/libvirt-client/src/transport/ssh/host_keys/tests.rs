use super::*;

const ED25519: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA3gR3q9dXS0l7pAI5Ts5dA4ONTN6OCDmG+qrqn+EZsh";
const OTHER: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA+QiTBvoTFMn9qiSiQoVAl48QMXhM3K+351iIZBo1Le";
const ECDSA: &str = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBFMkQ06Dm0zzeyvzbphtrRUoUqiCTuB2aB5K6EppKOUaV20zJohf/Te/Aes6sZhUYcZXgXf797A+0lbxU8TI1Ys=";

fn keys(host: &str, port: u16, trust: Trust, text: &str) -> HostKeys {
    let server = Server { host: host.to_owned(), port };
    let (known, revoked) = (Vec::new(), Vec::new());
    let mut keys = HostKeys { server, trust, known, revoked, files: "known_hosts".to_owned() };
    keys.add(text);
    keys
}

fn key(text: &str) -> PublicKey {
    text.parse().unwrap()
}

#[test]
fn a_known_key_is_trusted_and_another_one_is_not() {
    let text = format!("# a comment\nnonsense\nhost {ED25519} note\n");
    for trust in [Trust::Known, Trust::New] {
        let keys = keys("HOST", 22, trust, &text);
        assert_eq!(keys.objection(&key(ED25519)), None);
        let objection = keys.objection(&key(OTHER)).unwrap();
        assert!(objection.contains("another than the one") && objection.contains("ssh-keygen -R 'HOST'"));
        // A key of another kind is no way around.
        assert!(keys.objection(&key(ECDSA)).unwrap().contains("another than the one"));
    }
    assert_eq!(keys("host", 22, Trust::Anybody, &text).objection(&key(OTHER)), None);
}

#[test]
fn a_host_without_a_key_is_trusted_only_where_new_ones_are() {
    let text = format!("other {ED25519}\n");
    assert_eq!(keys("host", 22, Trust::New, &text).objection(&key(ED25519)), None);
    let objection = keys("host", 22, Trust::Known, &text).objection(&key(ED25519)).unwrap();
    assert!(objection.contains("is not known") && objection.contains("no_verify=1"), "{objection}");
}

#[test]
fn a_revoked_key_is_never_trusted() {
    let text = format!("host {ED25519}\n@revoked * {ED25519}\n");
    for trust in [Trust::Known, Trust::New] {
        assert!(keys("host", 22, trust, &text).objection(&key(ED25519)).unwrap().contains("revoked"));
    }
}

#[test]
fn words_may_have_any_blanks_between_them() {
    let spread = |key: &str| key.replace(' ', "\t ");
    let text = format!(" host\t {}  note\n@revoked\t*  {}\n", spread(ED25519), spread(ECDSA));
    let keys = keys("host", 22, Trust::New, &text);
    assert_eq!(keys.objection(&key(ED25519)), None);
    assert!(keys.objection(&key(OTHER)).unwrap().contains("another than the one"));
    assert!(keys.objection(&key(ECDSA)).unwrap().contains("revoked"));
}

#[test]
fn a_line_is_for_the_hosts_that_it_names() {
    for (pattern, host, port, known) in [
        ("a,host", "host", 22, true),
        ("ho*", "host", 22, true),
        ("*.example.org,!b.example.org", "a.example.org", 22, true),
        ("*.example.org,!b.example.org", "b.example.org", 22, false),
        ("h?st", "host", 22, true),
        ("h?st", "hst", 22, false),
        ("*o*t*", "host", 22, true),
        ("*o*x", "host", 22, false),
        ("host", "host", 2222, false),
        ("[host]:2222", "host", 2222, true),
        ("[fe80::1]:2222", "fe80::1", 2222, true),
        ("fe80::1", "fe80::1", 22, true),
        // Made by OpenSSH's ssh-keygen -H of "host".
        ("|1|rfhaQ+dR5LyFXXonPK68vLkYNCU=|/D+7Feih/YXc4GhHgy0wrsFAu68=", "host", 22, true),
        ("|1|rfhaQ+dR5LyFXXonPK68vLkYNCU=|/D+7Feih/YXc4GhHgy0wrsFAu68=", "hosts", 22, false),
    ] {
        let keys = keys(host, port, Trust::Known, &format!("{pattern} {ED25519}\n"));
        assert_eq!(keys.objection(&key(ED25519)).is_none(), known, "{pattern} {host}:{port}");
    }
}

#[test]
fn a_host_is_asked_for_a_key_that_is_known() {
    let keys = keys("host", 22, Trust::Known, &format!("host {ECDSA}\n"));
    assert!(matches!(keys.config().preferred.key[0], russh::keys::Algorithm::Ecdsa { .. }));
    assert_eq!(keys.config().preferred.key.len(), russh::Preferred::DEFAULT.key.len());
}
