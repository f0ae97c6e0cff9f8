//! The generated installation: its definitions, rights, kustomizations, chart and removal.

pub mod crd;
mod guard;
mod haste;
pub mod helm;
pub mod kustomize;
mod mirror;
mod monitoring;
mod oldest_kubernetes;
pub mod rights;
mod upstream;
