//! How the controller works *(no client)*.

use std::time::Duration;

/// The largest number of PeerPods that the operator works on at once at one cloud.
pub const MOST_CONCURRENT: u16 = 160;

/// How the controller works.
#[derive(Clone, Debug)]
pub struct Options {
    /// The operator's namespace, which has the record of the places of VMs.
    pub namespace: String,
    /// The most PeerPods to work on at once at one cloud, at most [`MOST_CONCURRENT`]. Half as many stalled ones are added.
    pub concurrency: u16,
    /// A deletion that takes longer is reported.
    pub slow_after: Duration,
}

impl Options {
    /// The default of [`concurrency`](Self::concurrency).
    pub const CONCURRENCY: u16 = 128;

    /// The default of [`slow_after`](Self::slow_after).
    pub const SLOW_AFTER: Duration = Duration::from_secs(300);

    /// In this namespace, with the defaults, which are those of the command line, too.
    pub fn new(namespace: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), concurrency: Self::CONCURRENCY, slow_after: Self::SLOW_AFTER }
    }

    /// The number of slots at each cloud.
    pub(super) fn slots(&self) -> usize {
        usize::from(self.concurrency.clamp(1, MOST_CONCURRENT))
    }
}
