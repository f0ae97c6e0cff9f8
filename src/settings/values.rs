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

    /// A warning for each of these settings whose value is odd: a switch that is neither on nor off, tags that are none, or a value with
    /// something around it. `raw`: from which these values come.
    pub(super) fn odd(&self, raw: &Raw, keys: &[Key]) -> Vec<Warning> {
        let mut odd = Vec::new();
        for key in keys {
            let Some(value) = self.get(key.name).map(ExposeSecret::expose_secret) else { continue };
            odd.extend(misfit(key, value));
            // cloud-api-adaptor trims some of what only the creation of a VM needs.
            let is_exact = key.concerns_deletion && key.kind != Kind::Tags;
            let has_line_end = !key.operator_only && raw.line_ends.contains(key.name);
            let around = around(value, is_exact, has_line_end);
            odd.extend(around.map(|around| Warning::NotAlone { key: key.name, around }));
        }
        odd
    }
}

/// The warning about a value that is not of its setting's kind.
fn misfit(key: &Key, value: &str) -> Option<Warning> {
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
}

/// What is around a value by mistake. `is_exact`: blanks and line ends count.
fn around(value: &str, is_exact: bool, has_line_end: bool) -> Option<&'static str> {
    let is_quoted = |quote: char| value.len() > 1 && value.starts_with(quote) && value.ends_with(quote);
    if value.trim_start().starts_with('{') {
        // What is around JSON does not matter.
        None
    } else if ['"', '\''].into_iter().any(is_quoted) {
        Some("is in quotes, which are part of the value")
    } else if !is_exact {
        None
    } else if value.trim() != value {
        Some("begins or ends with a blank, which is part of the value")
    } else {
        has_line_end.then_some("ends with a line end, which cloud-api-adaptor takes as part of the value")
    }
}
