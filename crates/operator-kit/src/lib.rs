//! What a Kubernetes operator needs around its controllers.
pub mod api_call;
pub mod backoff;
pub mod changes;
pub mod client;
pub mod conditions;
pub mod connection_limit;
pub mod crd;
pub mod finalizer;
pub mod http;
mod leadership;
pub mod lease;
pub mod listener;
pub mod message;
pub mod metadata;
pub mod metrics;
pub mod permission;
pub mod process;
pub mod projection;
pub mod shutdown;
pub mod status;
pub mod telemetry;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod text;
pub mod watch;
#[cfg(test)]
mod widget;

pub use backoff::Backoff;
pub use kube::runtime::events::EventType;
pub use leadership::Leadership;
pub use listener::{ListenAt, ListenAtError, ListenError};
pub use message::Message;
pub use permission::Permission;
