//! The errors, for people and for programs.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::uri::Endpoint;
use crate::xdr::{Beginning, Decode, Decoder, XdrError};

/// Why a call has no result.
#[derive(Debug, Clone, Error)]
pub enum Error {
    /// libvirt answered with an error: to the call, or to one that opens the connection for it.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// No connection could be opened. No call was sent.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The connection was lost while the call was on its way: whether it took effect is unknown.
    #[error("the connection to libvirt is gone: {0}")]
    Disconnected(String),
    /// No answer in time: whether the call took effect is unknown.
    #[error("libvirt did not answer {procedure} within {after:?}; is the daemon hanging or overloaded?")]
    Timeout {
        /// The procedure that was called, by its name in libvirt's protocol.
        procedure: &'static str,
        /// How long the call was given: [`Options::call_timeout`](crate::Options::call_timeout).
        after: Duration,
    },
    /// The peer sent something that is not libvirt's protocol, or a value is too large for it.
    #[error("libvirt's protocol was not followed: {0}; is the socket really libvirt's?")]
    Protocol(#[from] ProtocolError),
    /// One side cannot or does not prove its identity to the other: libvirt wants an authentication that this client does not
    /// support, or refused one; the proof is missing; or the server is not the known one.
    #[error("cannot authenticate with libvirt: {0}")]
    Auth(String),
    /// The address leads to another host than the one that is meant ([`Options::host`](crate::Options::host)). Nothing was
    /// asked.
    #[error("the host with the UUID {expected} is meant, and the address leads to {}", host(*.found))]
    OtherHost {
        /// The UUID of the host that is meant.
        expected: uuid::Uuid,
        /// That of the host that answers, if it has one.
        found: Option<uuid::Uuid>,
    },
}

/// A host, for people.
fn host(uuid: Option<uuid::Uuid>) -> String {
    uuid.map_or_else(|| "a host without a UUID".to_owned(), |uuid| format!("the host with the UUID {uuid}"))
}

impl From<io::Error> for Error {
    /// Reading or writing an established connection failed.
    fn from(error: io::Error) -> Self {
        Self::Disconnected(match error.kind() {
            io::ErrorKind::UnexpectedEof => "the daemon closed it".to_owned(),
            _ => error.to_string(),
        })
    }
}

impl From<XdrError> for Error {
    fn from(error: XdrError) -> Self {
        ProtocolError::from(error).into()
    }
}

impl Error {
    /// libvirt's code, if libvirt itself answered with an error.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Remote(error) => Some(error.code),
            _ => None,
        }
    }

    /// Whether the daemon lost its own connection to another daemon, to which it passes calls on: virtproxyd to virtqemud, virtqemud
    /// to virtstoraged. It opens that connection once for each of its clients. So all further calls of this client's connection fail
    /// like this one, and a new connection helps.
    pub(crate) fn is_of_lost_backend(&self) -> bool {
        /// `VIR_FROM_RPC`
        const RPC: i32 = 7;
        matches!(self, Self::Remote(error) if error.domain == RPC && error.code == ErrorCode::InternalError)
    }
}

/// An error that libvirt reported.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("libvirt: {message} (error {code}, domain {domain})")]
pub struct RemoteError {
    /// What went wrong.
    pub code: ErrorCode,
    /// The part of libvirt that noticed: a `virErrorDomain`, such as 10 for the QEMU driver.
    pub domain: i32,
    /// libvirt's text, or its first 1,000 bytes.
    pub message: String,
}

/// A peer that is not libvirt may send texts of megabytes.
const LONGEST_MESSAGE: usize = 1000;

impl Decode for RemoteError {
    const MIN_SIZE: usize = 44;

    fn decode(input: &mut Decoder<'_>) -> Result<Self, XdrError> {
        type Unread = Beginning<0>;
        type Object = (Unread, uuid::Uuid);
        let (code, domain, message) = <(i32, i32, Option<Beginning<LONGEST_MESSAGE>>)>::decode(input)?;
        let _level = i32::decode(input)?;
        let _about_domain = <Option<(Object, i32)>>::decode(input)?;
        let _strings = <(Option<Unread>, Option<Unread>, Option<Unread>)>::decode(input)?;
        let _integers = <(i32, i32)>::decode(input)?;
        let _about_network = <Option<Object>>::decode(input)?;
        let message = message.map_or_else(|| "no message".to_owned(), |Beginning(message)| message);
        Ok(Self { code: ErrorCode::from(code), domain, message })
    }
}

/// libvirt's error numbers by name: a `virErrorNumber`.
macro_rules! error_codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// libvirt's error number, a `virErrorNumber`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorCode {
            $($(#[$doc])* $name,)*
            /// Any other number.
            Other(i32),
        }

        impl From<i32> for ErrorCode {
            fn from(number: i32) -> Self {
                match number {
                    $($number => Self::$name,)*
                    other => Self::Other(other),
                }
            }
        }

        impl ErrorCode {
            /// The number in libvirt's `virterror.h`.
            pub fn number(self) -> i32 {
                match self {
                    $(Self::$name => $number,)*
                    Self::Other(number) => number,
                }
            }
        }
    };
}

error_codes! {
    /// Something inside libvirt.
    InternalError = 1,
    /// The driver does not have this call.
    NoSupport = 3,
    /// The hypervisor could not be connected to.
    NoConnect = 5,
    /// An argument or a flag is not accepted.
    InvalidArg = 8,
    /// The hypervisor failed to do it.
    OperationFailed = 9,
    /// The domain exists already.
    DomainExist = 28,
    /// The connection may only read.
    OperationDenied = 29,
    /// A call to the operating system failed.
    SystemError = 38,
    /// The RPC layer failed.
    Rpc = 39,
    /// No such domain.
    NoDomain = 42,
    /// Authentication failed.
    AuthFailed = 45,
    /// No such storage pool.
    NoStoragePool = 49,
    /// No such storage volume.
    NoStorageVolume = 50,
    /// The object is not in a state for this.
    OperationInvalid = 55,
    /// The configuration is not supported.
    ConfigUnsupported = 67,
    /// Something inside libvirt took too long, a lock for instance.
    OperationTimeout = 68,
    /// This libvirt does not know an argument or a flag.
    ArgumentUnsupported = 74,
    /// The operation was aborted.
    OperationAborted = 78,
    /// Authentication was cancelled.
    AuthCancelled = 79,
    /// The driver or the host cannot do it.
    OperationUnsupported = 84,
    /// Another program is using the object.
    ResourceBusy = 87,
    /// An access rule forbids it.
    AccessDenied = 88,
    /// The storage volume exists already.
    StorageVolumeExist = 90,
    /// There is no agent to authenticate with.
    AuthUnavailable = 94,
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Other(number) => write!(f, "{number}"),
            named => write!(f, "{} {named:?}", named.number()),
        }
    }
}

/// Why no connection could be opened.
#[derive(Debug, Clone, Error)]
#[error("cannot connect to {peer}: {reason}{advice}")]
pub struct ConnectError {
    /// What was tried, in words: a socket's path, or host, port and transport.
    pub peer: String,
    /// What happened.
    pub reason: ConnectFailure,
    /// What to do, or nothing.
    advice: &'static str,
}

/// What happened when a connection was opened.
#[derive(Debug, Clone, Error)]
pub enum ConnectFailure {
    /// The operating system refused, or the connection ended before it could be used: then of the kind `Other`.
    #[error(transparent)]
    Io(Arc<io::Error>),
    /// A daemon may be there, but it did not answer in time.
    #[error("no answer within {0:?}")]
    Silent(Duration),
}

impl ConnectError {
    pub(crate) fn io(endpoint: &Endpoint, error: io::Error) -> Self {
        let advice = match endpoint {
            Endpoint::Unix(_) => socket_advice(&error),
            Endpoint::Tcp(_) | Endpoint::Tls(_) => server_advice(&error),
            Endpoint::Ssh(_) => sshd_advice(&error),
        };
        Self { peer: endpoint.to_string(), reason: ConnectFailure::Io(Arc::new(error)), advice }
    }

    pub(crate) fn silent(endpoint: &Endpoint, limit: Duration) -> Self {
        let advice = match endpoint {
            Endpoint::Unix(_) => "; is the daemon hanging?",
            Endpoint::Tcp(_) | Endpoint::Tls(_) => {
                "; is the daemon hanging, the host down, or a firewall in between?"
            }
            Endpoint::Ssh(_) => {
                "; is sshd hanging or slow (UseDNS, PAM), the host down, or a firewall in between?"
            }
        };
        Self { peer: endpoint.to_string(), reason: ConnectFailure::Silent(limit), advice }
    }
}

/// What to do about a unix socket that cannot be used.
fn socket_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "; start libvirtd (or virtqemud), mount the folder of its socket, or name the socket with ?socket=PATH"
        }
        io::ErrorKind::ConnectionRefused => "; no process listens there: start libvirtd (or virtqemud) again",
        io::ErrorKind::PermissionDenied => "; run as root or as a member of the group that owns the socket",
        io::ErrorKind::WouldBlock => "; the daemon accepts no more connections: it hangs or is overloaded",
        _ => "",
    }
}

/// What to do about libvirt's own listeners when they cannot be reached.
fn server_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            "; no process listens there: start libvirtd with --listen, or its listener's unit (libvirtd-tcp.socket, \
             libvirtd-tls.socket, virtproxyd-tcp.socket, virtproxyd-tls.socket)"
        }
        // A connection that was lost while it was being opened is of the kind `Other`.
        io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof | io::ErrorKind::Other => {
            "; it hung up: see its log, and check that this port is the transport's, or it does not accept this client \
             (its certificate or address: tls_allowed_dn_list in libvirtd.conf or virtproxyd.conf)"
        }
        _ => "; check the host's name, the port and the network in between",
    }
}

/// What to do about a host's sshd when it cannot be reached.
fn sshd_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            "; no process listens there: start sshd, or put its port into the URI"
        }
        io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof => {
            "; it hung up: see sshd's log, it is overloaded (MaxStartups) or does not accept this client (PerSourcePenalties, \
             hosts.deny)"
        }
        io::ErrorKind::Other => "",
        _ => "; check the host's name, the port and the network in between",
    }
}

/// What was not as libvirt's protocol says.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ProtocolError {
    /// A length outside the protocol's limits.
    #[error("a packet of {0} bytes (28 to {max} are allowed)", max = crate::xdr::MAX_PACKET)]
    Length(usize),
    /// Not a program of libvirt's.
    #[error("a packet of program {program:#x} version {version}")]
    Program {
        /// The program's number.
        program: u32,
        /// The program's version.
        version: u32,
    },
    /// Neither call, reply, message nor stream.
    #[error("a packet of type {0}")]
    Kind(i32),
    /// Neither ok, error nor continue.
    #[error("a packet of status {0}")]
    Status(i32),
    /// A packet that only a client sends, or a reply without end.
    #[error("a packet that a daemon does not send")]
    Direction,
    /// The reply to a call names another procedure.
    #[error("a reply of procedure {got} to a call of {called}")]
    Procedure {
        /// The procedure that was called.
        called: i32,
        /// The procedure in the reply.
        got: i32,
    },
    /// A value that cannot be read or written.
    #[error(transparent)]
    Value(#[from] XdrError),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers read from `virterror.h`, by libvirt's own names.
    #[test]
    fn codes_are_those_of_virterror_h() {
        for (name, number, code) in [
            ("VIR_ERR_INTERNAL_ERROR", 1, ErrorCode::InternalError),
            ("VIR_ERR_NO_SUPPORT", 3, ErrorCode::NoSupport),
            ("VIR_ERR_INVALID_ARG", 8, ErrorCode::InvalidArg),
            ("VIR_ERR_OPERATION_FAILED", 9, ErrorCode::OperationFailed),
            ("VIR_ERR_SYSTEM_ERROR", 38, ErrorCode::SystemError),
            ("VIR_ERR_RPC", 39, ErrorCode::Rpc),
            ("VIR_ERR_NO_DOMAIN", 42, ErrorCode::NoDomain),
            ("VIR_ERR_AUTH_FAILED", 45, ErrorCode::AuthFailed),
            ("VIR_ERR_NO_STORAGE_POOL", 49, ErrorCode::NoStoragePool),
            ("VIR_ERR_NO_STORAGE_VOL", 50, ErrorCode::NoStorageVolume),
            ("VIR_ERR_OPERATION_INVALID", 55, ErrorCode::OperationInvalid),
            ("VIR_ERR_OPERATION_TIMEOUT", 68, ErrorCode::OperationTimeout),
            ("VIR_ERR_ARGUMENT_UNSUPPORTED", 74, ErrorCode::ArgumentUnsupported),
            ("VIR_ERR_OPERATION_UNSUPPORTED", 84, ErrorCode::OperationUnsupported),
            ("VIR_ERR_RESOURCE_BUSY", 87, ErrorCode::ResourceBusy),
            ("VIR_ERR_ACCESS_DENIED", 88, ErrorCode::AccessDenied),
            ("a number without a name", 4711, ErrorCode::Other(4711)),
        ] {
            assert_eq!(ErrorCode::from(number), code, "{name}");
            assert_eq!(code.number(), number, "{name}");
        }
    }
}
