//! The custom resources, one module for each API version.

pub(crate) mod metadata;
pub mod v1alpha1;
