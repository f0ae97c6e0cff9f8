//! The operator's rights: what the code declares, and no more.

use kube::api::ObjectMeta;
use operator_kit::{Permission, permission::bound_role};
use serde_json::{Error, Value};

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
    let metadata = Component::Adaptor.namespaced(&format!("{SERVICE_ACCOUNT}-{cloud}"), options);
    objects.extend(role(metadata, &[cloud.adaptor_permissions], SERVICE_ACCOUNT, options)?);
    Ok(objects)
}

/// Roles of this name for the operator, in the whole cluster and in its own namespace, with their bindings.
fn granted(
    name: &str,
    cluster: &[&[Permission]],
    namespace: &[&[Permission]],
    options: &Options,
) -> Result<Vec<Value>, Error> {
    let mut objects = role(Component::Operator.cluster_scoped(name), cluster, NAME, options)?;
    objects.extend(role(Component::Operator.namespaced(name, options), namespace, NAME, options)?);
    Ok(objects)
}

/// A role with this metadata for a ServiceAccount of the installation, and its binding. Nothing if it would allow nothing.
pub(super) fn role(
    metadata: ObjectMeta,
    permissions: &[&[Permission]],
    service_account: &str,
    options: &Options,
) -> Result<Vec<Value>, Error> {
    if permissions.iter().all(|permissions| permissions.is_empty()) {
        return Ok(Vec::new());
    }
    Ok(bound_role(metadata, permissions, &[service_account], &options.namespace)?.into())
}
