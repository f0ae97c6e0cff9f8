//! The operator on a real control plane with a real libvirtd, one scenario in each test.
//!
//! The modules mirror `src/`.
//!
//! Tests that get along share a cluster, a libvirtd and an operator ([`support::beside_others`]). Those that kill, misguide
//! or remove something have an operator and a libvirtd of their own on a cluster that is theirs meanwhile
//! ([`support::alone`]).
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
