use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::{
    provider::{CATALOGUE, CLOUDS, libvirt::Settings},
    settings::{Key, State, key::settings},
};

type Pairs<'a> = &'a [(&'a str, &'a str)];

fn map(pairs: Pairs) -> BTreeMap<String, SecretString> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), SecretString::from(*value))).collect()
}

fn parse(settings: Pairs, credentials: Pairs) -> Result<Snapshot, SettingsError> {
    Snapshot::parse(
        &Raw { settings: map(settings), credentials: map(credentials), ..Raw::default() },
        CATALOGUE,
    )
}

fn libvirt(snapshot: &Snapshot) -> Settings {
    assert_eq!(snapshot.cloud(), "libvirt");
    Settings::read(&snapshot.values)
}

const LIBVIRT: (&str, &str) = ("CLOUD_PROVIDER", "libvirt");

#[test]
fn an_empty_value_means_the_default() {
    let snapshot =
        parse(&[LIBVIRT, ("LIBVIRT_URI", ""), ("LIBVIRT_CPUSET", ""), ("DISABLECVM", "")], &[]).unwrap();
    let settings = libvirt(&snapshot);
    assert_eq!(settings.uri, "qemu+ssh://root@192.168.122.1/system?no_verify=1");
    assert_eq!(settings.pool, "default");
    assert_eq!(settings.cpuset, None);
    assert!(settings.disable_cvm);
    assert_eq!(snapshot.common.runtimeclass_name, "kata-remote");
    assert!(!snapshot.common.tls_skip_verify);
    assert_eq!(snapshot.warnings, []);
}

#[test]
fn a_switch_is_on_with_1_or_true_alone_in_upper_or_lower_case() {
    for (text, on) in [("1", true), ("true", true), ("True", true), ("0", false), ("FALSE", false)] {
        let snapshot = parse(&[LIBVIRT, ("DISABLECVM", text)], &[]).unwrap();
        assert_eq!((libvirt(&snapshot).disable_cvm, snapshot.warnings), (on, vec![]), "{text}");
    }
    let snapshot = parse(&[LIBVIRT, ("PODVM_DEVELOPER_MODE", "True")], &[]).unwrap();
    assert!(snapshot.common.is_developer_mode());
    let snapshot = parse(&[LIBVIRT, ("DISABLECVM", "yes")], &[]).unwrap();
    assert!(!libvirt(&snapshot).disable_cvm);
    assert_eq!(snapshot.warnings, [Warning::NotABoolean { key: "DISABLECVM" }]);
}

#[test]
fn what_is_around_a_value_is_part_of_it() {
    const KEY: &str = "GCP_CREDENTIALS";
    let around = |name: &'static str, value: &str, line_ends: &[&str]| {
        let settings = map(&[("CLOUD_PROVIDER", "gcp"), ("GCP_PROJECT_ID", "peer-pods")]);
        let line_ends = line_ends.iter().map(|name| (*name).to_owned()).collect();
        let raw = Raw { settings, credentials: map(&[(name, value)]), line_ends };
        let warnings = Snapshot::parse(&raw, CATALOGUE).unwrap().warnings;
        let texts: Vec<_> = warnings.iter().map(ToString::to_string).collect();
        assert!(texts.iter().all(|text| !text.contains("hush")), "{texts:?}");
        texts.join(" ").strip_prefix(name).map(|text| text.split(',').next().unwrap_or_default().to_owned())
    };
    for (value, expected) in [
        ("hush", None),
        ("\"hush\"", Some(" is in quotes")),
        ("'hush'", Some(" is in quotes")),
        ("'hush\"", None),
        ("'", None),
        ("hush ", Some(" begins or ends with a blank")),
        ("\thush", Some(" begins or ends with a blank")),
    ] {
        assert_eq!(around(KEY, value, &[]).as_deref(), expected, "{value:?}");
    }
    assert_eq!(around(KEY, "hush", &[KEY]).as_deref(), Some(" ends with a line end"));
    assert_eq!(around(KEY, "hush", &["GCP_ZONE"]), None);
    assert_eq!(around(KEY, "{} ", &[KEY]), None, "it is JSON");
    let trimmed = "GCP_NETWORK";
    assert_eq!(around(trimmed, "hush ", &[trimmed]), None, "no deletion depends on it");
    assert_eq!(around(trimmed, "'hush'", &[]).as_deref(), Some(" is in quotes"));
    let base = "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE";
    assert_eq!(around(base, "https://hush/", &[base]), None, "cloud-api-adaptor does not read it");
}

#[test]
fn a_declared_tag_has_a_key_and_a_value() {
    let declared = |text| {
        let snapshot = parse(&[LIBVIRT, ("SWEEP_TAG", text), ("SWEEP_CLUSTER", "uid-1")], &[]).unwrap();
        let tag = snapshot.common.declared_tag().map(|(key, value)| (key.to_owned(), value.to_owned()));
        (tag, snapshot.warnings)
    };
    let tag = Some(("cluster".to_owned(), "a=b".to_owned()));
    assert_eq!(declared("cluster=a=b"), (tag, vec![]));
    for text in ["cluster", "=a", "cluster=", " = "] {
        let (tag, warnings) = declared(text);
        assert_eq!(tag, None, "{text}");
        assert!(warnings.contains(&Warning::NotATag { key: "SWEEP_TAG" }), "{text}: {warnings:?}");
    }
}

#[test]
fn what_would_prove_whose_vms_are_needs_the_cluster() {
    let warnings = |cluster, tag, exclusive| {
        let given = [LIBVIRT, ("SWEEP_CLUSTER", cluster), ("SWEEP_TAG", tag), ("SWEEP_EXCLUSIVE", exclusive)];
        parse(&given, &[]).unwrap().warnings
    };
    assert_eq!(warnings("uid-1", "a=b", "true"), []);
    assert_eq!(warnings("", "", "false"), []);
    let without = ["SWEEP_TAG", "SWEEP_EXCLUSIVE"].map(|key| Warning::ProvesNothing { key });
    assert_eq!(warnings("", "a=b", "true"), without);
}

#[test]
fn tags_that_cloud_api_adaptor_does_not_read_are_odd() {
    const AWS: [(&str, &str); 2] = [("CLOUD_PROVIDER", "aws"), ("AWS_REGION", "eu-west-1")];
    for (tags, is_odd) in
        [("", false), ("a=b, c=d=e", false), ("a=b,c:d", true), ("a", true), ("a=b,", false)]
    {
        let settings = [&AWS[..], &[("TAGS", tags)]].concat();
        let expected: &[_] = if is_odd { &[Warning::NotTags { key: "TAGS" }] } else { &[] };
        assert_eq!(parse(&settings, &[]).unwrap().warnings, expected, "{tags}");
    }
    let ibm = [("CLOUD_PROVIDER", "ibmcloud"), ("TAGS", "a,b:c")];
    assert_eq!(parse(&ibm, &[]).unwrap().warnings, [], "there a tag is any text");
}

#[test]
fn settings_of_vm_creation_are_not_validated() {
    let snapshot = parse(&[LIBVIRT, ("LIBVIRT_CPU", "many"), ("LIBVIRT_ROOT_DISK_SIZE", "-1")], &[]).unwrap();
    assert_eq!(libvirt(&snapshot).cpus, "many");
}

#[test]
fn the_config_map_wins_even_when_empty() {
    let snapshot = parse(
        &[LIBVIRT, ("LIBVIRT_NET", "one"), ("LIBVIRT_CPU", "")],
        &[("LIBVIRT_NET", "two"), ("LIBVIRT_CPU", "4"), ("LIBVIRT_POOL", "secret-pool")],
    )
    .unwrap();
    let settings = libvirt(&snapshot);
    assert_eq!((&*settings.network, &*settings.cpus, &*settings.pool), ("one", "2", "secret-pool"));
    assert_eq!(snapshot.conflict, None);
    assert_eq!(
        snapshot.warnings,
        [
            Warning::EmptyWins { name: "LIBVIRT_CPU".into() },
            Warning::DifferentValues { name: "LIBVIRT_NET".into() }
        ]
    );
}

#[test]
fn two_values_for_what_deletion_needs_are_a_conflict_that_shows_no_value() {
    let snapshot = parse(
        &[LIBVIRT, ("LIBVIRT_URI", "test:///one"), ("LIBVIRT_POOL", "same")],
        &[("LIBVIRT_URI", "test:///two"), ("LIBVIRT_POOL", "same"), ("CLOUD_PROVIDER", "aws")],
    )
    .unwrap();
    let conflict = snapshot.conflict.unwrap();
    assert_eq!(conflict.keys, ["CLOUD_PROVIDER", "LIBVIRT_URI"]);
    assert_eq!(conflict.provider, "libvirt");
    let text = conflict.to_string();
    assert!(text.contains("remove the Secret's") && !text.contains("test:"), "{text}");
    assert_eq!(snapshot.endpoint.unwrap().address, "test+unix:///one", "cloud-api-adaptor makes VMs there");
    let equal = parse(&[LIBVIRT, ("LIBVIRT_URI", "a")], &[("LIBVIRT_URI", "a")]).unwrap();
    assert_eq!((equal.conflict, equal.warnings), (None, vec![]));
    let other_empty = parse(&[LIBVIRT, ("LIBVIRT_URI", "a")], &[("LIBVIRT_URI", "")]).unwrap();
    assert_eq!((other_empty.conflict, other_empty.warnings), (None, vec![]));
}

#[test]
fn an_obstacle_quotes_a_value_in_the_log_alone() {
    let uri = ("LIBVIRT_URI", "qemu+ssh://root@host/system?hush=1");
    let snapshot = parse(&[LIBVIRT, uri], &[]).unwrap();
    let obstacle = snapshot.obstacle().unwrap();
    assert_eq!(obstacle.for_status(), "LIBVIRT_URI cannot be used");
    assert!(obstacle.for_log().contains("hush"), "{}", obstacle.for_log());
    let state = State { current: Some(Arc::new(snapshot)), ..State::default() };
    assert_eq!(state.problem().unwrap(), "LIBVIRT_URI cannot be used");
}

#[test]
fn another_providers_settings_neither_conflict_nor_count_as_unknown() {
    let snapshot = parse(
        &[LIBVIRT, ("AWS_REGION", "one"), ("VXLAN_PORT", "9000"), ("libvirt_uri", "x")],
        &[("AWS_REGION", "two"), ("GOVC_PASSWORD", "x")],
    )
    .unwrap();
    assert_eq!(snapshot.conflict, None);
    assert_eq!(
        snapshot.warnings,
        [
            Warning::DifferentValues { name: "AWS_REGION".into() },
            Warning::UnknownKey { name: "libvirt_uri".into(), meant: Some("LIBVIRT_URI") }
        ]
    );
}

#[test]
fn a_missing_provider_is_inferred_only_when_nothing_speaks_against_it() {
    let snapshot = parse(&[("LIBVIRT_URI", "test:///default"), ("GCP_ZONE", "")], &[]).unwrap();
    assert_eq!(snapshot.warnings, [Warning::ProviderInferred { provider: "libvirt" }]);
    for settings in [&[][..], &[("DISABLECVM", "true")], &[("LIBVIRT_URI", ""), ("CLOUD_PROVIDER", "")]] {
        let error = parse(settings, &[]).unwrap_err().to_string();
        assert!(error.contains("no other setting identifies"), "{error}");
    }
    let error = parse(&[("LIBVIRT_URI", "a")], &[("GCP_CREDENTIALS", "hush")]).unwrap_err().to_string();
    assert!(error.contains("more than one provider") && !error.contains("hush"), "{error}");
}

#[test]
fn every_provider_is_known_and_others_are_not() {
    for cloud in CLOUDS {
        assert_eq!(parse(&[("CLOUD_PROVIDER", cloud.name())], &[]).err(), None);
    }
    assert_eq!(
        parse(&[("CLOUD_PROVIDER", "openstack")], &[]).unwrap_err(),
        SettingsError::UnknownProvider { name: "openstack".into(), known: CATALOGUE.names() }
    );
}

settings! {
    /// Settings of every kind.
    struct Sample {
        /// First line,
        /// second line.
        token: Option<SecretString> = SAMPLE_TOKEN.required(),
    }
}

#[test]
fn the_table_of_keys_matches_the_declaration() {
    let expected = Key {
        name: "SAMPLE_TOKEN",
        doc: "First line, second line.",
        kind: crate::settings::Kind::Secret,
        default: "",
        required: true,
        concerns_deletion: false,
        operator_only: false,
    };
    assert_eq!(Sample::KEYS, [expected]);
    let concerning = Settings::KEYS.iter().filter(|key| key.concerns_deletion).map(|key| key.name);
    assert_eq!(concerning.collect::<Vec<_>>(), ["LIBVIRT_URI", "LIBVIRT_POOL"]);
    for key in Common::KEYS.iter().chain(Settings::KEYS) {
        assert!(key.doc.ends_with('.') && key.doc.len() > 10, "{key:?}");
    }
}

#[test]
fn a_secret_is_not_shown() {
    let raw = Raw { credentials: map(&[("SAMPLE_TOKEN", "hush")]), ..Raw::default() };
    let sample = Sample::read(&Values::of(&raw, Sample::KEYS));
    assert_eq!(sample.token.as_ref().unwrap().expose_secret(), "hush");
    assert!(!format!("{sample:?}").contains("hush"));
    let raw = Raw { credentials: map(&[("A", "hush")]), ..Raw::default() };
    assert!(!format!("{raw:?}").contains("hush"));
}

fn names() -> impl Strategy<Value = String> {
    let known: Vec<&str> = Common::KEYS.iter().chain(Settings::KEYS).map(|key| key.name).collect();
    prop_oneof![proptest::sample::select(known).prop_map(str::to_owned), ".*"]
}

fn values() -> impl Strategy<Value = SecretString> {
    prop_oneof!["libvirt|vsphere|true|1|", ".*"].prop_map(SecretString::from)
}

proptest! {
    #[test]
    fn parsing_is_total_and_the_config_map_counts(
        settings in proptest::collection::btree_map(names(), values(), 0..12),
        credentials in proptest::collection::btree_map(names(), values(), 0..12),
    ) {
        let raw = Raw { settings, credentials, ..Raw::default() };
        if let Ok(snapshot) = Snapshot::parse(&raw, CATALOGUE) {
            if let Some(pool) = raw.settings.get("LIBVIRT_POOL").filter(|_| snapshot.cloud() == "libvirt") {
                let pool = pool.expose_secret();
                let expected = if pool.is_empty() { "default" } else { pool };
                prop_assert_eq!(&libvirt(&snapshot).pool, expected);
            }
            if let Some(conflict) = &snapshot.conflict {
                prop_assert!(!conflict.keys.is_empty());
            }
        }
    }
}
