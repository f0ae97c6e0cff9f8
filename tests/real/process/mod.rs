//! The process of the operator: its start, leadership, logs, metrics and end.

mod embedding;
pub mod leadership;
mod lifecycle;
pub mod observability;
pub mod secure_metrics;
