//! From the text of two folders to typed settings (pure, no IO).

use std::collections::BTreeMap;
use std::fmt;

use operator_kit::Message;
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;

use super::{Catalogue, Common, Endpoint, Raw, Schema, SettingsError, Values};

/// The settings of one pair of folders, read at one moment and as a whole.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// What concerns every provider.
    pub common: Common,
    /// The cloud that the folders serve.
    pub schema: &'static Schema,
    /// The values of its settings.
    pub values: Values,
    /// Where its VMs are, or the values that deletion needs and cannot use. In that case nothing may be deleted. It says nothing of
    /// a conflict: [`endpoint()`](Self::endpoint()) does.
    pub endpoint: Result<Endpoint, Vec<Malformed>>,
    /// Set while the folders give two different values for something that deletion needs. In that case nothing may be deleted.
    pub conflict: Option<Conflict>,
    /// What is odd without being in the way.
    pub warnings: Vec<Warning>,
}

/// Where a setting's value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The settings folder.
    ConfigMap,
    /// The credentials folder.
    Secret,
    /// Neither, or an empty value.
    Default,
}

/// Settings that deletion needs, with different values in the `ConfigMap` and the `Secret`.
///
/// A cloud asked in the wrong place answers that the VM does not exist, and the VM would run for ever. So the provider's
/// deletions wait until only one value is left. It should be the `ConfigMap`'s, with which cloud-api-adaptor makes VMs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The provider whose deletions wait.
    pub provider: &'static str,
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

/// Something odd in the folders that does no harm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// `CLOUD_PROVIDER` is missing; the other settings show which provider it is.
    ProviderInferred {
        /// What was inferred.
        provider: &'static str,
    },
    /// A file whose name is no setting of any provider.
    UnknownKey {
        /// The file's name.
        name: String,
        /// The setting that was probably meant.
        meant: Option<&'static str>,
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
    /// A switch whose value is none of `1`, `true`, `0` and `false`, in upper or lower case: it counts as false.
    NotABoolean {
        /// The setting's name.
        key: &'static str,
    },
    /// A tag that is not written `KEY=VALUE`: it is ignored.
    NotATag {
        /// The setting's name.
        key: &'static str,
    },
    /// Tags of which one is not written `KEY=VALUE`: cloud-api-adaptor ignores it, and all that follow.
    NotTags {
        /// The setting's name.
        key: &'static str,
    },
    /// A value with quotes, a blank or a line end around it.
    NotAlone {
        /// The setting's name.
        key: &'static str,
        /// What is around it, as a predicate.
        around: &'static str,
    },
    /// It would prove which VMs are this cluster's, if `SWEEP_CLUSTER` named the cluster.
    ProvesNothing {
        /// The setting's name.
        key: &'static str,
    },
}

impl Snapshot {
    /// Reads the content of the folders. An empty value means the default. If both folders have a setting, the `ConfigMap`'s
    /// counts, even if empty, as it does for cloud-api-adaptor, which made the VMs.
    pub fn parse(raw: &Raw, catalogue: Catalogue) -> Result<Self, SettingsError> {
        Self::judge(raw, catalogue).map_err(|rejected| rejected.error)
    }

    /// The same, and what is odd even if the settings are rejected.
    pub(super) fn judge(raw: &Raw, catalogue: Catalogue) -> Result<Self, Rejected> {
        let values = Values::of(raw, Common::KEYS);
        let common = Common::read(&values);
        let mut warnings = values.odd(raw, Common::KEYS);
        if common.sweep_tag.is_some() && common.declared_tag().is_none() {
            warnings.push(Warning::NotATag { key: "SWEEP_TAG" });
        }
        if common.sweep_cluster.is_none() {
            let proofs =
                [("SWEEP_TAG", common.declared_tag().is_some()), ("SWEEP_EXCLUSIVE", common.sweep_exclusive)];
            let given = proofs.into_iter().filter(|(_, is_given)| *is_given);
            warnings.extend(given.map(|(key, _)| Warning::ProvesNothing { key }));
        }
        let unknown = raw.names().into_iter().filter(|name| !catalogue.is_known(name));
        let unknown =
            unknown.map(|name| Warning::UnknownKey { name: name.to_owned(), meant: catalogue.nearest(name) });
        let schema = match &common.cloud_provider {
            Some(name) => catalogue.named(name),
            None => infer_provider(raw, catalogue)
                .inspect(|schema| warnings.push(Warning::ProviderInferred { provider: schema.cloud })),
        };
        match schema {
            Ok(schema) => {
                let values = Values::of(raw, schema.keys);
                warnings.extend(values.odd(raw, schema.keys));
                let conflict = compare_folders(raw, schema, &mut warnings);
                let endpoint = (schema.check)(&values);
                warnings.extend(unknown);
                Ok(Self { common, schema, values, endpoint, conflict, warnings })
            }
            Err(error) => {
                warnings.extend(unknown);
                Err(Rejected { error, warnings })
            }
        }
    }

    /// The name of the cloud that the folders serve.
    pub fn cloud(&self) -> &'static str {
        self.schema.cloud
    }

    /// Where that cloud's VMs are, or why nothing may be deleted under these settings.
    pub fn endpoint(&self) -> Result<&Endpoint, Message> {
        if let (Ok(endpoint), None) = (&self.endpoint, &self.conflict) {
            return Ok(endpoint);
        }
        let conflict: Vec<_> = self.conflict.iter().map(ToString::to_string).collect();
        let public: Vec<_> = self.malformed().iter().map(Malformed::public).collect();
        let full: Vec<_> = self.malformed().iter().map(ToString::to_string).collect();
        let all = |malformed| [conflict.clone(), malformed].concat().join("; ");
        Err(Message::new(all(public), all(full)))
    }

    /// Why nothing may be deleted under these settings, if that is so.
    pub fn obstacle(&self) -> Option<Message> {
        self.endpoint().err()
    }

    /// What deletion needs and cannot use.
    pub(super) fn malformed(&self) -> &[Malformed] {
        self.endpoint.as_ref().err().map_or(&[], Vec::as_slice)
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

/// The cloud to which alone the given settings belong.
fn infer_provider(raw: &Raw, catalogue: Catalogue) -> Result<&'static Schema, SettingsError> {
    let unclear = |hint| SettingsError::NoProvider { hint, known: catalogue.names() };
    let files = raw.settings.iter().chain(&raw.credentials);
    let given = files.filter(|(_, value)| !value.expose_secret().is_empty());
    let mut readers = given.filter_map(|(name, _)| catalogue.only_reader(name));
    let Some(schema) = readers.next() else {
        return Err(unclear("no other setting identifies the provider"));
    };
    if readers.all(|other| other.cloud == schema.cloud) {
        Ok(schema)
    } else {
        Err(unclear("the other settings belong to more than one provider"))
    }
}

/// Finds the settings that both folders give, with different values.
fn compare_folders(raw: &Raw, schema: &Schema, warnings: &mut Vec<Warning>) -> Option<Conflict> {
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
        let mut described = Common::KEYS.iter().chain(schema.keys);
        match described.find(|key| key.name == name && key.concerns_deletion) {
            Some(key) => keys.push(key.name),
            None => warnings.push(Warning::DifferentValues { name: name.clone() }),
        }
    }
    (!keys.is_empty()).then_some(Conflict { provider: schema.cloud, keys })
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the ConfigMap and the Secret have different values for {}: the operator deletes nothing on {}; \
             remove the Secret's: cloud-api-adaptor makes VMs with the ConfigMap's",
            self.keys.join(", "),
            self.provider
        )
    }
}

impl Malformed {
    /// This setting has this problem.
    pub fn new(key: &'static str, problem: impl Into<String>) -> Self {
        Self { key, problem: problem.into() }
    }

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
            Self::UnknownKey { name, meant } => {
                write!(
                    f,
                    "{name} is not a setting of cloud-api-adaptor v0.22.0 or newer; the operator ignores it"
                )?;
                meant.map_or(Ok(()), |meant| write!(f, "; did you mean {meant}?"))
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
            Self::NotATag { key } => write!(f, "{key} is not written KEY=VALUE; the operator ignores it"),
            Self::NotTags { key } => write!(
                f,
                "{key} has a tag that is not written KEY=VALUE; cloud-api-adaptor ignores it and all tags after it"
            ),
            Self::NotAlone { key, around } => write!(f, "{key} {around}; write the value alone"),
            Self::ProvesNothing { key } => write!(
                f,
                "{key} proves nothing without SWEEP_CLUSTER: set that to the UID of the namespace kube-system"
            ),
        }
    }
}

#[cfg(test)]
mod tests;
