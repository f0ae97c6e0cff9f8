//! The arguments of `run` for the sweep.

use std::time::Duration;

use clap::Args;

use crate::{
    cli::patience,
    sweep::{LostVms, Mode, Options, Published},
};

/// How clouds are searched for what no PeerPod tracks.
#[derive(Clone, Debug, Args)]
pub struct SweepFlags {
    /// What to do about VMs that no PeerPod tracks, and about what is left of VMs
    #[arg(long, value_name = "MODE", env = "PEERPOD_OPERATOR_SWEEP", value_enum, default_value = "report")]
    pub sweep: Mode,

    /// The time between two listings of a cloud, from 1s to 24h
    #[arg(
        long,
        value_name = "DURATION",
        env = "PEERPOD_OPERATOR_SWEEP_INTERVAL",
        default_value = "5m",
        value_parser = patience
    )]
    pub sweep_interval: Duration,

    /// How old a resource that no PeerPod tracks must be before it is reported. Before it is deleted, this process must also have seen it
    /// for this time. From 1s to 24h
    #[arg(
        long,
        value_name = "DURATION",
        env = "PEERPOD_OPERATOR_SWEEP_GRACE",
        default_value = "30m",
        value_parser = patience
    )]
    pub sweep_grace: Duration,

    /// What to do about Pods that run and whose VM is gone or off. delete-pod needs the right to create pods/eviction
    #[arg(
        long,
        value_name = "WHAT",
        env = "PEERPOD_OPERATOR_LOST_VMS",
        value_enum,
        default_value = "report"
    )]
    pub lost_vms: LostVms,

    /// The most that the sweep deletes at one cloud in one interval, and the most Pods that it evicts
    #[arg(long, value_name = "N", env = "PEERPOD_OPERATOR_SWEEP_MAX", default_value = "10")]
    pub sweep_max: u16,
}

impl SweepFlags {
    /// The same for the sweep, which publishes there what it finds.
    pub(crate) fn options(&self, published: Published) -> Options {
        Options {
            mode: self.sweep,
            interval: self.sweep_interval,
            grace: self.sweep_grace,
            lost_vms: self.lost_vms,
            most: self.sweep_max.into(),
            published,
        }
    }
}
