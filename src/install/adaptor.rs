//! What cloud-api-adaptor may do. Its Pods make VMs for Pods of any namespace.

use operator_kit::Permission;

use super::{Component, rights::Rights};
use crate::peerpodconfig::resources::SERVICE_ACCOUNT;

/// cloud-api-adaptor's rights.
pub const RIGHTS: Rights = Rights {
    name: SERVICE_ACCOUNT,
    component: Component::Adaptor,
    cluster: &[
        // The Pods that get a VM, and the Secrets with which their images are pulled.
        Permission::new("", &["pods", "secrets", "serviceaccounts"], &["get", "list"]),
        // A PeerPod blocks its owner's deletion. Clusters with OwnerReferencesPermissionEnforcement require this right for that.
        Permission::new("", &["pods/finalizers"], &["update"]),
        Permission::new("confidentialcontainers.org", &["peerpods"], &["create", "patch", "update"]),
        // Labels of its node contain the region. Annotations of it show which program advertises the extended resource.
        Permission::new("", &["nodes"], &["get", "patch"]),
        Permission::new("", &["nodes/status"], &["patch"]),
    ],
    namespaces: &[
        (
            None,
            &[
                Permission::new(
                    "",
                    &["secrets"],
                    &["get", "list", "watch", "create", "update", "patch", "delete"],
                ),
                // The pool of the provider byom.
                Permission::new("", &["configmaps"], &["create"]),
                Permission::new("", &["configmaps"], &["get", "watch", "update", "patch", "delete"])
                    .named(&["byom-ip-pool-state"]),
            ],
        ),
        // The provider ibmcloud reads the cluster's id here if the settings do not name it.
        (Some("kube-system"), &[Permission::new("", &["configmaps"], &["get"]).named(&["cluster-info"])]),
    ],
};
