//! The operator as its users run it: a Pod from its own image on a real node, installed with the documented commands, under the
//! restricted profile. All tests share the cluster. A test that disturbs others has the cluster to itself.
//!
//! The tests need root, because a real node does.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")]

mod adaptor;
mod configuration;
mod end_to_end;
mod examples;
mod fat;
mod installation;
mod memory;
mod reaping;
mod settings;
mod status;
mod support;
mod upgrade;
