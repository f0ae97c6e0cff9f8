//! The values of one group of settings.

use std::collections::BTreeMap;

use secrecy::{ExposeSecret, SecretString};

use super::{Key, Kind, Raw, Warning, snapshot::given};

/// The values in the folders for the settings of one cloud, or for those that all clouds have. Its debug output shows no value.
#[derive(Clone, Debug, Default)]
pub struct Values(BTreeMap<&'static str, SecretString>);

impl Values {
    /// What `raw` gives for these settings.
    pub(super) fn of(raw: &Raw, keys: &[Key]) -> Self {
        let given = |key: &Key| given(raw, key.name).map(|(_, value)| (key.name, value.clone()));
        Self(keys.iter().filter_map(given).collect())
    }

    /// The value of the setting of this name, which is not empty. None: the default counts.
    pub fn get(&self, name: &str) -> Option<&SecretString> {
        self.0.get(name)
    }

    /// A warning for each of these switches that is neither on nor off.
    pub(super) fn odd_switches(&self, keys: &[Key]) -> impl Iterator<Item = Warning> {
        let is_odd = |key: &&Key| {
            let value = self.get(key.name).map(ExposeSecret::expose_secret);
            key.kind == Kind::Boolean
                && value.is_some_and(|value| {
                    !["1", "true", "0", "false"].iter().any(|known| value.eq_ignore_ascii_case(known))
                })
        };
        keys.iter().filter(is_odd).map(|key| Warning::NotABoolean { key: key.name })
    }
}
