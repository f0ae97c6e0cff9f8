//! The operator's rights: what the code declares, and no more.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding, RoleRef, Subject};
use operator_kit::{Permission, permission::rules};
use serde_json::{Error, Value, to_value};

use super::{Component, NAME, Options};
use crate::{
    cli::{DRAIN_PERMISSIONS, LEASE_PERMISSIONS},
    cluster, peerpod,
    peerpodconfig::{self, resources::SERVICE_ACCOUNT},
    provider::{Cloud, places},
};

/// The name of the roles, and their bindings, that the controller of `PeerPodConfig`s needs beside [`NAME`]'s. An operator that does not
/// run it has none of these: they allow privileged Pods, changes of admission and nodes, and reads of the namespace's Secrets.
pub const PEERPODCONFIG_ROLE: &str = "peerpod-operator-peerpodconfig";

/// What every operator may do: all that the controller of `PeerPod`s and `drain` need.
pub fn rights(options: &Options) -> Result<Vec<Value>, Error> {
    granted(
        NAME,
        &[peerpod::PERMISSIONS, cluster::PERMISSIONS],
        &[&LEASE_PERMISSIONS, places::PERMISSIONS, DRAIN_PERMISSIONS],
        options,
    )
}

/// What an operator may do beside that if it runs the controller of `PeerPodConfig`s.
pub fn peerpodconfig_rights(options: &Options) -> Result<Vec<Value>, Error> {
    granted(
        PEERPODCONFIG_ROLE,
        &[
            peerpodconfig::PERMISSIONS,
            peerpodconfig::adaptor::PERMISSIONS,
            peerpodconfig::admission::PERMISSIONS,
            peerpodconfig::capacity::PERMISSIONS,
        ],
        &[
            peerpodconfig::NAMESPACE_PERMISSIONS,
            peerpodconfig::adaptor::NAMESPACE_PERMISSIONS,
            peerpodconfig::admission::NAMESPACE_PERMISSIONS,
            peerpodconfig::admission::webhook_resources::PERMISSIONS,
        ],
        options,
    )
}

/// What the operator and cloud-api-adaptor may do for one cloud alone; empty for most clouds.
pub fn cloud_rights(cloud: &Cloud, options: &Options) -> Result<Vec<Value>, Error> {
    let mut objects =
        granted(&format!("{NAME}-{cloud}"), &[cloud.cluster_permissions], &[cloud.permissions], options)?;
    let name = format!("{SERVICE_ACCOUNT}-{cloud}");
    let permissions = &[cloud.adaptor_permissions];
    objects.extend(in_namespace(Component::Adaptor, SERVICE_ACCOUNT, &name, permissions, options)?);
    Ok(objects)
}

/// Roles of this name for the operator, in the whole cluster and in its own namespace, with their bindings. A role that would allow
/// nothing is left out.
fn granted(
    name: &str,
    cluster: &[&[Permission]],
    namespace: &[&[Permission]],
    options: &Options,
) -> Result<Vec<Value>, Error> {
    let mut objects = Vec::new();
    if cluster.iter().any(|permissions| !permissions.is_empty()) {
        let subjects = vec![account(NAME, options)];
        objects.extend(cluster_wide(Component::Operator, name, cluster, subjects)?);
    }
    objects.extend(in_namespace(Component::Operator, NAME, name, namespace, options)?);
    Ok(objects)
}

/// A role of this name in the operator's namespace for a program and its ServiceAccount, with its binding. A role that would allow
/// nothing is left out.
fn in_namespace(
    component: Component,
    service_account: &str,
    name: &str,
    permissions: &[&[Permission]],
    options: &Options,
) -> Result<Vec<Value>, Error> {
    let rules = rules(permissions);
    if rules.is_empty() {
        return Ok(Vec::new());
    }
    let metadata = component.namespaced(name, options);
    let role = Role { metadata: metadata.clone(), rules: Some(rules) };
    let role_ref = reference_to("Role", name);
    let subjects = Some(vec![account(service_account, options)]);
    Ok(vec![to_value(role)?, to_value(RoleBinding { metadata, role_ref, subjects })?])
}

/// A role in the whole cluster, and its subjects.
pub(super) fn cluster_wide(
    component: Component,
    name: &str,
    permissions: &[&[Permission]],
    subjects: Vec<Subject>,
) -> Result<[Value; 2], Error> {
    let role = ClusterRole {
        metadata: component.cluster_scoped(name),
        rules: Some(rules(permissions)),
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
