//! The program: `podset run`, and `podset manifests` for the files that install it.

use operator_kit::program;
use podset::controller::{Metrics, run};

fn main() -> std::process::ExitCode {
    program::main(podset::operator, Metrics::register, run)
}
