//! What a failed call to libvirt means, and what of it a status may show *(no client)*.

use std::io;

use libvirt_client::{ConnectError, ConnectFailure, Error as Failure, ErrorCode};
use operator_kit::Message;

use crate::provider::{Error, ErrorClass};

/// The error for a call that failed while `doing` this, at the daemon of this URI.
pub(super) fn explain(doing: &Message, uri: &str, failure: &Failure) -> Error {
    let message = Message::new(
        format!("{} failed: {}; the operator's log has the full error", doing.for_status(), public(failure)),
        format!("{} at {uri} failed: {failure}", doing.for_log()),
    );
    Error::new(class(failure), message)
}

/// What a status may show. libvirt's own texts, and those of a connection, name hosts, users, sockets and files.
fn public(failure: &Failure) -> String {
    match failure {
        Failure::Remote(refused) => format!("libvirt answered with the error {}", refused.code),
        Failure::Connect(ConnectError { reason: ConnectFailure::Io(problem), .. }) => {
            let problem = match problem.kind() {
                io::ErrorKind::Other => "the connection ended before libvirt answered".to_owned(),
                kind => kind.to_string(),
            };
            format!("the operator cannot connect to libvirt ({problem})")
        }
        Failure::Connect(ConnectError { reason: ConnectFailure::Silent(limit), .. }) => {
            format!("the operator cannot connect to libvirt (no answer within {limit:?})")
        }
        Failure::Disconnected(_) => "the operator lost the connection to libvirt".to_owned(),
        Failure::Timeout { procedure, after } => {
            format!("libvirt did not answer {procedure} within {after:?}")
        }
        Failure::Protocol(_) => "libvirt's answer does not follow its protocol".to_owned(),
        Failure::OtherHost { .. } => "the address leads to another host than before".to_owned(),
        Failure::Auth(_) => "the operator and libvirt cannot authenticate each other".to_owned(),
    }
}

/// What a libvirt error means.
fn class(error: &Failure) -> ErrorClass {
    match error.code() {
        Some(ErrorCode::NoDomain) => ErrorClass::NotFound,
        Some(
            ErrorCode::AuthFailed
            | ErrorCode::AuthCancelled
            | ErrorCode::AuthUnavailable
            | ErrorCode::AccessDenied
            // The read-only socket.
            | ErrorCode::OperationDenied,
        ) => ErrorClass::Unauthorized,
        Some(ErrorCode::NoStoragePool | ErrorCode::NoSupport) => ErrorClass::Invalid,
        Some(ErrorCode::OperationInvalid) => ErrorClass::Refused,
        None if refused(error) => ErrorClass::Unauthorized,
        _ => ErrorClass::Transient,
    }
}

/// Whether the daemon, or its socket's mode, refused us.
fn refused(error: &Failure) -> bool {
    match error {
        Failure::Auth(_) => true,
        Failure::Connect(ConnectError { reason: ConnectFailure::Io(problem), .. }) => {
            problem.kind() == std::io::ErrorKind::PermissionDenied
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use libvirt_client::{Client, ConnectUri, Options, ProtocolError, RemoteError};

    use super::*;

    /// Everything in a text that a status must not show.
    const PRIVATE: [&str; 5] = ["jim", "host-7", "127.0.0.1", "/run/secret.sock", "qemu+"];

    const TEXT: &str = "jim@host-7 at 127.0.0.1: /run/secret.sock of qemu+ssh://jim@host-7/system";

    fn failures() -> Vec<Failure> {
        let remote = |code| RemoteError { code, domain: 7, message: TEXT.to_owned() };
        vec![
            Failure::Remote(remote(ErrorCode::SystemError)),
            Failure::Remote(remote(ErrorCode::AccessDenied)),
            Failure::Remote(remote(ErrorCode::Other(4711))),
            Failure::Disconnected(TEXT.to_owned()),
            Failure::Timeout { procedure: "DomainDestroy", after: Duration::from_secs(30) },
            Failure::Protocol(ProtocolError::Direction),
            Failure::Auth(TEXT.to_owned()),
            Failure::OtherHost { expected: uuid::Uuid::nil(), found: None },
        ]
    }

    /// The failure of opening a connection to that URI.
    async fn connecting(uri: &str) -> Failure {
        let uri: ConnectUri = uri.parse().unwrap();
        let options = Options { connect_timeout: Some(Duration::from_millis(300)), ..Options::default() };
        Client::new(uri, options).lib_version().await.unwrap_err()
    }

    fn is_public(uri: &str, failure: &Failure) {
        let error = explain(&Message::public("looking up the domain"), uri, failure);
        for private in PRIVATE {
            assert!(!error.message.for_status().contains(private), "{private}: {error}");
        }
        assert!(!error.to_string().contains(uri), "{error}");
        for told in [uri, &failure.to_string()] {
            assert!(error.message.for_log().contains(told), "{told}: {}", error.message.for_log());
        }
    }

    #[test]
    fn no_failure_shows_host_user_or_socket_in_a_status() {
        for failure in failures() {
            is_public("qemu+ssh://jim@host-7:2222/system", &failure);
        }
    }

    #[tokio::test]
    async fn a_failed_connection_does_not_show_its_target() {
        // Port 1 of this host: nothing listens there.
        for uri in [
            "qemu+ssh://jim@127.0.0.1:1/system?keyfile=/run/secret.sock",
            "qemu+tcp://127.0.0.1:1/system",
            "qemu+tls://127.0.0.1:1/system?pkipath=/run/secret.sock",
            "qemu+unix:///system?socket=/run/secret.sock",
        ] {
            is_public(uri, &connecting(uri).await);
        }
    }
}
