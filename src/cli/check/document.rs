//! The findings, as they are printed. Fields and their values are added, never renamed, while `version` is 1.

use serde::Serialize;

use super::redaction::Redaction;
use crate::{
    provider::{self, Error, ErrorClass},
    settings::{Entry, Folders, Inspection, Remark, Shown, Source},
};

/// The report as a whole.
#[derive(Debug, Serialize)]
pub(super) struct Document {
    /// Of this format: 1.
    pub(super) version: u32,
    pub(super) result: Outcome,
    /// One for each pair of folders.
    pub(super) providers: Vec<Provider>,
}

/// How the check ended: the exit code says the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    Ok,
    /// The settings are wrong.
    Settings,
    /// The cloud is not reached or refuses.
    Cloud,
}

/// A pair of folders and what they describe.
#[derive(Debug, Serialize)]
pub(super) struct Provider {
    /// Its name as in `CLOUD_PROVIDER`; null if it cannot be determined.
    pub(super) name: Option<&'static str>,
    pub(super) settings_dir: String,
    pub(super) credentials_dir: Option<String>,
    /// What of the folders cannot be read.
    pub(super) problems: Vec<String>,
    pub(super) settings: Vec<Setting>,
    pub(super) cloud: Cloud,
}

/// One setting.
#[derive(Debug, Serialize)]
pub(super) struct Setting {
    pub(super) key: String,
    /// `config_map`, `secret` or `default`.
    pub(super) source: Source,
    /// Null if there is none, or if it is hidden.
    pub(super) value: Option<String>,
    /// Whether there is a value that is not shown.
    pub(super) hidden: bool,
    /// Whether this operator uses it.
    pub(super) used: bool,
    /// `ok`, or the verdict of the first remark.
    pub(super) verdict: &'static str,
    /// Each has the verdict `unknown`, `missing`, `malformed` or `conflicting`. One that is not wrong is a warning.
    pub(super) remarks: Vec<Remark>,
}

/// What became of the cloud.
#[derive(Debug, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub(super) enum Cloud {
    /// The settings are wrong, so the cloud was not asked.
    NotTried,
    /// It was not reached.
    Unreached {
        class: &'static str,
        error: String,
    },
    Reached {
        findings: Vec<ReportedFinding>,
    },
}

/// One thing that was found out there.
#[derive(Debug, Serialize)]
pub(super) struct ReportedFinding {
    pub(super) subject: &'static str,
    /// `works`, `fails` or `untried`.
    pub(super) outcome: &'static str,
    /// What kind of failure it is, as in the metric `peerpod_operator_provider_calls_total`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) class: Option<&'static str>,
    pub(super) text: String,
}

impl Document {
    pub(super) fn new(folders: &Folders, inspection: Inspection, cloud: Cloud) -> Self {
        let result = if inspection.is_right() { cloud.outcome() } else { Outcome::Settings };
        let provider = Provider {
            name: inspection.provider,
            settings_dir: folders.settings.display().to_string(),
            credentials_dir: folders.credentials.as_ref().map(|folder| folder.display().to_string()),
            problems: inspection.problems.iter().map(ToString::to_string).collect(),
            settings: inspection.entries.into_iter().map(Setting::new).collect(),
            cloud,
        };
        Self { version: 1, result, providers: vec![provider] }
    }
}

impl Setting {
    fn new(Entry { name, source, value, used, remarks }: Entry) -> Self {
        Self {
            key: name,
            source,
            hidden: value == Shown::Hidden,
            value: match value {
                Shown::Text(text) => Some(text),
                Shown::None | Shown::Hidden => None,
            },
            used,
            verdict: remarks.first().map_or("ok", |remark| remark.verdict.as_str()),
            remarks,
        }
    }
}

impl Cloud {
    /// What the cloud answered, without what must not be shown.
    pub(super) fn new(answer: Result<Vec<provider::Finding>, Error>, redaction: &Redaction) -> Self {
        match answer {
            Ok(findings) => Self::Reached {
                findings: findings.into_iter().map(|it| ReportedFinding::new(it, redaction)).collect(),
            },
            Err(Error { class, message }) => {
                Self::Unreached { class: class.as_str(), error: redaction.apply(message.for_log()) }
            }
        }
    }

    pub(super) fn outcome(&self) -> Outcome {
        let classes: Vec<_> = match self {
            Self::NotTried => Vec::new(),
            Self::Unreached { class, .. } => vec![*class],
            Self::Reached { findings } => findings.iter().filter_map(|finding| finding.class).collect(),
        };
        if classes.is_empty() {
            Outcome::Ok
        } else if classes.contains(&ErrorClass::Invalid.as_str()) {
            Outcome::Settings
        } else {
            Outcome::Cloud
        }
    }
}

impl ReportedFinding {
    fn new(finding: provider::Finding, redaction: &Redaction) -> Self {
        let (outcome, class, text) = match finding.outcome {
            provider::Outcome::Works(text) => ("works", None, text),
            provider::Outcome::Fails(Error { class, message }) => {
                ("fails", Some(class.as_str()), message.for_log().to_owned())
            }
            provider::Outcome::Untried(why) => ("untried", None, why),
        };
        Self { subject: finding.subject, outcome, class, text: redaction.apply(&text) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::settings::Verdict;

    #[test]
    fn a_setting_has_the_verdict_of_its_first_remark() {
        let setting = |source, value, remarks| {
            json!(Setting::new(Entry { name: "KEY".into(), source, value, used: true, remarks }))
        };
        let remark = |verdict, wrong| Remark { verdict, wrong, text: "what to do".into() };
        assert_eq!(
            setting(Source::Default, Shown::Text("x".into()), Vec::new()),
            json!({
                "key": "KEY", "source": "default", "value": "x", "hidden": false, "used": true, "verdict": "ok",
                "remarks": [],
            })
        );
        for (source, verdict, texts) in [
            (Source::ConfigMap, Verdict::Unknown, ["config_map", "unknown"]),
            (Source::Secret, Verdict::Malformed, ["secret", "malformed"]),
            (Source::Secret, Verdict::Conflicting, ["secret", "conflicting"]),
        ] {
            let remarks = vec![remark(verdict, true), remark(Verdict::Missing, false)];
            assert_eq!(
                setting(source, Shown::Hidden, remarks),
                json!({
                    "key": "KEY", "source": texts[0], "value": null, "hidden": true, "used": true, "verdict": texts[1],
                    "remarks": [
                        { "verdict": texts[1], "wrong": true, "text": "what to do" },
                        { "verdict": "missing", "wrong": false, "text": "what to do" },
                    ],
                })
            );
        }
    }
}
