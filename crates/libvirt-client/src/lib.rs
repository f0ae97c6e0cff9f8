//! An asynchronous client of libvirt's own RPC protocol, without libvirt's C library.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use libvirt_client::{Client, DomainState, ErrorCode, Options, UndefineFlags};
//!
//! let client = Client::new("qemu:///system".parse()?, Options::default());
//! let domain = client.domain_lookup_by_uuid("6695eb01-f6a4-8304-79aa-97f2502e193f".parse()?).await?;
//! if client.domain_state(&domain).await? != DomainState::ShutOff {
//!     client.domain_destroy(&domain).await?;
//! }
//! client.domain_undefine(&domain, UndefineFlags::NVRAM).await?;
//!
//! let gone = client.domain_lookup_by_uuid(domain.uuid).await;
//! assert_eq!(gone.unwrap_err().code(), Some(ErrorCode::NoDomain));
//! # Ok(())
//! # }
//! ```
//!
//! # The way of a call
//!
//! ```text
//! Client ──▶ place: room on a connection ──▶ connection: serial, packet ──▶ writer ──▶ socket
//!    ▲        (at most 5 calls on each)        │                                         │
//!    └───────────── typed result ◀── oneshot ◀─┴── serial ◀── reader ◀───────────────────┘
//! ```
//!
//! A [`Client`] has up to [`Options::connections`] connections, opened when they are needed: the first carries five
//! calls at a time, then the next one is opened. Each is served by a reader and a writer task, so calls share a
//! connection without waiting for one another; replies may come in any order.
//!
//! # Guarantees
//!
//! - Every call ends within [`Options::call_timeout`], waiting for a connection included.
//! - A connection that was lost is opened again by the next call. One that left a call unanswered gets no further calls. When a
//!   call ends in [`Error::Timeout`] or [`Error::Disconnected`], the client closes all connections that carry no call and are
//!   older than it, so the next call gets one that is in use, or a new one. So a daemon that hangs is detected when it does not
//!   answer a new one within [`Options::connect_timeout`]. All calls that wait for a connection share one attempt, and its failure.
//!   [`Error::Auth`] of an attempt answers for all calls of the next 10 seconds.
//! - A connection is checked for the expected host ([`Options::host`]) when it is opened, and is open for as long as it works. The
//!   address may lead to another host meanwhile. [`Client::verify_host`] finds that out by a further connection.
//! - There are no retries: [`Error`] says what happened and the caller decides. After [`Error::Connect`] no call was sent; after
//!   [`Error::Timeout`] and [`Error::Disconnected`] the call may or may not have taken effect.
//! - Dropping a call's future leaves nothing behind here. The daemon may still carry the call out.
//! - Whatever a peer sends, the client does not panic, and takes memory for the bytes that arrived and for lists of up to 16,384
//!   elements.
//!
//! # Caveats
//!
//! - The client supports daemons without authentication and with polkit's, not with SASL. [`ConnectUri`] lists the transports.
//! - The client answers the daemon's keepalive messages, and sends none. The system reports the end of a daemon on this machine
//!   at once, and a host that is gone within a minute, by TCP's keepalive. Timeouts detect a daemon that hangs.
//! - `test:///default` exists in the daemon while at least one connection to it is open.

mod capabilities;
mod client;
mod connection;
mod connections;
mod error;
mod objects;
mod options;
mod packet;
mod procedure;
mod transport;
mod uri;
mod xdr;

pub use client::Client;
pub use connections::CALLS_PER_CONNECTION;
pub use error::{ConnectError, ConnectFailure, Error, ErrorCode, ProtocolError, RemoteError};
pub use objects::{Domain, DomainState, Pool, UndefineFlags, Volume};
pub use options::Options;
pub use uri::{ConnectUri, UriError};
pub use xdr::XdrError;
