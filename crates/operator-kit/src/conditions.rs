//! Conditions of a status, and their reasons *(no client)*.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::text::cut;

/// Room in a condition's message, in bytes. What others say, such as an API server, has no limit of its own.
pub const MESSAGE_LIMIT: usize = 4096;

/// Defines an enum of reasons. Each reason has its condition (a variant of the enum of their types that is named), whether the
/// condition is True with it where that is not always so, and the type of its event. The texts document the conditions.
///
/// ```
/// #[derive(Clone, Copy, Debug, PartialEq)]
/// pub enum ConditionType {
///     Ready,
///     Stalled,
/// }
///
/// operator_kit::conditions::reasons! {
///     /// Why a condition is as it is.
///     pub enum Reason of ConditionType;
///
///     /// All Pods run.
///     PodsRunning => Ready(true), Normal;
///     /// A quota forbids further Pods. Raise the quota.
///     QuotaExceeded => Stalled(true), Warning;
/// }
///
/// assert_eq!(Reason::QuotaExceeded.condition_type(), ConditionType::Stalled);
/// assert_eq!(Reason::ALL[0].doc().trim(), "All Pods run.");
/// assert_eq!(Reason::named("PodsRunning"), Some(Reason::PodsRunning));
/// assert_eq!(Reason::named("Other"), None);
/// ```
#[macro_export]
macro_rules! reasons {
    (
        $(#[$about:meta])*
        $visibility:vis enum $reasons:ident of $types:ident;
        $($(#[doc = $doc:literal])+ $reason:ident => $condition_type:ident $(($status:literal))?, $event:ident;)+
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        $visibility enum $reasons { $($(#[doc = $doc])+ $reason,)+ }

        impl $reasons {
            /// Every reason there is.
            pub const ALL: &'static [Self] = &[$(Self::$reason,)+];

            /// The condition's and the event's reason, and the metric label.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$reason => stringify!($reason),)+ }
            }

            /// The reason of this name, if there is one.
            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|it| it.as_str() == name)
            }

            /// The type of the condition that has this reason.
            pub const fn condition_type(self) -> $types {
                match self { $(Self::$reason => $types::$condition_type,)+ }
            }

            /// The type of its event, which is the level of its log line too.
            pub const fn event(self) -> $crate::EventType {
                match self { $(Self::$reason => $crate::EventType::$event,)+ }
            }

            /// What it means and what to do, for documentation.
            pub const fn doc(self) -> &'static str {
                match self { $(Self::$reason => concat!($($doc),+),)+ }
            }
        }

        $crate::reasons!(@status $reasons: $($reason $($status)?;)+);
    };
    (@status $reasons:ident: $($reason:ident;)+) => {};
    (@status $reasons:ident: $($reason:ident $status:literal;)+) => {
        impl $reasons {
            /// Whether its condition is True with it.
            pub const fn status(self) -> bool {
                match self { $(Self::$reason => $status,)+ }
            }
        }
    };
}
#[doc(inline)]
pub use reasons;

/// Whether the condition of this type is True.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    conditions.iter().any(|it| it.type_ == type_ && it.status == "True")
}

/// What a condition is to say.
#[derive(Clone, Copy, Debug)]
pub struct NewCondition<'a> {
    /// Its type.
    pub type_: &'a str,
    /// Whether its status is True; otherwise it is False.
    pub is_true: bool,
    /// Its reason.
    pub reason: &'a str,
    /// Its message. What is longer than [`MESSAGE_LIMIT`] is cut off.
    pub message: &'a str,
}

impl NewCondition<'_> {
    /// The condition of an object that had those `before`. It keeps the time of the one of its type while its status stays. If `before`
    /// is from a cache, the time follows the cache: a status that changes and changes back before the cache shows it keeps the first time.
    pub fn after(self, before: &[Condition], generation: Option<i64>, now: Timestamp) -> Condition {
        let Self { type_, is_true, reason, message } = self;
        let status = if is_true { "True" } else { "False" };
        let same = before.iter().find(|before| before.type_ == type_ && before.status == status);
        Condition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: cut(message, MESSAGE_LIMIT),
            observed_generation: generation,
            last_transition_time: same.map_or(Time(now), |same| same.last_transition_time.clone()),
        }
    }
}
