//! The `peerpod-operator` program: reads its arguments and hands over.

use std::process::ExitCode;

use clap::Parser;
use peerpod_operator::cli::Cli;

fn main() -> ExitCode {
    Cli::parse().execute()
}
