//! Identities and rights of the programs that the operator deploys. They are part of the installation, so that the
//! operator can give no rights: it would have to have them all.

use k8s_openapi::api::{
    core::v1::ServiceAccount,
    rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding, Subject},
};
use kube::api::ObjectMeta;
use serde_json::{Error, to_value};

use super::{
    Manifest, metadata,
    rbac::{reference_to, rules},
};
use crate::{NAMESPACE, permissions::Permission};

/// A program's ServiceAccount and all that it may do.
#[derive(Clone, Copy, Debug)]
pub struct Rights {
    /// The name of the ServiceAccount, and of the roles and their bindings.
    pub name: &'static str,
    /// The program, as in the label `app.kubernetes.io/component`.
    pub component: &'static str,
    /// In the whole cluster.
    pub cluster: &'static [Permission],
    /// In single namespaces: the namespace, and what may be done there.
    pub namespaces: &'static [(&'static str, &'static [Permission])],
}

impl Rights {
    /// Everything in the order in which it must exist.
    pub fn objects(&self) -> Result<Vec<Manifest>, Error> {
        let mut objects = vec![to_value(ServiceAccount {
            metadata: self.metadata(Some(NAMESPACE)),
            ..ServiceAccount::default()
        })?];
        if !self.cluster.is_empty() {
            objects.push(to_value(ClusterRole {
                metadata: self.metadata(None),
                rules: Some(rules(&[self.cluster])),
                ..ClusterRole::default()
            })?);
            objects.push(to_value(ClusterRoleBinding {
                metadata: self.metadata(None),
                role_ref: reference_to("ClusterRole", self.name),
                subjects: Some(vec![self.subject()]),
            })?);
        }
        for (namespace, permissions) in self.namespaces {
            objects.push(to_value(Role {
                metadata: self.metadata(Some(namespace)),
                rules: Some(rules(&[permissions])),
            })?);
            objects.push(to_value(RoleBinding {
                metadata: self.metadata(Some(namespace)),
                role_ref: reference_to("Role", self.name),
                subjects: Some(vec![self.subject()]),
            })?);
        }
        Ok(objects.into_iter().map(|object| Manifest { file: self.name, object }).collect())
    }

    fn metadata(&self, namespace: Option<&str>) -> ObjectMeta {
        let mut metadata = ObjectMeta { namespace: namespace.map(str::to_owned), ..metadata(self.name) };
        let labels = metadata.labels.get_or_insert_default();
        labels.insert("app.kubernetes.io/component".to_owned(), self.component.to_owned());
        metadata
    }

    fn subject(&self) -> Subject {
        Subject {
            kind: "ServiceAccount".to_owned(),
            name: self.name.to_owned(),
            namespace: Some(NAMESPACE.to_owned()),
            ..Subject::default()
        }
    }
}
