//! The program: `ptemplate run`, and `ptemplate manifests` for the files that install it.

use operator_kit::program;

fn main() -> std::process::ExitCode {
    program::main(ptemplate::operator, ptemplate::controller::Metrics::register, ptemplate::controller::run)
}
