//! The commands that users run.

pub mod apply;
mod check;
mod drain;
mod signals;
mod status;
