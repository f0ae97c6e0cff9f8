//! Identities and rights of the programs that the operator deploys. They are part of the installation, because the operator would
//! need all of these rights to grant them.

use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::ObjectMeta;
use operator_kit::Permission;
use serde_json::{Error, to_value};

use super::{Component, Manifest, Options, rbac::role};

/// A program's ServiceAccount and all that it may do.
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
