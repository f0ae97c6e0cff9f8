//! The commands that people run.

pub mod apply;
mod check;
mod drain;
mod status;
