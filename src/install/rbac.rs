//! The operator's rights: what the code declares, and no more.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding, RoleRef, Subject};
use operator_kit::{Permission, permission::rules};
use serde_json::{Error, Value, to_value};

use super::{Component, NAME, Options};
use crate::{
    cli::{DRAIN_PERMISSIONS, LEASE_PERMISSIONS},
    cluster, peerpod, peerpodconfig,
    provider::{Cloud, places},
};

/// The operator's role in the whole cluster: the rights of every controller together.
pub fn cluster_role() -> ClusterRole {
    ClusterRole {
        metadata: Component::Operator.cluster_scoped(NAME),
        rules: Some(rules(&[
            peerpod::PERMISSIONS,
            cluster::PERMISSIONS,
            peerpodconfig::PERMISSIONS,
            peerpodconfig::adaptor::PERMISSIONS,
            peerpodconfig::admission::PERMISSIONS,
            peerpodconfig::capacity::PERMISSIONS,
        ])),
        ..ClusterRole::default()
    }
}

/// Gives the role to the operator's ServiceAccount.
pub fn cluster_role_binding(options: &Options) -> ClusterRoleBinding {
    ClusterRoleBinding {
        metadata: Component::Operator.cluster_scoped(NAME),
        role_ref: reference_to("ClusterRole", NAME),
        subjects: Some(vec![account(NAME, options)]),
    }
}

/// The operator's role in its own namespace, where its lease is.
pub fn role(options: &Options) -> Role {
    Role {
        metadata: Component::Operator.namespaced(NAME, options),
        rules: Some(rules(&[
            &LEASE_PERMISSIONS,
            places::PERMISSIONS,
            peerpodconfig::NAMESPACE_PERMISSIONS,
            peerpodconfig::adaptor::NAMESPACE_PERMISSIONS,
            peerpodconfig::admission::NAMESPACE_PERMISSIONS,
            peerpodconfig::admission::webhook_resources::PERMISSIONS,
            DRAIN_PERMISSIONS,
        ])),
    }
}

/// Gives the role to the operator's ServiceAccount.
pub fn role_binding(options: &Options) -> RoleBinding {
    RoleBinding {
        metadata: Component::Operator.namespaced(NAME, options),
        role_ref: reference_to("Role", NAME),
        subjects: Some(vec![account(NAME, options)]),
    }
}

/// Roles for what the operator may do for one cloud alone, in its own namespace and in the whole cluster, and their bindings. Empty
/// for most clouds.
pub fn cloud_rights(cloud: &Cloud, options: &Options) -> Result<Vec<Value>, Error> {
    let (name, subjects) = (format!("{NAME}-{cloud}"), vec![account(NAME, options)]);
    let mut objects = Vec::new();
    if !cloud.permissions.is_empty() {
        let metadata = Component::Operator.namespaced(&name, options);
        let role = Role { metadata: metadata.clone(), rules: Some(rules(&[cloud.permissions])) };
        let role_ref = reference_to("Role", &name);
        let binding = RoleBinding { metadata, role_ref, subjects: Some(subjects.clone()) };
        objects.extend([to_value(role)?, to_value(binding)?]);
    }
    if !cloud.cluster_permissions.is_empty() {
        objects.extend(cluster_wide(Component::Operator, &name, cloud.cluster_permissions, subjects)?);
    }
    Ok(objects)
}

/// A role in the whole cluster, and its subjects.
pub(super) fn cluster_wide(
    component: Component,
    name: &str,
    permissions: &[Permission],
    subjects: Vec<Subject>,
) -> Result<[Value; 2], Error> {
    let role = ClusterRole {
        metadata: component.cluster_scoped(name),
        rules: Some(rules(&[permissions])),
        ..ClusterRole::default()
    };
    let binding = ClusterRoleBinding {
        metadata: component.cluster_scoped(name),
        role_ref: reference_to("ClusterRole", name),
        subjects: Some(subjects),
    };
    Ok([to_value(role)?, to_value(binding)?])
}

pub(super) fn reference_to(kind: &str, name: &str) -> RoleRef {
    RoleRef {
        #[allow(
            clippy::useless_conversion,
            reason = "newer versions of Kubernetes' types have an Option here"
        )]
        api_group: "rbac.authorization.k8s.io".to_owned().into(),
        kind: kind.to_owned(),
        name: name.to_owned(),
    }
}

/// A ServiceAccount of the installation, as the subject of a binding.
pub(super) fn account(name: &str, options: &Options) -> Subject {
    Subject {
        kind: "ServiceAccount".to_owned(),
        name: name.to_owned(),
        namespace: Some(options.namespace.clone()),
        ..Subject::default()
    }
}
