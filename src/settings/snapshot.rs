//! From the text of two folders to typed settings (pure, no IO).

use std::collections::BTreeMap;
use std::fmt;

use operator_kit::Message;
use secrecy::{ExposeSecret, SecretString};

use super::{CloudProvider, Common, Endpoint, Key, Libvirt, Raw, SettingsError, catalogue};

/// The settings of one pair of folders, read at one moment and as a whole.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// What concerns every provider.
    pub common: Common,
    /// What concerns the provider that the folders serve.
    pub provider: ProviderSettings,
    /// Set while two different values are given for something that deletion needs: nothing may be deleted then.
    pub conflict: Option<Conflict>,
    /// What deletion needs and cannot use as it is: nothing may be deleted then.
    pub malformed: Vec<Malformed>,
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

/// Where a setting's value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The settings folder.
    ConfigMap,
    /// The credentials folder.
    Secret,
    /// Neither, or an empty value.
    Default,
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

/// A setting that deletion needs, with a value that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The setting's name.
    pub key: &'static str,
    /// What is wrong with the value and what is expected, without the value itself.
    pub problem: String,
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
        Self::judge(raw).map_err(|rejected| rejected.error)
    }

    /// The same, and what is odd also where the settings are rejected.
    pub(super) fn judge(raw: &Raw) -> Result<Self, Rejected> {
        let mut warnings = Vec::new();
        let given = |name: &str| given(raw, name).map(|(_, value)| value);

        let common = Common::read(given, &mut warnings);
        let names = raw.settings.keys().chain(raw.credentials.keys());
        let unknown = names.filter(|name| !catalogue::is_known(name));
        let unknown = unknown.map(|name| Warning::UnknownKey { name: name.clone() });
        let provider = match &common.cloud_provider {
            Some(name) => name.parse(),
            None => infer_provider(raw)
                .inspect(|provider| warnings.push(Warning::ProviderInferred { provider: *provider })),
        };
        let provider = provider.and_then(|provider| match provider {
            CloudProvider::Libvirt => Ok(ProviderSettings::Libvirt(Libvirt::read(given, &mut warnings))),
            provider => Err(SettingsError::UnsupportedProvider { provider }),
        });
        match provider {
            Ok(provider) => {
                let conflict = compare_folders(raw, &provider, &mut warnings);
                let malformed = provider.malformed();
                warnings.extend(unknown);
                Ok(Self { common, provider, conflict, malformed, warnings })
            }
            Err(error) => {
                warnings.extend(unknown);
                Err(Rejected { error, warnings })
            }
        }
    }

    /// Why nothing may be deleted under these settings, if so.
    pub fn obstacle(&self) -> Option<Message> {
        let conflict: Vec<_> = self.conflict.iter().map(ToString::to_string).collect();
        let public: Vec<_> = self.malformed.iter().map(Malformed::public).collect();
        let full: Vec<_> = self.malformed.iter().map(ToString::to_string).collect();
        let all = |malformed| [conflict.clone(), malformed].concat().join("; ");
        let (public, full) = (all(public), all(full));
        (!full.is_empty()).then(|| Message::new(public, full))
    }
}

/// Settings that cannot come into force.
#[derive(Debug)]
pub(super) struct Rejected {
    pub(super) error: SettingsError,
    pub(super) warnings: Vec<Warning>,
}

/// Which folder gives the setting of this name, and what; none where the default counts.
pub(super) fn given<'a>(raw: &'a Raw, name: &str) -> Option<(Source, &'a SecretString)> {
    let of = |files: &'a BTreeMap<String, SecretString>, source| files.get(name).map(|value| (source, value));
    let value = of(&raw.settings, Source::ConfigMap).or_else(|| of(&raw.credentials, Source::Secret));
    value.filter(|(_, value)| !value.expose_secret().is_empty())
}

impl ProviderSettings {
    /// Which provider these settings belong to.
    pub fn provider(&self) -> CloudProvider {
        match self {
            Self::Libvirt(_) => CloudProvider::Libvirt,
        }
    }

    /// Where in that provider's cloud machines are made and looked for; none where the settings name no place for good.
    pub fn endpoint(&self) -> Option<Endpoint> {
        match self {
            Self::Libvirt(libvirt) => libvirt.endpoint(),
        }
    }

    /// Every setting of that provider.
    pub(super) fn keys(&self) -> &'static [Key] {
        match self {
            Self::Libvirt(_) => Libvirt::KEYS,
        }
    }

    fn malformed(&self) -> Vec<Malformed> {
        match self {
            Self::Libvirt(libvirt) => libvirt.malformed(),
        }
    }
}

/// The provider to which alone the given settings belong.
fn infer_provider(raw: &Raw) -> Result<CloudProvider, SettingsError> {
    let files = raw.settings.iter().chain(&raw.credentials);
    let given = files.filter(|(_, value)| !value.expose_secret().is_empty());
    let mut providers = given.filter_map(|(name, _)| catalogue::only_reader(name));
    let Some(provider) = providers.next() else {
        return Err(SettingsError::NoProvider { hint: "no other setting identifies the provider" });
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
            "the ConfigMap and the Secret have different values for {}: the operator deletes nothing on {} \
             until one of the two is removed",
            self.keys.join(", "),
            self.provider
        )
    }
}

impl Malformed {
    /// Without the problem, which may quote the value.
    fn public(&self) -> String {
        format!("{} cannot be used", self.key)
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cannot be used: {}", self.key, self.problem)
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ProviderInferred { provider } => {
                write!(
                    f,
                    "CLOUD_PROVIDER is not set; the operator uses {provider}, to which the other settings \
                     belong"
                )
            }
            Self::UnknownKey { name } => {
                write!(f, "{name} is not a setting of any provider; the operator ignores it")?;
                catalogue::nearest(name).map_or(Ok(()), |meant| write!(f, "; did you mean {meant}?"))
            }
            Self::DifferentValues { name } => {
                write!(
                    f,
                    "the ConfigMap and the Secret have different values for {name}; the operator uses the \
                     ConfigMap's"
                )
            }
            Self::EmptyWins { name } => write!(
                f,
                "{name} is empty in the ConfigMap; the operator uses the default and ignores the Secret's \
                 value"
            ),
            Self::NotABoolean { key } => {
                write!(f, "{key} is neither true nor false; the operator uses false")
            }
        }
    }
}

#[cfg(test)]
mod tests;
