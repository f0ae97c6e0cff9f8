//! Rights in the cluster, declared beside the code that uses them and generated into its role.

use k8s_openapi::api::rbac::v1::PolicyRule;

/// One rule of a role: these verbs on these resources of this API group (empty: the core group).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permission {
    /// The API group.
    pub group: &'static str,
    /// Plural names of resources, subresources as `resource/subresource`.
    pub resources: &'static [&'static str],
    /// What may be done.
    pub verbs: &'static [&'static str],
    /// The objects' names; none: any.
    pub names: &'static [&'static str],
}

impl Permission {
    /// A rule.
    pub const fn new(
        group: &'static str,
        resources: &'static [&'static str],
        verbs: &'static [&'static str],
    ) -> Self {
        Self { group, resources, verbs, names: &[] }
    }

    /// The same for objects of these names alone. (A right to create or to list without a field selector cannot be
    /// limited so.)
    #[must_use]
    pub const fn named(self, names: &'static [&'static str]) -> Self {
        Self { names, ..self }
    }
}

/// The rules of a role with all of these rights.
pub fn rules(permissions: &[&[Permission]]) -> Vec<PolicyRule> {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let rule = |permission: &Permission| PolicyRule {
        api_groups: Some(vec![permission.group.to_owned()]),
        resources: Some(owned(permission.resources)),
        resource_names: Some(owned(permission.names)).filter(|names| !names.is_empty()),
        verbs: owned(permission.verbs),
        ..PolicyRule::default()
    };
    permissions.iter().copied().flatten().map(rule).collect()
}
