//! The `peerpod-operator` program: reads its arguments and runs the command.

use std::process::ExitCode;

use peerpod_operator::cli::Cli;

fn main() -> ExitCode {
    operator_kit::shutdown::exit_on_panic();
    Cli::from_arguments(std::env::args_os()).unwrap_or_else(|problem| problem.exit()).execute()
}
