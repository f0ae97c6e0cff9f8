//! peerpod-operator.

pub mod api;
pub mod runtime;
pub mod settings;
