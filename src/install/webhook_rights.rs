//! What the admission webhook may do: keep its certificate, and read which authorities the API server trusts.

use super::{Component, rights::Rights};
use crate::{
    peerpodconfig::resources::webhook::SERVICE_ACCOUNT,
    webhook::certificates::rotation::{CLUSTER_PERMISSIONS, PERMISSIONS},
};

/// The webhook's rights.
pub const RIGHTS: Rights = Rights {
    name: SERVICE_ACCOUNT,
    component: Component::Webhook,
    cluster: CLUSTER_PERMISSIONS,
    namespaces: &[(None, PERMISSIONS)],
};
