//! The process of the operator: its start, leadership, logs, metrics, certificates and end.

mod embedding;
pub mod leadership;
mod lifecycle;
pub mod observability;
mod renewal;
pub mod secure_metrics;
