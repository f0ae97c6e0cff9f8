//! The right to evict Pods that lost their VM: part of an installation whose operator runs with `--lost-vms=delete-pod`.

use operator_kit::permission::bound_role;
use serde_json::{Error, Value};

use super::{Component, NAME, Options};
use crate::sweep::EVICTIONS;

/// The role, and its binding.
pub const ROLE: &str = "peerpod-operator-evict";

/// The argument of the operator that uses it.
pub const ARGUMENT: &str = "--lost-vms=delete-pod";

/// The role, and its binding to the operator.
pub fn objects(options: &Options) -> Result<[Value; 2], Error> {
    bound_role(Component::Operator.cluster_scoped(ROLE), &[EVICTIONS], &[NAME], &options.namespace)
}
