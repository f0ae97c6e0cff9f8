//! What the admission webhook may do: keep its certificate, and tell the API server whom to trust.

use super::rights::Rights;
use crate::{
    NAMESPACE,
    peerpodconfig::build::webhook::{CERTIFICATE_SECRET, LEASE, SERVICE_ACCOUNT},
    permissions::Permission,
};

/// The webhook's rights.
pub const RIGHTS: Rights = Rights {
    name: SERVICE_ACCOUNT,
    component: "webhook",
    // The configurations are named after those who asked for them.
    cluster: &[Permission::new(
        "admissionregistration.k8s.io",
        &["mutatingwebhookconfigurations"],
        &["get", "list", "watch", "patch"],
    )],
    namespaces: &[(
        NAMESPACE,
        &[
            Permission::new("", &["secrets"], &["create"]),
            Permission::new("", &["secrets"], &["get", "list", "watch", "update"])
                .named(&[CERTIFICATE_SECRET]),
            Permission::new("coordination.k8s.io", &["leases"], &["create"]),
            Permission::new("coordination.k8s.io", &["leases"], &["get", "list", "watch", "update"])
                .named(&[LEASE]),
        ],
    )],
};
