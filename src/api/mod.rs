//! The custom resources, one module for each API version.

pub mod v1alpha1;
