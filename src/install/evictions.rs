//! The right to evict Pods that lost their VM: part of an installation whose operator runs with `--lost-vms=delete-pod`.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use operator_kit::permission::rules;
use serde_json::{Error, Value, to_value};

use super::{
    Component, NAME, Options,
    rbac::{account, reference_to},
};
use crate::sweep::EVICTIONS;

/// The role, and its binding.
pub const ROLE: &str = "peerpod-operator-evict";

/// The argument of the operator that uses it.
pub const ARGUMENT: &str = "--lost-vms=delete-pod";

/// The role, and the operator as the one who has it.
pub fn objects(options: &Options) -> Result<[Value; 2], Error> {
    let role = ClusterRole {
        metadata: Component::Operator.cluster_scoped(ROLE),
        rules: Some(rules(&[EVICTIONS])),
        ..ClusterRole::default()
    };
    let binding = ClusterRoleBinding {
        metadata: Component::Operator.cluster_scoped(ROLE),
        role_ref: reference_to("ClusterRole", ROLE),
        subjects: Some(vec![account(NAME, options)]),
    };
    Ok([to_value(role)?, to_value(binding)?])
}
