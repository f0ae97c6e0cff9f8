//! Settings key by key, for people who want to know which values count and what is wrong (pure but for the reading).

use std::collections::BTreeMap;

use secrecy::{ExposeSecret, SecretString};
use serde::{Serialize, Serializer};

use super::snapshot::{Rejected, given};
use super::tls::{TlsError, TlsOptions};
use super::{Catalogue, Common, Folders, Key, Kind, Raw, SettingsError, Snapshot, Source, Warning};

/// All findings about a pair of folders, with all problems at once.
///
/// [`Raw::examine`] and [`Snapshot::parse`] judge it, as they do for a running operator.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// What a running operator would have in force; `None` if it would refuse the folders.
    pub snapshot: Option<Snapshot>,
    /// The name of the provider that the folders are for, if it can be determined.
    pub provider: Option<&'static str>,
    /// Why folders and files cannot be read.
    pub problems: Vec<SettingsError>,
    /// The settings: first those that deletion depends on, then other described ones, then what else is in the folders.
    pub entries: Vec<Entry>,
    /// Values that deletion needs and that must not be shown, by the setting's name: texts about the cloud may contain them.
    pub hidden: Vec<(&'static str, SecretString)>,
}

/// One setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name: the file's.
    pub name: String,
    /// Where its value comes from.
    pub source: Source,
    /// The value that counts.
    pub value: Shown,
    /// Whether this operator uses it.
    pub used: bool,
    /// Remarks, the worst first; empty if all is well.
    pub remarks: Vec<Remark>,
}

/// A value, as far as people may see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// There is none, and no default.
    None,
    /// There is one that must not be shown: it is from the Secret, or the setting may be a secret.
    Hidden,
    /// The value. What may be a password in it is left out.
    Text(String),
}

/// Something to say of a setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Remark {
    /// What kind of thing it is.
    pub verdict: Verdict,
    /// Whether it stops deletions.
    pub wrong: bool,
    /// What it is, and what to do.
    pub text: String,
}

/// What a setting can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No provider has a setting of this name.
    Unknown,
    /// It is required, and not given.
    Missing,
    /// Its value is not the expected one.
    Malformed,
    /// The folders give two different values.
    Conflicting,
}

impl Verdict {
    /// Its name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Missing => "missing",
            Self::Malformed => "malformed",
            Self::Conflicting => "conflicting",
        }
    }
}

impl Serialize for Verdict {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl Inspection {
    /// Reads the folders and judges what they hold; blocks on the file system.
    pub fn of(folders: &Folders, catalogue: Catalogue) -> Self {
        let (raw, problems) = Raw::examine(folders);
        Self::judge(&raw, catalogue, problems)
    }

    /// Judges what was read beside these problems.
    fn judge(raw: &Raw, catalogue: Catalogue, problems: Vec<SettingsError>) -> Self {
        let mut remarks = Remarks::default();
        let judged = Snapshot::judge(raw, catalogue);
        let snapshot = match judged {
            Ok(snapshot) => {
                remarks.of_snapshot(&snapshot);
                Some(snapshot)
            }
            Err(Rejected { error, warnings }) => {
                // An unreadable file may be the very file that is missing.
                if problems.is_empty() || !matches!(error, SettingsError::NoProvider { .. }) {
                    remarks.of_provider(&error);
                }
                remarks.of_warnings(&warnings);
                None
            }
        };
        let provider = snapshot.as_ref().map(Snapshot::cloud);
        remarks.of_webhook(raw);
        let own = snapshot.as_ref().map_or(&[][..], |snapshot| snapshot.schema.keys);
        let mut described: Vec<&Key> = Common::KEYS.iter().chain(own).collect();
        described.sort_by_key(|key| !key.concerns_deletion);
        let hidden = described.iter().filter(|key| key.concerns_deletion).filter_map(|key| {
            let (source, value) = given(raw, key.name)?;
            is_secret(key, source).then(|| (key.name, value.clone()))
        });
        let hidden = hidden.collect();
        let further = raw.names().into_iter().filter(|name| described.iter().all(|key| key.name != *name));
        let mut entries: Vec<Entry> = further.map(|name| remarks.further(raw, name)).collect();
        let described = described.into_iter().map(|key| remarks.described(raw, key, snapshot.is_some()));
        entries.splice(0..0, described.collect::<Vec<_>>());
        Self { snapshot: snapshot.filter(|_| problems.is_empty()), provider, problems, entries, hidden }
    }

    /// Whether deletions work under these settings, as far as the settings decide it.
    pub fn is_right(&self) -> bool {
        self.snapshot.as_ref().is_some_and(|snapshot| snapshot.obstacle().is_none())
    }
}

/// What there is to say, by the setting's name.
#[derive(Default)]
struct Remarks(BTreeMap<String, Vec<Remark>>);

impl Remarks {
    fn add(&mut self, name: &str, verdict: Verdict, wrong: bool, text: &dyn ToString) {
        let remark = Remark { verdict, wrong, text: text.to_string() };
        self.0.entry(name.to_owned()).or_default().push(remark);
    }

    fn of_provider(&mut self, error: &SettingsError) {
        let missing = matches!(error, SettingsError::NoProvider { .. });
        let verdict = if missing { Verdict::Missing } else { Verdict::Malformed };
        self.add("CLOUD_PROVIDER", verdict, true, error);
    }

    fn of_snapshot(&mut self, snapshot: &Snapshot) {
        for malformed in snapshot.malformed() {
            self.add(malformed.key, Verdict::Malformed, true, malformed);
        }
        if let Some(conflict) = &snapshot.conflict {
            for key in &conflict.keys {
                self.add(key, Verdict::Conflicting, true, conflict);
            }
        }
        self.of_warnings(&snapshot.warnings);
    }

    fn of_warnings(&mut self, warnings: &[Warning]) {
        for warning in warnings {
            let (name, verdict) = match warning {
                Warning::ProviderInferred { .. } => ("CLOUD_PROVIDER", Verdict::Missing),
                Warning::UnknownKey { name, .. } => (name.as_str(), Verdict::Unknown),
                Warning::DifferentValues { name } | Warning::EmptyWins { name } => {
                    (name.as_str(), Verdict::Conflicting)
                }
                Warning::NotABoolean { key }
                | Warning::NotATag { key }
                | Warning::NotTags { key }
                | Warning::NotAlone { key, .. } => (*key, Verdict::Malformed),
                Warning::ProvesNothing { .. } => ("SWEEP_CLUSTER", Verdict::Missing),
            };
            self.add(name, verdict, false, warning);
        }
    }

    /// The settings for TLS as the webhook uses them, which has the `ConfigMap` alone.
    fn of_webhook(&mut self, raw: &Raw) {
        let [min_version, ciphers] = ["TLS_MIN_VERSION", "TLS_CIPHER_SUITES"]
            .map(|name| raw.settings.get(name).map_or("", |value| value.expose_secret()));
        if let Err(problem) = TlsOptions::parse(min_version, ciphers) {
            let name = match problem {
                TlsError::Version(_) => "TLS_MIN_VERSION",
                TlsError::Cipher { .. } | TlsError::CiphersOfTls13 | TlsError::Refused(_) => {
                    "TLS_CIPHER_SUITES"
                }
            };
            let text = format!("the admission webhook cannot use it: {problem}");
            self.add(name, Verdict::Malformed, false, &text);
        }
    }

    fn is_malformed(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|all| all.iter().any(|it| it.wrong && it.verdict == Verdict::Malformed))
    }

    /// The entry of a setting that has a description.
    fn described(&mut self, raw: &Raw, key: &Key, accepted: bool) -> Entry {
        let (source, value) = match given(raw, key.name) {
            Some((source, value)) => (source, value.expose_secret()),
            None => (Source::Default, key.default),
        };
        if key.required && source == Source::Default && accepted {
            let what = match key.default {
                // That is said already.
                "" if self.0.contains_key(key.name) => None,
                "" => Some("cloud-api-adaptor usually cannot make VMs without it"),
                _ => Some("this operator uses the default, but cloud-api-adaptor does not start without it"),
            };
            if let Some(what) = what {
                self.add(key.name, Verdict::Missing, false, &format!("{} is not set; {what}", key.name));
            }
        }
        let value = match value {
            "" => Shown::None,
            _ if is_secret(key, source) => Shown::Hidden,
            text if self.is_malformed(key.name) => Shown::Text(without_secrets(text)),
            text => Shown::Text(without_password(text)),
        };
        self.entry(key.name, source, value, key.concerns_deletion)
    }

    /// The entry of another file in a folder. It may be secret.
    fn further(&mut self, raw: &Raw, name: &str) -> Entry {
        let (source, value) =
            given(raw, name).map_or((Source::Default, Shown::None), |(source, _)| (source, Shown::Hidden));
        self.entry(name, source, value, false)
    }

    fn entry(&mut self, name: &str, source: Source, value: Shown, used: bool) -> Entry {
        let mut remarks = self.0.remove(name).unwrap_or_default();
        remarks.sort_by_key(|remark| !remark.wrong);
        Entry { name: name.to_owned(), source, value, used, remarks }
    }
}

fn is_secret(key: &Key, source: Source) -> bool {
    key.kind == Kind::Secret || source == Source::Secret
}

/// The text without possible secrets, for a URI that could not be read. It leaves out what is between the user and the last `@`,
/// and what follows the question mark.
fn without_secrets(text: &str) -> String {
    let text = hidden_before(text, text.rfind('@'));
    text.split_once('?').map_or_else(|| text.clone(), |(text, _)| format!("{text}?(hidden)"))
}

/// The text without the password of a URL, with a scheme or without: some settings may have one that nothing uses.
fn without_password(text: &str) -> String {
    let start = after_scheme(text);
    let end = text[start..].find(['/', '?', '#']).map_or(text.len(), |end| start + end);
    hidden_before(text, text[..end].rfind('@'))
}

/// The text without what is between the first colon behind the scheme and this `@`.
fn hidden_before(text: &str, at: Option<usize>) -> String {
    let start = after_scheme(text);
    match (text[start..].find(':').map(|colon| start + colon), at) {
        (Some(colon), Some(at)) if colon < at => format!("{}:(hidden){}", &text[..colon], &text[at..]),
        _ => text.to_owned(),
    }
}

fn after_scheme(text: &str) -> usize {
    text.find("://").map_or(0, |at| at + 3)
}

#[cfg(test)]
mod tests;
