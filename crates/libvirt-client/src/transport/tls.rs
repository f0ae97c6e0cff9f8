//! TLS, with the certificates that libvirt's own client uses.

mod credentials;
mod trust;

use std::io;
use std::sync::Arc;

use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{AlertDescription, CertificateError, ClientConfig, Error as TlsError};

use self::credentials::Credentials;
use crate::error::{ConnectError, Error};
use crate::uri::{Endpoint, Tls};

/// libvirtd's message after the handshake when it accepts this client.
const WELCOME: u8 = 1;

/// Shakes hands over a stream that is connected to libvirtd's tls listener.
pub(super) async fn connect(
    endpoint: &Endpoint,
    tls: &Tls,
    stream: TcpStream,
) -> Result<TlsStream<TcpStream>, Error> {
    let name = ServerName::try_from(tls.server.host.clone())
        .map_err(|_| Error::Auth(format!("{:?} is no name that a certificate can have", tls.server.host)))?;
    let config = configure(tls, Credentials::load(tls).await?)?;
    let handshake = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    let mut stream = handshake.map_err(|error| explain(endpoint, error))?;
    // The server checks this client's certificate and address only now. It can refuse them only by hanging up. A daemon that ends
    // at this very moment looks the same; the next attempt shows which it was.
    match stream.read_u8().await {
        Ok(WELCOME) => Ok(stream),
        Ok(_) => Err(refused("it says so")),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(refused("it hung up")),
        Err(error) => Err(explain(endpoint, error)),
    }
}

fn configure(tls: &Tls, credentials: Credentials) -> Result<ClientConfig, Error> {
    let provider = Arc::new(ring::default_provider());
    let verifier = trust::verifier(tls, &credentials, &provider)?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Auth(error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    match credentials.client {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(|error| {
            Error::Auth(format!(
                "the client's certificate and its key are of no use: {error} (the key must be of ECDSA with P-256 \
                 or P-384, of Ed25519, or of RSA with 2048 to 4096 bits)"
            ))
        }),
        None => Ok(builder.with_no_client_auth()),
    }
}

/// What a handshake's failure means.
fn explain(endpoint: &Endpoint, error: io::Error) -> Error {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<TlsError>());
    match cause {
        Some(TlsError::InvalidCertificate(
            problem @ (CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }),
        )) => Error::Auth(format!(
            "the server's certificate is for another host ({problem}); use a name that is in its subjectAltName \
             (its common name does not count), or no_verify=1 to check nothing"
        )),
        Some(TlsError::InvalidCertificate(
            CertificateError::UnsupportedSignatureAlgorithmContext { .. }
            | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. },
        )) => Error::Auth(
            "the server's certificate, or an authority's, is signed in a way that this client does not know; use \
             ECDSA with P-256 or P-384 and SHA-256 or SHA-384, Ed25519, or RSA with 2048 bits or more"
                .to_owned(),
        ),
        Some(TlsError::InvalidCertificate(CertificateError::Other(other)))
            if other.to_string().contains("UnsupportedCertVersion") =>
        {
            Error::Auth(
                "the server's certificate is of X.509 version 1, as openssl makes it without extensions; make one \
                 with a subjectAltName"
                    .to_owned(),
            )
        }
        Some(TlsError::InvalidCertificate(problem)) => Error::Auth(format!(
            "the server's certificate is not trusted ({problem}); check cacert.pem, or use no_verify=1 to check \
             nothing"
        )),
        Some(TlsError::AlertReceived(
            alert @ (AlertDescription::AccessDenied
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRequired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::UnsupportedCertificate),
        )) => refused(&format!("{alert:?}")),
        Some(TlsError::AlertReceived(
            alert @ (AlertDescription::HandshakeFailure
            | AlertDescription::InsufficientSecurity
            | AlertDescription::ProtocolVersion),
        )) => Error::Auth(format!(
            "the server and this client have no TLS version, no cipher or no kind of certificate in common \
             ({alert:?}); the server's key must be of ECDSA with P-256 or P-384, of Ed25519, or of RSA with 2048 \
             bits or more"
        )),
        _ => ConnectError::io(endpoint, error).into(),
    }
}

fn refused(how: &str) -> Error {
    Error::Auth(format!(
        "the server does not accept this client's certificate or address ({how}); see its log, and tls_allowed_dn_list \
         in libvirtd.conf (or virtproxyd.conf)"
    ))
}
