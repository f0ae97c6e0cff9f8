//! How a client behaves.

use std::time::Duration;

use uuid::Uuid;

/// How a [`Client`](crate::Client) behaves.
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
    /// The expected host. A connection to any other host is not used: [`Error::OtherHost`](crate::Error::OtherHost). `None` accepts any host. An open
    /// connection stays with its host, wherever the address leads later: see [`Client::verify_host`](crate::Client::verify_host).
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
