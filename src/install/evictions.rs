//! The right to evict Pods that lost their VM: part of an installation whose operator runs with `--lost-vms=delete-pod`.

use serde_json::{Error, Value};

use super::{
    Component, NAME, Options,
    rbac::{account, cluster_wide},
};
use crate::sweep::EVICTIONS;

/// The role, and its binding.
pub const ROLE: &str = "peerpod-operator-evict";

/// The argument of the operator that uses it.
pub const ARGUMENT: &str = "--lost-vms=delete-pod";

/// The role, and its binding to the operator.
pub fn objects(options: &Options) -> Result<[Value; 2], Error> {
    cluster_wide(Component::Operator, ROLE, &[EVICTIONS], vec![account(NAME, options)])
}
