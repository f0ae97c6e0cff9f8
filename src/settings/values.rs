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

    /// A warning for each of these settings whose value is odd: a switch that is neither on nor off, tags that are none.
    pub(super) fn odd(&self, keys: &[Key]) -> impl Iterator<Item = Warning> {
        let odd = |key: &Key| {
            let value = self.get(key.name)?.expose_secret();
            let is_word = |word: &&str| value.eq_ignore_ascii_case(word);
            match key.kind {
                Kind::Boolean if !["1", "true", "0", "false"].iter().any(is_word) => {
                    Some(Warning::NotABoolean { key: key.name })
                }
                Kind::Tags if !value.trim_end_matches(',').split(',').all(|tag| tag.contains('=')) => {
                    Some(Warning::NotTags { key: key.name })
                }
                _ => None,
            }
        };
        keys.iter().filter_map(odd)
    }
}
