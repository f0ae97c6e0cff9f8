//! The status that the operator writes *(no client)*.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use operator_kit::{api_call::ApiError, apply::Applied, conditions::NewCondition};

use crate::api::{CRDS, Ptemplate, PtemplateStatus};
use crate::module::{KMM, Module};

/// The result of applying an object of a Ptemplate.
pub type Outcome = Result<Applied, ApiError>;

/// Why there is no Module: KMM is not installed.
pub fn kmm_is_missing(module: &Outcome) -> Option<String> {
    KMM.missing::<Module>(module.as_ref().err()?.cause()?)
}

/// The status of a Ptemplate, with the names of its `consumers`. `lacking`: the fields that the installed definition lacks.
pub fn status(
    ptemplate: &Ptemplate,
    (module, consumer): (&Outcome, &Outcome),
    mut consumers: Vec<String>,
    lacking: &[String],
    now: Timestamp,
) -> PtemplateStatus {
    let before = ptemplate.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let say = |type_: &str, is_true: bool, reason: &str, message: &str| {
        let condition = NewCondition { type_, is_true, reason, message };
        condition.after(before, ptemplate.metadata.generation, now)
    };
    let applied = |type_: &str, outcome: &Outcome| -> Condition {
        match outcome {
            Ok(Applied::Foreign) => {
                say(type_, false, "NameTaken", "another program made an object of this name")
            }
            Ok(Applied::AsWanted | Applied::Written) => say(type_, true, "AsWanted", ""),
            Err(error) => {
                let reason = if error.is_refusal() { "Refused" } else { "Failed" };
                // What is invalid comes from the Ptemplate, so its users may read what the API server says about it.
                let message = error.invalid().map_or_else(|| error.in_namespace(), str::to_owned);
                say(type_, false, reason, &message)
            }
        }
    };
    let module = match kmm_is_missing(module) {
        Some(missing) => say("ModuleApplied", false, "KmmNotInstalled", &missing),
        None => applied("ModuleApplied", module),
    };
    let mut conditions = vec![module, applied("ConsumerApplied", consumer)];
    // The API server refuses an apply as a whole if the definition lacks one of its fields. The conditions would be lost, too.
    if lacking.iter().any(|field| field == "status" || field == "status.consumers") {
        consumers.clear();
    }
    if !lacking.is_empty() {
        let lacking = format!("the installed CRD lacks {}: {}", lacking.join(", "), CRDS.install);
        conditions.push(say("DefinitionStale", true, "FieldsLacking", &lacking));
    }
    PtemplateStatus { consumers, conditions }
}

#[cfg(test)]
mod tests;
