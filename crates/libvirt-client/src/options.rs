//! How a client behaves.

use std::time::Duration;

use tokio::sync::Semaphore;
use uuid::Uuid;

/// The most connections, and the longest time: more would overflow.
const MOST_CONNECTIONS: usize = 1024;
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// How a [`Client`](crate::Client) behaves. More than 1024 connections count as 1024, and more than a year as a year.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Most connections at a time that take calls, at least one. Each carries [`CALLS_PER_CONNECTION`](crate::CALLS_PER_CONNECTION)
    /// calls at a time.
    pub connections: usize,
    /// How long a call may go unanswered before another call gets its place. It keeps waiting, on a connection that takes no
    /// further calls.
    pub stalled_after: Duration,
    /// The most calls that may wait so. Further stalled calls keep their places.
    pub stalled: usize,
    /// The time of a call, from the moment it is made, including the wait for a connection.
    pub call_timeout: Duration,
    /// The expected host. A connection to any other host is not used: [`Error::OtherHost`](crate::Error::OtherHost). `None` accepts any
    /// host. An open connection stays with its host, wherever the address leads later: see [`Client::verify_host`](crate::Client::verify_host).
    pub host: Option<Uuid>,
    /// The time for opening a connection. `None`: 10 seconds, and 15 over ssh, where the host may look names up and ask other
    /// services before it accepts a client.
    pub connect_timeout: Option<Duration>,
}

impl Default for Options {
    /// 16 connections, half a second until a call counts as stalled, 80 such calls, 20 seconds for a call.
    fn default() -> Self {
        Self {
            connections: 16,
            stalled_after: Duration::from_millis(500),
            stalled: 80,
            call_timeout: Duration::from_secs(20),
            host: None,
            connect_timeout: None,
        }
    }
}

impl Options {
    /// The same without what would overflow.
    pub(crate) fn bounded(self) -> Self {
        Self {
            connections: self.connections.clamp(1, MOST_CONNECTIONS),
            stalled_after: self.stalled_after.min(LONGEST),
            stalled: self.stalled.min(Semaphore::MAX_PERMITS),
            call_timeout: self.call_timeout.min(LONGEST),
            host: self.host,
            connect_timeout: self.connect_timeout.map(|it| it.min(LONGEST)),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[test]
    fn what_means_no_limit_overflows_nothing() {
        let most = Options {
            connections: usize::MAX,
            stalled_after: Duration::MAX,
            stalled: usize::MAX,
            call_timeout: Duration::MAX,
            connect_timeout: Some(Duration::MAX),
            ..Options::default()
        };
        let bounded = most.bounded();
        let _ = Semaphore::new(bounded.stalled);
        let _ = Semaphore::new(bounded.connections * crate::CALLS_PER_CONNECTION);
        assert!(Instant::now().checked_add(bounded.call_timeout.max(bounded.stalled_after)).is_some());
        assert_eq!(Options::default().bounded(), Options::default());
        assert_eq!(Options { connections: 0, ..most }.bounded().connections, 1);
    }
}
