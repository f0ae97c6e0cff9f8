//! Rights in the cluster, declared beside the code that uses them and generated into its role.

use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};
use kube::api::ObjectMeta;
use serde_json::{Value, to_value};

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

    /// This rule for objects of these names alone. (A right to create or to list without a field selector cannot be
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

/// A role with all of these rights, and its binding to these `ServiceAccounts` of this namespace. Both objects have this metadata. If
/// that has a namespace, the rights are there, else in the whole cluster.
pub fn bound_role(
    metadata: ObjectMeta,
    permissions: &[&[Permission]],
    accounts: &[&str],
    namespace: &str,
) -> serde_json::Result<[Value; 2]> {
    let subject = |account: &&str| Subject {
        kind: "ServiceAccount".to_owned(),
        name: (*account).to_owned(),
        namespace: Some(namespace.to_owned()),
        ..Subject::default()
    };
    let is_namespaced = metadata.namespace.is_some();
    let kind = if is_namespaced { "Role" } else { "ClusterRole" };
    let role_ref = RoleRef {
        #[allow(clippy::useless_conversion, reason = "in newer versions of Kubernetes it is optional")]
        api_group: "rbac.authorization.k8s.io".to_owned().into(),
        kind: kind.to_owned(),
        name: metadata.name.clone().unwrap_or_default(),
    };
    let (of_role, rules) = (metadata.clone(), Some(rules(permissions)));
    let subjects = Some(accounts.iter().map(subject).collect());
    Ok(if is_namespaced {
        let role = Role { metadata: of_role, rules };
        [to_value(role)?, to_value(RoleBinding { metadata, role_ref, subjects })?]
    } else {
        let role = ClusterRole { metadata: of_role, rules, ..ClusterRole::default() };
        [to_value(role)?, to_value(ClusterRoleBinding { metadata, role_ref, subjects })?]
    })
}
