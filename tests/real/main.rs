//! The operator on a real control plane with a real libvirtd, one scenario in each test.
//!
//! The modules mirror `src/`.
//!
//! Tests that do not disturb each other share a cluster, a libvirtd and an operator ([`support::beside_others`]). Tests that kill,
//! misconfigure or remove something have an operator and a libvirtd of their own, and the cluster to themselves ([`support::alone`]).
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")]

mod cli;
mod faults;
mod install;
mod peerpod;
mod peerpodconfig;
mod process;
mod provider;
mod settings;
mod support;
mod sweep;
mod webhook;
