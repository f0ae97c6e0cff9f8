//! The conditions of nodes and Pods, as far as the operator reads them *(no client)*.

use operator_kit::projection::Part;
use serde::Deserialize;

/// What is read of each condition.
pub(super) const CONDITION: Part = Part::Only(&[("type", Part::All), ("status", Part::All)]);

/// The part of a condition that is decoded.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct ConditionView {
    #[serde(rename = "type")]
    pub(super) type_: String,
    pub(super) status: String,
}

/// Whether the condition of this type is there and True.
pub(super) fn is_true(conditions: &[ConditionView], type_: &str) -> bool {
    conditions.iter().any(|it| it.type_ == type_ && it.status == "True")
}
