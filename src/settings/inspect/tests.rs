use secrecy::SecretString;

use super::*;
use crate::provider::CATALOGUE;

type Pairs<'a> = &'a [(&'a str, &'a str)];

fn inspect(settings: Pairs, credentials: Pairs) -> Inspection {
    inspect_with(CATALOGUE, settings, credentials)
}

fn inspect_with(catalogue: Catalogue, settings: Pairs, credentials: Pairs) -> Inspection {
    let map = |pairs: Pairs| -> BTreeMap<String, SecretString> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), SecretString::from(*value))).collect()
    };
    Inspection::judge(
        &Raw { settings: map(settings), credentials: map(credentials), ..Raw::default() },
        catalogue,
        Vec::new(),
    )
}

fn entry<'a>(inspection: &'a Inspection, name: &str) -> &'a Entry {
    let mut found = inspection.entries.iter().filter(|entry| entry.name == name);
    let entry = found.next().unwrap_or_else(|| panic!("no {name}"));
    assert!(found.next().is_none(), "{name} is there once");
    entry
}

/// What there is to say of a setting, without the texts.
fn remarks(inspection: &Inspection, name: &str) -> Vec<(Verdict, bool)> {
    entry(inspection, name).remarks.iter().map(|remark| (remark.verdict, remark.wrong)).collect()
}

const LIBVIRT: (&str, &str) = ("CLOUD_PROVIDER", "libvirt");
const URI: (&str, &str) = ("LIBVIRT_URI", "test:///default");

#[test]
fn correct_settings_have_no_remarks_and_deletion_settings_come_first() {
    let inspection = inspect(&[LIBVIRT, URI, ("VXLAN_PORT", "9000")], &[("AWS_SECRET_ACCESS_KEY", "hush")]);
    assert!(inspection.is_right());
    assert_eq!(inspection.provider, Some("libvirt"));
    let names: Vec<_> = inspection.entries.iter().map(|entry| (entry.name.as_str(), entry.used)).collect();
    let modes = [("PODVM_DEVELOPER_MODE", true), ("PEERPODS_DEVELOPER_MODE", true)];
    assert_eq!(names[..3], [("CLOUD_PROVIDER", true), modes[0], modes[1]]);
    assert_eq!(names[3..5], [("LIBVIRT_URI", true), ("LIBVIRT_POOL", true)]);
    assert!(names[5..].iter().all(|(_, used)| !used));
    assert!(inspection.entries.iter().all(|entry| entry.remarks.is_empty()));
    let shown = |name| (entry(&inspection, name).source, entry(&inspection, name).value.clone());
    assert_eq!(shown("LIBVIRT_URI"), (Source::ConfigMap, Shown::Text("test:///default".into())));
    assert_eq!(shown("LIBVIRT_POOL"), (Source::Default, Shown::Text("default".into())));
    assert_eq!(shown("LIBVIRT_CPUSET"), (Source::Default, Shown::None));
    assert_eq!(shown("AWS_SECRET_ACCESS_KEY"), (Source::Secret, Shown::Hidden));
}

#[test]
fn the_url_of_a_proxy_may_have_a_password_and_is_not_shown() {
    let inspection = inspect(&[LIBVIRT, URI, ("HTTPS_PROXY", "http://user:hush@proxy:3128")], &[]);
    let proxy = entry(&inspection, "HTTPS_PROXY");
    assert_eq!((&proxy.value, proxy.used, &*proxy.remarks), (&Shown::Hidden, false, &[][..]));
}

#[test]
fn all_problems_are_reported_at_once() {
    let inspection = inspect(
        &[
            LIBVIRT,
            ("LIBVIRT_URI", "qemu+carrier-pigeon:///system"),
            ("LIBVIRT_POOL", "one"),
            ("DISABLECVM", "yes"),
        ],
        &[("LIBVIRT_POOL", "two"), ("LIBVIRT_POOOL", "x")],
    );
    assert!(!inspection.is_right());
    assert_eq!(remarks(&inspection, "LIBVIRT_URI"), [(Verdict::Malformed, true)]);
    assert_eq!(remarks(&inspection, "LIBVIRT_POOL"), [(Verdict::Conflicting, true)]);
    assert_eq!(remarks(&inspection, "DISABLECVM"), [(Verdict::Malformed, false)]);
    assert_eq!(remarks(&inspection, "LIBVIRT_POOOL"), [(Verdict::Unknown, false)]);
    let text = &entry(&inspection, "LIBVIRT_POOOL").remarks[0].text;
    assert!(text.contains("did you mean LIBVIRT_POOL?"), "{text}");
}

#[test]
fn demands_on_tls_are_judged_as_the_webhook_judges_them() {
    const VERSION: &str = "TLS_MIN_VERSION";
    const CIPHERS: &str = "TLS_CIPHER_SUITES";
    let strong = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256";
    for (version, ciphers, blamed) in [
        ("VersionTLS12", strong, None),
        ("VersionTLS13", "", None),
        ("VersionTLS11", strong, Some(VERSION)),
        ("", "TLS_RSA_WITH_AES_128_CBC_SHA", Some(CIPHERS)),
        ("VersionTLS13", strong, Some(CIPHERS)),
    ] {
        let inspection = inspect(&[LIBVIRT, URI, (VERSION, version), (CIPHERS, ciphers)], &[]);
        assert!(inspection.is_right(), "deletions work all the same");
        for name in [VERSION, CIPHERS] {
            let expected: &[_] = if blamed == Some(name) { &[(Verdict::Malformed, false)] } else { &[] };
            assert_eq!(remarks(&inspection, name), expected, "{version} {ciphers}");
        }
    }
    // The webhook does not have the Secret.
    let inspection = inspect(&[LIBVIRT, URI], &[(VERSION, "VersionTLS11")]);
    assert_eq!(remarks(&inspection, VERSION), []);
}

#[test]
fn a_provider_that_cannot_be_served_leaves_nothing_else_unsaid() {
    for (provider, verdict) in [("", Verdict::Missing), ("openstack", Verdict::Malformed)] {
        let settings = [("CLOUD_PROVIDER", provider), ("TLS_SKIP_VERIFY", "maybe"), ("NOBODYS", "x")];
        let inspection = inspect(&settings, &[]);
        assert!(!inspection.is_right());
        assert_eq!(inspection.provider, None);
        assert_eq!(remarks(&inspection, "CLOUD_PROVIDER"), [(verdict, true)], "{provider}");
        assert_eq!(remarks(&inspection, "TLS_SKIP_VERIFY"), [(Verdict::Malformed, false)]);
        assert_eq!(remarks(&inspection, "NOBODYS"), [(Verdict::Unknown, false)]);
    }
}

#[test]
fn an_inferred_provider_and_a_default_uri_are_warnings() {
    let inspection = inspect(&[("LIBVIRT_POOL", "p")], &[]);
    assert!(inspection.is_right());
    assert_eq!(remarks(&inspection, "CLOUD_PROVIDER"), [(Verdict::Missing, false)]);
    assert_eq!(remarks(&inspection, "LIBVIRT_URI"), [(Verdict::Missing, false)]);
}

#[test]
fn what_cloud_api_adaptor_requires_is_missed_although_the_operator_does_without() {
    let gcp = [
        ("CLOUD_PROVIDER", "gcp"),
        ("GCP_PROJECT_ID", "peer-pods"),
        ("GCP_ZONE", "a"),
        ("PODVM_IMAGE_NAME", "i"),
    ];
    let inspection = inspect(&gcp, &[]);
    assert!(inspection.is_right(), "the metadata server gives tokens");
    assert_eq!(remarks(&inspection, "GCP_CREDENTIALS"), [(Verdict::Missing, false)]);
    let malformed = inspect(&gcp, &[("GCP_CREDENTIALS", "x")]);
    assert_eq!(remarks(&malformed, "GCP_CREDENTIALS"), [(Verdict::Malformed, true)]);
}

#[test]
fn an_unreadable_file_is_not_reported_as_missing() {
    let problem = SettingsError::NotText { path: "/settings/CLOUD_PROVIDER".into() };
    let inspection = Inspection::judge(&Raw::default(), CATALOGUE, vec![problem]);
    assert!(inspection.snapshot.is_none() && !inspection.is_right());
    assert_eq!(remarks(&inspection, "CLOUD_PROVIDER"), []);
}

#[test]
fn values_that_may_be_secret_are_hidden() {
    for (uri, shown) in [
        ("qemu+ssh://root:hush@host/system", "qemu+ssh://root:(hidden)@host/system"),
        ("qemu+ssh://root:hu/s@h@host/system", "qemu+ssh://root:(hidden)@host/system"),
        ("root:hush@host", "root:(hidden)@host"),
        ("qemu+ssh://host/system?password=hush", "qemu+ssh://host/system?(hidden)"),
        ("qemu+ssh://root:hu?sh@host/system?x=hush", "qemu+ssh://root:(hidden)@host/system?(hidden)"),
    ] {
        let inspection = inspect(&[LIBVIRT, ("LIBVIRT_URI", uri)], &[]);
        assert_eq!(remarks(&inspection, "LIBVIRT_URI"), [(Verdict::Malformed, true)], "{uri}");
        assert_eq!(entry(&inspection, "LIBVIRT_URI").value, Shown::Text(shown.into()));
        assert!(!format!("{:?}", inspection.entries).contains("hush"), "{:?}", inspection.entries);
    }
    let good = "qemu+ssh://root@[::1]:22/system?keyfile=/keys/a@b";
    let inspection = inspect(&[LIBVIRT, ("LIBVIRT_URI", good)], &[]);
    assert_eq!(entry(&inspection, "LIBVIRT_URI").value, Shown::Text(good.into()));
    let inspection = inspect(&[LIBVIRT], &[URI]);
    assert_eq!(entry(&inspection, "LIBVIRT_URI").value, Shown::Hidden);
}

#[test]
fn the_password_of_a_url_that_can_be_used_is_hidden() {
    for (url, shown) in [
        ("https://admin:hush@vcenter/sdk", "https://admin:(hidden)@vcenter/sdk"),
        ("admin:hu:sh@vcenter", "admin:(hidden)@vcenter"),
        ("https://admin@vcenter:8443/sdk", "https://admin@vcenter:8443/sdk"),
        ("vcenter:8443", "vcenter:8443"),
    ] {
        let inspection = inspect(&[("CLOUD_PROVIDER", "vsphere"), ("GOVC_URL", url)], &[]);
        let entry = entry(&inspection, "GOVC_URL");
        assert_eq!(entry.value, Shown::Text(shown.into()));
        assert!(entry.remarks.iter().all(|it| it.verdict != Verdict::Malformed), "{entry:?}");
    }
}
