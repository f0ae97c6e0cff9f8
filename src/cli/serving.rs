//! What the subcommands that go on until told to stop have in common.

use std::{fmt::Display, process::ExitCode};

use clap::Args;

use crate::runtime::{ListenAt, telemetry::LogFormat};

/// Where a process tells how it is, and how it logs.
#[derive(Clone, Debug, Args)]
pub struct ServingArgs {
    /// Address of /healthz and /readyz, without TLS. :PORT means every address, IPv6 and IPv4
    #[arg(long, value_name = "[IP]:PORT", env = "PEERPOD_OPERATOR_HEALTH_ADDR", default_value = ":8081")]
    pub health_addr: ListenAt,

    /// Address of /metrics, without TLS
    #[arg(long, value_name = "[IP]:PORT", env = "PEERPOD_OPERATOR_METRICS_ADDR", default_value = ":8080")]
    pub metrics_addr: ListenAt,

    /// Format of log lines
    #[arg(long, env = "PEERPOD_OPERATOR_LOG_FORMAT", value_enum, default_value = "text")]
    pub log_format: LogFormat,
}

/// Does the work, and tells what was wrong with it.
pub(super) fn block_on<E: Display>(
    work: impl Future<Output = Result<(), E>>,
    tell: impl FnOnce(&str),
) -> ExitCode {
    // One thread: the work is waiting for others, or costs microseconds, and every thread more costs memory.
    let ended = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(work).map_err(|problem| problem.to_string()),
        Err(problem) => Err(format!("cannot start: {problem}")),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            tell(&problem);
            ExitCode::FAILURE
        }
    }
}
