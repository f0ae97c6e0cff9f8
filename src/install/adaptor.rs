//! What cloud-api-adaptor may do. Its Pods make VMs for Pods of any namespace.

use operator_kit::Permission;

use super::{Component, rights::Rights};
use crate::peerpodconfig::resources::SERVICE_ACCOUNT;

/// cloud-api-adaptor's rights.
pub const RIGHTS: Rights = Rights {
    name: SERVICE_ACCOUNT,
    component: Component::Adaptor,
    cluster: &[
        // The Pods that get a VM, and what their images are pulled with.
        Permission::new("", &["pods", "secrets", "serviceaccounts"], &["get", "list"]),
        // A PeerPod blocks its owner's deletion, which takes this right where clusters are strict about it.
        Permission::new("", &["pods/finalizers"], &["update"]),
        Permission::new("confidentialcontainers.org", &["peerpods"], &["create", "patch", "update"]),
        // Labels of its node say the region, and annotations whose the extended resource is.
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
        // Where the provider ibmcloud finds the cluster's id if it is not told.
        (Some("kube-system"), &[Permission::new("", &["configmaps"], &["get"]).named(&["cluster-info"])]),
    ],
};
