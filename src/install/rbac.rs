//! The rights of the operator and of the programs that it deploys: what the code declares, and no more.

use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::ObjectMeta;
use operator_kit::{Permission, permission::bound_role};
use serde_json::{Error, Value, to_value};

use super::{Component, Manifest, NAME, Options};
use crate::{
    cli::{DRAIN_PERMISSIONS, LEASE_PERMISSIONS},
    cluster, peerpod,
    peerpodconfig::{
        self,
        resources::{SERVICE_ACCOUNT, webhook},
    },
    provider::{Cloud, places},
    webhook::certificates::rotation,
};

/// The name of the roles, and their bindings, that the controller of `PeerPodConfig`s needs beside [`NAME`]'s. An operator that does not
/// run it has none of these: they allow privileged Pods, changes of admission and nodes, and reads of the namespace's Secrets.
pub const PEERPODCONFIG_ROLE: &str = "peerpod-operator-peerpodconfig";

/// What the admission webhook may do: keep its certificate, and read which authorities the API server trusts.
pub const WEBHOOK_RIGHTS: Rights = Rights {
    name: webhook::SERVICE_ACCOUNT,
    component: Component::Webhook,
    cluster: rotation::CLUSTER_PERMISSIONS,
    namespaces: &[(None, rotation::PERMISSIONS)],
};

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

/// The ServiceAccount of a program that the operator deploys, and all that it may do. It is part of the installation, because the operator
/// would need all of these rights to grant them.
#[derive(Clone, Copy, Debug)]
pub struct Rights {
    /// The name of the ServiceAccount, and of the roles and their bindings.
    pub name: &'static str,
    /// The program.
    pub component: Component,
    /// In the whole cluster.
    pub cluster: &'static [Permission],
    /// Rights in single namespaces: the namespace, or `None` for that of the installation, and the permissions there.
    pub namespaces: &'static [(Option<&'static str>, &'static [Permission])],
}

impl Rights {
    /// Everything in the order in which it must exist.
    pub fn objects(&self, options: &Options) -> Result<Vec<Manifest>, Error> {
        let mut objects = vec![to_value(ServiceAccount {
            metadata: self.component.namespaced(self.name, options),
            ..ServiceAccount::default()
        })?];
        let metadata = self.component.cluster_scoped(self.name);
        objects.extend(role(metadata.clone(), &[self.cluster], self.name, options)?);
        for (namespace, permissions) in self.namespaces {
            let namespace = namespace.unwrap_or(&options.namespace).to_owned();
            let metadata = ObjectMeta { namespace: Some(namespace), ..metadata.clone() };
            objects.extend(role(metadata, &[permissions], self.name, options)?);
        }
        Ok(objects.into_iter().map(|object| Manifest { file: self.name, object }).collect())
    }
}

/// A role with this metadata for a ServiceAccount of the installation, and its binding. Nothing if it would allow nothing.
fn role(
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
