//! From the text of two folders to typed settings (pure, no IO).

use std::fmt;

use secrecy::ExposeSecret;

use super::{CloudProvider, Common, Key, Libvirt, Raw, SettingsError, catalogue};

/// The settings of one pair of folders, read at one moment and as a whole.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// What concerns every provider.
    pub common: Common,
    /// What concerns the provider that the folders serve.
    pub provider: ProviderSettings,
    /// Set while two different values are given for something that deletion needs: nothing may be deleted then.
    pub conflict: Option<Conflict>,
    /// What is odd without being in the way.
    pub warnings: Vec<Warning>,
}

/// The settings of the provider that a pair of folders serves.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ProviderSettings {
    /// `CLOUD_PROVIDER=libvirt`.
    Libvirt(Libvirt),
}

/// Settings that deletion needs and that the `ConfigMap` and the `Secret` give two different values for.
///
/// A cloud asked in the wrong place answers that the VM is not there, and the VM would be left running for ever: so the
/// provider's deletions wait until one of the two values is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The provider whose deletions wait.
    pub provider: CloudProvider,
    /// The settings' names, sorted.
    pub keys: Vec<&'static str>,
}

/// Something odd in the folders that is not in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// `CLOUD_PROVIDER` is missing; the other settings tell the provider.
    ProviderInferred {
        /// What was inferred.
        provider: CloudProvider,
    },
    /// A file whose name is no setting of any provider.
    UnknownKey {
        /// The file's name.
        name: String,
    },
    /// The folders give two different values; the `ConfigMap`'s counts. Deletion does not depend on it.
    DifferentValues {
        /// The setting's name.
        name: String,
    },
    /// The `ConfigMap` has it empty, so the default counts and the `Secret`'s value does not.
    EmptyWins {
        /// The setting's name.
        name: String,
    },
    /// A switch whose value is none of `1`, `true`, `0` and `false`: it counts as false.
    NotABoolean {
        /// The setting's name.
        key: &'static str,
    },
}

impl Snapshot {
    /// Reads what the folders hold. An empty value stands for the default. Where both folders have a setting the
    /// `ConfigMap`'s counts, even if empty, as it does for cloud-api-adaptor, which made the VMs.
    pub fn parse(raw: &Raw) -> Result<Self, SettingsError> {
        let mut warnings = Vec::new();
        let given = |name: &str| {
            let value = raw.settings.get(name).or_else(|| raw.credentials.get(name));
            value.filter(|value| !value.expose_secret().is_empty())
        };

        let common = Common::read(given, &mut warnings);
        let provider = if let Some(name) = &common.cloud_provider {
            name.parse()?
        } else {
            let provider = infer_provider(raw)?;
            warnings.push(Warning::ProviderInferred { provider });
            provider
        };
        let provider = match provider {
            CloudProvider::Libvirt => ProviderSettings::Libvirt(Libvirt::read(given, &mut warnings)),
            provider => return Err(SettingsError::UnsupportedProvider { provider }),
        };

        let conflict = compare_folders(raw, &provider, &mut warnings);
        let names = raw.settings.keys().chain(raw.credentials.keys());
        let unknown = names.filter(|name| !catalogue::is_known(name));
        warnings.extend(unknown.map(|name| Warning::UnknownKey { name: name.clone() }));
        Ok(Self { common, provider, conflict, warnings })
    }
}

impl ProviderSettings {
    /// Which provider these settings belong to.
    pub fn provider(&self) -> CloudProvider {
        match self {
            Self::Libvirt(_) => CloudProvider::Libvirt,
        }
    }

    fn keys(&self) -> &'static [Key] {
        match self {
            Self::Libvirt(_) => Libvirt::KEYS,
        }
    }
}

/// The provider to which alone the given settings belong.
fn infer_provider(raw: &Raw) -> Result<CloudProvider, SettingsError> {
    let files = raw.settings.iter().chain(&raw.credentials);
    let given = files.filter(|(_, value)| !value.expose_secret().is_empty());
    let mut providers = given.filter_map(|(name, _)| catalogue::only_reader(name));
    let Some(provider) = providers.next() else {
        return Err(SettingsError::NoProvider { hint: "no other setting tells the provider" });
    };
    if providers.all(|other| other == provider) {
        Ok(provider)
    } else {
        Err(SettingsError::NoProvider { hint: "the other settings belong to more than one provider" })
    }
}

/// Finds the settings that both folders give, with different values.
fn compare_folders(raw: &Raw, provider: &ProviderSettings, warnings: &mut Vec<Warning>) -> Option<Conflict> {
    let mut keys = Vec::new();
    for (name, value) in &raw.settings {
        let Some(other) = raw.credentials.get(name) else {
            continue;
        };
        let (value, other) = (value.expose_secret(), other.expose_secret());
        if value == other || other.is_empty() {
            continue;
        }
        if value.is_empty() {
            warnings.push(Warning::EmptyWins { name: name.clone() });
            continue;
        }
        let mut described = Common::KEYS.iter().chain(provider.keys());
        match described.find(|key| key.name == name && key.concerns_deletion) {
            Some(key) => keys.push(key.name),
            None => warnings.push(Warning::DifferentValues { name: name.clone() }),
        }
    }
    (!keys.is_empty()).then(|| Conflict { provider: provider.provider(), keys })
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the ConfigMap and the Secret give different values for {}: nothing is deleted on {} until one of the two \
             is removed",
            self.keys.join(", "),
            self.provider
        )
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ProviderInferred { provider } => {
                write!(
                    f,
                    "CLOUD_PROVIDER is not set; taken for {provider}, to which the other settings belong"
                )
            }
            Self::UnknownKey { name } => {
                write!(f, "{name} is not a setting of any provider; it is ignored")
            }
            Self::DifferentValues { name } => {
                write!(
                    f,
                    "the ConfigMap and the Secret give different values for {name}; the ConfigMap's counts"
                )
            }
            Self::EmptyWins { name } => write!(
                f,
                "{name} is empty in the ConfigMap, so its default counts and the Secret's value does not"
            ),
            Self::NotABoolean { key } => {
                write!(f, "{key} is neither true nor false; it counts as false")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use secrecy::SecretString;

    use super::*;
    use crate::settings::key::settings;

    type Pairs<'a> = &'a [(&'a str, &'a str)];

    fn map(pairs: Pairs) -> BTreeMap<String, SecretString> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), SecretString::from(*value))).collect()
    }

    fn parse(settings: Pairs, credentials: Pairs) -> Result<Snapshot, SettingsError> {
        Snapshot::parse(&Raw { settings: map(settings), credentials: map(credentials) })
    }

    fn libvirt(snapshot: &Snapshot) -> &Libvirt {
        let ProviderSettings::Libvirt(libvirt) = &snapshot.provider;
        libvirt
    }

    const LIBVIRT: (&str, &str) = ("CLOUD_PROVIDER", "libvirt");

    #[test]
    fn an_empty_value_stands_for_the_default() {
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
    fn a_switch_is_on_with_1_or_true_alone() {
        for (text, on) in [("1", true), ("true", true), ("0", false), ("false", false)] {
            let snapshot = parse(&[LIBVIRT, ("DISABLECVM", text)], &[]).unwrap();
            assert_eq!((libvirt(&snapshot).disable_cvm, snapshot.warnings), (on, vec![]), "{text}");
        }
        let snapshot = parse(&[LIBVIRT, ("DISABLECVM", "yes")], &[]).unwrap();
        assert!(!libvirt(&snapshot).disable_cvm);
        assert_eq!(snapshot.warnings, [Warning::NotABoolean { key: "DISABLECVM" }]);
    }

    #[test]
    fn what_only_creation_needs_is_never_judged() {
        let snapshot =
            parse(&[LIBVIRT, ("LIBVIRT_CPU", "many"), ("LIBVIRT_ROOT_DISK_SIZE", "-1")], &[]).unwrap();
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
        assert_eq!(conflict.provider, CloudProvider::Libvirt);
        assert!(!conflict.to_string().contains("test:"), "{conflict}");
        let equal = parse(&[LIBVIRT, ("LIBVIRT_URI", "a")], &[("LIBVIRT_URI", "a")]).unwrap();
        assert_eq!((equal.conflict, equal.warnings), (None, vec![]));
        let other_empty = parse(&[LIBVIRT, ("LIBVIRT_URI", "a")], &[("LIBVIRT_URI", "")]).unwrap();
        assert_eq!((other_empty.conflict, other_empty.warnings), (None, vec![]));
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
                Warning::UnknownKey { name: "libvirt_uri".into() }
            ]
        );
    }

    #[test]
    fn a_missing_provider_is_inferred_only_when_nothing_speaks_against_it() {
        let snapshot = parse(&[("LIBVIRT_URI", "test:///default"), ("GCP_ZONE", "")], &[]).unwrap();
        assert_eq!(snapshot.warnings, [Warning::ProviderInferred { provider: CloudProvider::Libvirt }]);
        for settings in [&[][..], &[("DISABLECVM", "true")], &[("LIBVIRT_URI", ""), ("CLOUD_PROVIDER", "")]] {
            let error = parse(settings, &[]).unwrap_err().to_string();
            assert!(error.contains("no other setting tells"), "{error}");
        }
        let error = parse(&[("LIBVIRT_URI", "a")], &[("GCP_CREDENTIALS", "hush")]).unwrap_err().to_string();
        assert!(error.contains("more than one provider") && !error.contains("hush"), "{error}");
    }

    #[test]
    fn a_provider_not_spoken_yet_and_an_unknown_one_differ() {
        assert_eq!(
            parse(&[("CLOUD_PROVIDER", "aws")], &[]).unwrap_err(),
            SettingsError::UnsupportedProvider { provider: CloudProvider::Aws }
        );
        assert_eq!(
            parse(&[("CLOUD_PROVIDER", "openstack")], &[]).unwrap_err(),
            SettingsError::UnknownProvider { name: "openstack".into() }
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
    fn the_table_says_what_the_declaration_says() {
        let expected = Key {
            name: "SAMPLE_TOKEN",
            doc: "First line, second line.",
            kind: crate::settings::Kind::Secret,
            default: "",
            required: true,
            concerns_deletion: false,
        };
        assert_eq!(Sample::KEYS, [expected]);
        let concerning = Libvirt::KEYS.iter().filter(|key| key.concerns_deletion).map(|key| key.name);
        assert_eq!(concerning.collect::<Vec<_>>(), ["LIBVIRT_URI", "LIBVIRT_POOL"]);
        for key in Common::KEYS.iter().chain(Libvirt::KEYS) {
            assert!(key.doc.ends_with('.') && key.doc.len() > 10, "{key:?}");
        }
    }

    #[test]
    fn a_secret_is_not_shown() {
        let hush = SecretString::from("hush");
        let sample = Sample::read(|_| Some(&hush), &mut Vec::new());
        assert_eq!(sample.token.as_ref().unwrap().expose_secret(), "hush");
        assert!(!format!("{sample:?}").contains("hush"));
        let raw = Raw { settings: BTreeMap::new(), credentials: map(&[("A", "hush")]) };
        assert!(!format!("{raw:?}").contains("hush"));
    }

    fn names() -> impl Strategy<Value = String> {
        let known: Vec<&str> = Common::KEYS.iter().chain(Libvirt::KEYS).map(|key| key.name).collect();
        prop_oneof![proptest::sample::select(known).prop_map(str::to_owned), ".*"]
    }

    fn values() -> impl Strategy<Value = SecretString> {
        prop_oneof!["libvirt|aws|true|1|", ".*"].prop_map(SecretString::from)
    }

    proptest! {
        #[test]
        fn parsing_is_total_and_the_config_map_counts(
            settings in proptest::collection::btree_map(names(), values(), 0..12),
            credentials in proptest::collection::btree_map(names(), values(), 0..12),
        ) {
            let raw = Raw { settings, credentials };
            if let Ok(snapshot) = Snapshot::parse(&raw) {
                if let Some(pool) = raw.settings.get("LIBVIRT_POOL") {
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
}
