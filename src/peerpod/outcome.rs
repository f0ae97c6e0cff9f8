//! How a reconcile of a PeerPod ended, and what the log and the status say of it *(no client)*.

use std::time::Duration;

use jiff::Timestamp;
use kube::runtime::events::EventType;
use operator_kit::{Message, api_call::ApiError};
use tracing::{debug, info, warn};

use super::{
    conditions::{ConditionUpdate, condition_update},
    decide::{Decision, Wait},
};
use crate::provider::ErrorClass;

/// How a reconcile ended.
pub(super) enum Outcome<'a> {
    Decided(&'a Decision),
    /// The API server failed, so there was no decision, or it was not applied.
    Failed(&'a ApiError),
    /// It waits for its turn at the cloud, so there was no decision.
    Parked,
}

/// What to write to the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StatusUpdate {
    /// The condition; `None` clears it.
    pub(super) condition: Option<ConditionUpdate>,
    /// Whether to send an event even if the reason is not new.
    pub(super) repeat: bool,
}

impl Outcome<'_> {
    /// Its name in the log.
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Self::Decided(Decision::Retry(error)) => error.class.as_str(),
            Self::Decided(decision) => decision.as_str(),
            Self::Failed(_) => "api_server",
            Self::Parked => "parked",
        }
    }

    /// What to write to the status, unless a slow deletion is reported. A reconcile without a decision leaves it as it is.
    pub(super) fn update(&self) -> Option<StatusUpdate> {
        match self {
            Self::Decided(decision) => {
                Some(StatusUpdate { condition: condition_update(decision), repeat: false })
            }
            Self::Failed(_) | Self::Parked => None,
        }
    }

    /// Logs an outcome that is new. `condition`: what is reported about it.
    pub(super) fn log(&self, condition: Option<&ConditionUpdate>, again: Duration) {
        let decision = match self {
            Self::Failed(error) => {
                return warn!(%error, ?again, "the API server failed; the operator tries again");
            }
            Self::Parked => return debug!("it waits for its turn at the cloud"),
            Self::Decided(decision) => decision,
        };
        let label = decision.as_str();
        match (decision, condition) {
            (Decision::Retry(error), _) if matches!(error.class, ErrorClass::Unsettled { .. }) => {
                info!(decision = label, ?again, "{}", error.message.for_log());
            }
            (Decision::Retry(error), _) => {
                let message = error.message.for_log();
                warn!(decision = label, class = error.class.as_str(), ?again, "{message}");
            }
            (_, Some(ConditionUpdate { reason, message })) => {
                let message = message.for_log();
                match reason.event() {
                    EventType::Warning => warn!(decision = label, reason = reason.as_str(), "{message}"),
                    EventType::Normal => info!(decision = label, reason = reason.as_str(), "{message}"),
                }
            }
            (Decision::Wait(Wait::Start), None) => {
                info!(
                    decision = label,
                    ?again,
                    "another start of the Pod may still be under way, so all its VMs stay"
                );
            }
            (Decision::Wait(Wait::VmDeletion(_)), None) => {
                info!(
                    decision = label,
                    ?again,
                    "the cloud deletes the VM, or stops it first; the operator checks again whether the VM is gone"
                );
            }
            // These waits, `Keep` and `Refuse` always have a condition. The others need no line here.
            (
                Decision::Wait(Wait::PodRuns | Wait::PodEnds(_) | Wait::CleanUp(_))
                | Decision::Keep(_)
                | Decision::Refuse(_)
                | Decision::Nothing
                | Decision::Supersede
                | Decision::Retire
                | Decision::Tidy
                | Decision::Delete(_)
                | Decision::Release(_),
                None,
            ) => {}
        }
    }

    /// The state of a deletion that proceeds without help; `None` if a person must act, which has a condition of its own.
    pub(super) fn state(&self, attempts: u32, next: Timestamp) -> Option<Message> {
        let attempts = if attempts == 1 { "1 attempt".to_owned() } else { format!("{attempts} attempts") };
        let tried = format!("{attempts}, the next one at {next}");
        match self {
            Self::Decided(Decision::Wait(Wait::VmDeletion(_))) => Some(Message::public(format!(
                "{tried}: the cloud deletes the VM, or stops it first, and still shows it"
            ))),
            Self::Decided(Decision::Retry(error)) => match error.class {
                ErrorClass::Transient | ErrorClass::NotFound => {
                    Some(error.message.map(|error| format!("{tried} (transient error): {error}")))
                }
                ErrorClass::Unsettled { .. } => Some(error.message.map(|error| format!("{tried}: {error}"))),
                ErrorClass::Throttled { .. } => {
                    Some(Message::public(format!("{tried}: the cloud asked for fewer calls")))
                }
                ErrorClass::Unauthorized
                | ErrorClass::Refused
                | ErrorClass::Invalid
                | ErrorClass::NotSupported => None,
            },
            Self::Decided(_) => None,
            Self::Failed(error) => Some(error.message().map(|error| format!("{tried}: {error}"))),
            Self::Parked => Some(Message::public(
                "the operator is busy with other VMs of that cloud; the cloud may hang, take few requests a second, or have asked for \
                 fewer calls; this VM waits for its turn"
                    .to_owned(),
            )),
        }
    }
}
