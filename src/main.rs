//! The peerpod-operator program.
fn main() {}
