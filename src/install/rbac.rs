//! The operator's rights: what the code declares, and no more.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, RoleRef, Subject};
use kube::api::ObjectMeta;

use super::{NAME, metadata};
use crate::{NAMESPACE, peerpod, permissions::Permission};

/// The rights of every controller together.
pub fn permissions() -> impl Iterator<Item = &'static Permission> {
    peerpod::PERMISSIONS.iter()
}

/// The operator's role.
pub fn cluster_role() -> ClusterRole {
    let owned = |texts: &[&str]| Some(texts.iter().map(|text| (*text).to_owned()).collect());
    let rules = permissions()
        .map(|permission| PolicyRule {
            api_groups: Some(vec![permission.group.to_owned()]),
            resources: owned(permission.resources),
            verbs: permission.verbs.iter().map(|verb| (*verb).to_owned()).collect(),
            ..PolicyRule::default()
        })
        .collect();
    ClusterRole { metadata: cluster_scoped(), rules: Some(rules), ..ClusterRole::default() }
}

/// Gives the role to the operator's ServiceAccount.
pub fn cluster_role_binding() -> ClusterRoleBinding {
    ClusterRoleBinding {
        metadata: cluster_scoped(),
        role_ref: RoleRef {
            api_group: Some("rbac.authorization.k8s.io".to_owned()),
            kind: "ClusterRole".to_owned(),
            name: NAME.to_owned(),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".to_owned(),
            name: NAME.to_owned(),
            namespace: Some(NAMESPACE.to_owned()),
            ..Subject::default()
        }]),
    }
}

fn cluster_scoped() -> ObjectMeta {
    ObjectMeta { namespace: None, ..metadata(NAME) }
}
