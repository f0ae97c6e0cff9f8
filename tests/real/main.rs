//! The operator on a real control plane with a real libvirtd, one scenario in each test.
//!
//! Tests that get along share a cluster, a libvirtd and an operator ([`support::beside_others`]). Those that kill, misguide
//! or remove something have an operator and a libvirtd of their own on a cluster that is theirs meanwhile
//! ([`support::alone`]).
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")]

mod apply;
mod built;
mod capacity;
mod check;
mod configuration;
mod crash;
mod crd;
mod crowd;
mod deletion;
mod developer_mode;
mod drain;
mod far_host;
mod far_times;
mod faults;
mod garbage_collection;
mod guard;
mod haste;
mod helm;
mod kustomize;
mod leadership;
mod lifecycle;
mod observability;
mod oldest_kubernetes;
mod places;
mod policy;
mod qemu;
mod refusals;
mod rights;
mod running_pod;
mod secure_metrics;
mod settings;
mod siblings;
mod support;
mod upstream;
mod webhook;
