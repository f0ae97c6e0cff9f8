//! Identifiers of VMs, in the one form that can be compared.

use std::fmt;

use uuid::Uuid;

use super::Cloud;

/// A VM's identifier in its cloud's canonical form. Two equal identifiers of one cloud name the same VM. Two others may name the
/// same VM, too, if their [keys](InstanceId::key) are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceId {
    canonical: Box<str>,
    /// The scope is the first bytes of it, this many.
    scope: usize,
    /// Where its key begins.
    key: usize,
}

/// An identifier as a cloud's [rule](Cloud::parse_id) reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedId {
    /// The canonical spelling. It begins with the scope, if there is one.
    pub canonical: String,
    /// The length in bytes of the scope in which the cloud looks the VM up (azure: subscription and resource group). The provider
    /// asks in that scope only, whatever the settings name. 0: the identifier has no scope.
    pub scope: usize,
    /// Where the part begins that all spellings of this VM's identifier have in common. 0: there is one spelling.
    pub key: usize,
}

impl ParsedId {
    /// A UUID. `None` if the text is none.
    pub(super) fn uuid(raw: &str) -> Option<Self> {
        Some(Self::unscoped(Uuid::try_parse(raw).ok()?.hyphenated().to_string()))
    }

    /// An identifier that does not say where the VM is.
    pub fn unscoped(canonical: impl Into<String>) -> Self {
        Self { canonical: canonical.into(), scope: 0, key: 0 }
    }
}

/// Why a recorded identifier names no VM.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdProblem {
    /// Nothing was recorded.
    #[error("spec.instanceID is empty: cloud-api-adaptor did not record which VM it made")]
    Empty,
    /// What was recorded cannot be an identifier of that cloud.
    #[error("spec.instanceID is not {expected}{}", hint.map(|hint| format!(": {hint}")).unwrap_or_default())]
    Malformed {
        /// What it should be.
        expected: &'static str,
        /// Why it may look like this, if that is known.
        hint: Option<&'static str>,
    },
}

impl InstanceId {
    /// Reads `spec.instanceID` as the cloud named `spec.cloudProvider` spells it. Identifiers of clouds that this operator does
    /// not support are kept unchanged, so that they can still be compared.
    pub fn parse(cloud_provider: &str, raw: &str) -> Result<Self, IdProblem> {
        let raw = raw.trim();
        if raw.is_empty() {
            return Err(IdProblem::Empty);
        }
        let parse = Cloud::named(cloud_provider).map_or(verbatim as fn(&str) -> _, |cloud| cloud.parse_id);
        parse(raw).map(Self::from)
    }

    /// Reads an identifier, which is not empty, as this cloud spells it.
    pub fn of(cloud: &Cloud, raw: &str) -> Result<Self, IdProblem> {
        (cloud.parse_id)(raw).map(Self::from)
    }

    /// An identifier in this scope.
    #[cfg(test)]
    pub(crate) fn scoped(scope: &str, rest: &str) -> Self {
        Self { canonical: format!("{scope}{rest}").into(), scope: scope.len(), key: 0 }
    }

    /// The canonical spelling.
    pub fn as_str(&self) -> &str {
        &self.canonical
    }

    /// What all identifiers of this VM have in common. Where a cloud knows a VM by its name and by a path, the name: the same name in
    /// another scope may be another VM, and counts as the same one where a doubt must protect it.
    pub fn key(&self) -> &str {
        self.canonical.get(self.key..).unwrap_or(&self.canonical)
    }

    /// The VM's scope, if the identifier has one.
    pub fn scope(&self) -> Option<&str> {
        self.canonical.get(..self.scope).filter(|scope| !scope.is_empty())
    }
}

/// Keeps an identifier as it was recorded. The rule for clouds whose identifiers have one form, and for clouds that this operator
/// does not support.
#[allow(clippy::unnecessary_wraps, reason = "it is one of several rules")]
pub(super) fn verbatim(raw: &str) -> Result<ParsedId, IdProblem> {
    Ok(ParsedId::unscoped(raw))
}

impl From<ParsedId> for InstanceId {
    fn from(ParsedId { canonical, scope, key }: ParsedId) -> Self {
        Self { canonical: canonical.into(), scope, key }
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.canonical)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_uuid_are_one_id() {
        let canonical = "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11";
        for spelling in
            [canonical, "0DD2F0C5-6A3D-44A7-9B5E-2F7A6C2F9A11", "0dd2f0c56a3d44a79b5e2f7a6c2f9a11"]
        {
            assert_eq!(InstanceId::parse("libvirt", spelling).unwrap().as_str(), canonical);
        }
    }

    #[test]
    fn a_runtime_number_is_refused_with_its_reason() {
        let problem = InstanceId::parse("libvirt", "17").unwrap_err().to_string();
        assert!(problem.contains("reuses"), "{problem}");
        assert!(!InstanceId::parse("libvirt", "web").unwrap_err().to_string().contains("reuses"));
    }

    #[test]
    fn nothing_recorded_is_empty_in_every_cloud() {
        for cloud in ["libvirt", "aws", "nonsense", ""] {
            assert_eq!(InstanceId::parse(cloud, " "), Err(IdProblem::Empty));
        }
    }

    #[test]
    fn an_unknown_cloud_takes_ids_as_they_stand() {
        assert_eq!(InstanceId::parse("nonsense", "i-0A").unwrap().as_str(), "i-0A");
    }
}
