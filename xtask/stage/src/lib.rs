//! What the tests of any operator stand on. Nothing of it is a mock.
//!
//! - [`Stage`]: a real control plane with the generated installation of an operator on
//!   [`operator_kit::installation`], and its program.
//! - [`Audit`]: what the API server was asked and what it answered.
//! - [`Metrics`]: what `/metrics` says.
//! - [`wait`]: conditions with deadlines.

mod audit;
pub mod http;
mod metrics;
mod run_dir;
mod shared;
pub mod wait;

pub use audit::{Audit, Request};
pub use metrics::{Family, Metrics};
pub use run_dir::run_dir;
pub use shared::{Plan, Shared, Stage};
