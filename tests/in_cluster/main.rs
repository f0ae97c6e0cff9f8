//! The operator as its users have it: a Pod from its own image on a real node, with the objects that are installed, under
//! the restricted profile. All tests share the cluster; what disturbs others has it to itself meanwhile.
//!
//! Needs root, as a real node does.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")]

mod configuration;
mod memory;
mod reaping;
mod settings;
mod support;
mod upgrade;
