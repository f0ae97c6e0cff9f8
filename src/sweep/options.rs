//! How the sweep works *(no client)*.

use std::time::Duration;

use super::Published;

/// What the sweep does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum Mode {
    /// Nothing
    Off,
    /// Reports what no PeerPod tracks
    Report,
    /// The same, and deletes what is provably this cluster's
    Delete,
}

/// What is done about a Pod that runs and whose VM is gone or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum LostVms {
    /// An event on the Pod and a condition on the PeerPod say so
    Report,
    /// The same, and the Pod is evicted
    DeletePod,
}

/// How the sweep works.
#[derive(Clone, Debug)]
pub struct Options {
    /// What it does.
    pub mode: Mode,
    /// The time between two listings of a cloud.
    pub interval: Duration,
    /// How old something untracked must be.
    pub grace: Duration,
    /// What is done about Pods whose VM is lost.
    pub lost_vms: LostVms,
    /// The most deletions at one cloud in one interval, and the most evictions of Pods.
    pub most: usize,
    /// Where it publishes what it found.
    pub published: Published,
}

impl Options {
    /// No sweep.
    pub fn off() -> Self {
        Self {
            mode: Mode::Off,
            interval: Duration::MAX,
            grace: Duration::MAX,
            lost_vms: LostVms::Report,
            most: 0,
            published: Published::default(),
        }
    }
}
