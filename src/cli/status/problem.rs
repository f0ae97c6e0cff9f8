//! What fails, as `status` prints it *(no client)*.

use serde::Serialize;

/// Something that fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Problem {
    pub(super) severity: Severity,
    /// What it is about.
    pub(super) subject: String,
    pub(super) text: String,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Severity {
    /// It does not work.
    Error,
    /// It works; or only this report lacks something.
    Warning,
}
