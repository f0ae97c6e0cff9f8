//! What the tests of any operator need. None of it is a mock.
//!
//! - [`Stage`]: a real control plane with the generated installation of an operator on
//!   [`operator_kit::installation`], and its program.
//! - [`client`](fn@client): a client of a cluster on this machine.
//! - [`Audit`]: the requests to the API server and its answers.
//! - [`Metrics`]: an answer of `/metrics`.
//! - [`wait`]: conditions with deadlines.

mod audit;
mod client;
pub mod http;
mod metrics;
mod run_dir;
mod shared;
pub mod wait;

pub use audit::{Audit, Request};
pub use client::client;
pub use metrics::{Family, Metrics};
pub use run_dir::run_dir;
pub use shared::{Plan, Shared, Stage};
