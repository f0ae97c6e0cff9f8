//! What a long-running operator needs around its controllers.
//!
//! None of it is global: whoever embeds a controller brings its own registry, its own tracing subscriber and its own
//! signals, and uses from here what it likes.

pub(crate) mod api_call;
pub mod backoff;
pub(crate) mod changes;
pub(crate) mod conditions;
pub(crate) mod crowd;
pub(crate) mod finalizer;
pub mod http;
mod leadership;
pub mod lease;
pub(crate) mod listener;
pub mod message;
pub mod metrics;
pub mod process;
pub(crate) mod projection;
pub(crate) mod publisher;
pub mod shutdown;
pub mod telemetry;
pub(crate) mod text;
pub(crate) mod watch;

pub use backoff::Backoff;
pub use leadership::Leadership;
pub use listener::{ListenAt, ListenAtError, ListenError};
pub use message::Message;
pub use metrics::Metrics;
