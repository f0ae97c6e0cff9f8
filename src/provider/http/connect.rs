//! How a host is reached: directly or by a proxy, with TLS or without.

use std::{
    error, io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http_body_util::Full;
use hyper::{Uri, body::Bytes};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::{
        legacy::{
            self,
            connect::{HttpConnector, proxy::Tunnel},
        },
        proxy::matcher::{Intercept, Matcher},
    },
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use operator_kit::Message;
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::rustls::{
    self, AlertDescription, CertificateError, ClientConfig, InvalidMessage, RootCertStore, crypto::ring,
};
use tower::{BoxError, Service, ServiceExt as _};

use super::{
    Options,
    pinned::{Fingerprint, Pinned},
};
use crate::provider::{Error, ErrorClass};

/// Connects, and encrypts requests to `https:`.
pub(super) type Connector = TimeoutConnector<HttpsConnector<Route>>;

/// Sends requests, and keeps connections for the next ones.
pub(super) type Pool = legacy::Client<Connector, Full<Bytes>>;

type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;

/// How long an idle connection is kept. Shorter than the load balancers of clouds keep it.
const IDLE: Duration = Duration::from_secs(50);

/// A pool without connections that keeps so many idle ones to one host.
pub(super) fn pool(connector: &Connector, idle: usize) -> Pool {
    legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(idle)
        .build(connector.clone())
}

/// A connector with these proxies, authorities and this deadline.
pub(super) fn connector(options: &Options) -> Result<Connector, Error> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    // The addresses of a host share it. Without it, one that is dead takes all the time, and the next one is not tried.
    tcp.set_connect_timeout(Some(options.connect * 3 / 4));
    let to_cloud = Arc::new(tls(options, options.pinned.as_ref())?);
    // No proxy has the pinned certificate.
    let is_apart = options.proxy.is_some() && options.pinned.is_some();
    let to_proxy = if is_apart { Arc::new(tls(options, None)?) } else { Arc::clone(&to_cloud) };
    let to_proxy = HttpsConnector::from((tcp.clone(), to_proxy));
    let route = Route { tcp, to_proxy, proxy: options.proxy.clone(), patience: options.connect * 9 / 10 };
    let mut connector = TimeoutConnector::new(HttpsConnector::from((route, to_cloud)));
    connector.set_connect_timeout(Some(options.connect));
    Ok(connector)
}

/// Trusts the pinned certificate alone, if there is one. Else trusts what the machine trusts, and `authorities`. `SSL_CERT_FILE` and
/// `SSL_CERT_DIR` name what to trust instead of the machine's authorities, as for OpenSSL.
fn tls(options: &Options, pinned: Option<&Fingerprint>) -> Result<ClientConfig, Error> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().map_err(|error| {
        let full = format!("TLS cannot be set up: {error}");
        Error::new(ErrorClass::Invalid, Message::new("TLS cannot be set up", full))
    })?;
    let builder = match pinned {
        Some(fingerprint) => {
            let pinned = Pinned { fingerprint: fingerprint.clone(), provider };
            builder.dangerous().with_custom_certificate_verifier(Arc::new(pinned))
        }
        None => builder.with_root_certificates(roots(options)?),
    };
    let Some(identity) = &options.identity else { return Ok(builder.with_no_client_auth()) };
    let with_own = builder.with_client_auth_cert(identity.chain.clone(), identity.key.clone_key());
    with_own.map_err(|error| {
        let public = match error {
            rustls::Error::InconsistentKeys(_) => "the operator's own certificate is of another key than the one beside it",
            _ => {
                "the operator's own certificate and its key cannot be used; the key must be of ECDSA (P-256 or P-384), of Ed25519, or of \
                 RSA with 2048 to 4096 bits"
            }
        };
        Error::new(ErrorClass::Invalid, Message::new(public, format!("{public}: {error}")))
    })
}

/// The authorities, as they are when a cloud is opened. A change of their files is not seen.
fn roots(options: &Options) -> Result<RootCertStore, Error> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (usable, _) =
        roots.add_parsable_certificates(found.certs.into_iter().chain(options.authorities.iter().cloned()));
    if usable == 0 {
        let problems: Vec<_> = found.errors.iter().map(ToString::to_string).collect();
        let public = "no trusted certificates were found to check the cloud's with; \
                      install ca-certificates, or name a file of them in SSL_CERT_FILE, then restart the operator";
        let full = format!("{public}: {}", problems.join("; "));
        return Err(Error::new(ErrorClass::Invalid, Message::new(public, full)));
    }
    Ok(roots)
}

/// Leads to a host: a connection to it, or a proxy's tunnel.
#[derive(Clone, Debug)]
pub(super) struct Route {
    tcp: HttpConnector,
    to_proxy: HttpsConnector<HttpConnector>,
    proxy: Option<Arc<Matcher>>,
    /// How long a proxy may take. Less than connecting may take, so that the error says that a proxy was asked.
    patience: Duration,
}

impl Route {
    fn proxy(&self, to: &Uri) -> Option<Intercept> {
        let encrypted = to.scheme_str() == Some("https");
        self.proxy.as_ref().filter(|_| encrypted).and_then(|proxy| proxy.intercept(to))
    }
}

impl Service<Uri> for Route {
    type Response = Stream;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        if let Some(proxy) = self.proxy(&to) {
            let mut tunnel = Tunnel::new(proxy.uri().clone(), self.to_proxy.clone());
            if let Some(login) = proxy.basic_auth() {
                tunnel = tunnel.with_auth(login.clone());
            }
            let host = proxy.uri().host().unwrap_or_default().to_owned();
            let patience = self.patience;
            return Box::pin(async move {
                let made = match timeout(patience, tunnel.oneshot(to)).await {
                    Ok(made) => made.map_err(BoxError::from),
                    Err(elapsed) => Err(elapsed.into()),
                };
                made.map_err(|error| ByProxy { host, error }.into())
            });
        }
        let tcp = self.tcp.clone();
        Box::pin(async move { Ok(MaybeHttpsStream::Http(tcp.oneshot(to).await?)) })
    }
}

/// A proxy that could not be reached, or made no tunnel.
#[derive(Debug, thiserror::Error)]
#[error("by the proxy {host}")]
struct ByProxy {
    host: String,
    #[source]
    error: BoxError,
}

/// What a missing answer means, and a text for a status.
pub(super) fn meaning(error: &(dyn error::Error + 'static)) -> (ErrorClass, String) {
    let mut cause = Some(error);
    let mut by_proxy = false;
    while let Some(error) = cause {
        by_proxy |= error.is::<ByProxy>();
        match error.downcast_ref() {
            Some(rustls::Error::InvalidCertificate(problem)) => {
                let certificate = if by_proxy { "the certificate of the proxy" } else { CERTIFICATE };
                return (ErrorClass::Invalid, format!("{certificate} {}", problem_of_certificate(problem)));
            }
            Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
                let public = if by_proxy {
                    "the proxy does not speak TLS at its port: name it by http:// in HTTPS_PROXY, then restart the operator"
                } else {
                    "the cloud's endpoint does not speak TLS at this port"
                };
                return (ErrorClass::Invalid, public.to_owned());
            }
            Some(rustls::Error::PeerIncompatible(_)) => {
                return (ErrorClass::Invalid, NOTHING_IN_COMMON.to_owned());
            }
            Some(rustls::Error::AlertReceived(alert)) if is_incompatible(*alert) => {
                return (ErrorClass::Invalid, NOTHING_IN_COMMON.to_owned());
            }
            Some(rustls::Error::AlertReceived(alert)) if !by_proxy && refuses_certificate(*alert) => {
                let public = "the cloud's endpoint refuses the operator's own certificate";
                return (ErrorClass::Unauthorized, public.to_owned());
            }
            _ => {}
        }
        // The source of an `io::Error` is that of the error inside, not the error inside.
        let inside = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        cause = inside.map_or(error.source(), |inside| Some(inside));
    }
    let public =
        if by_proxy { "the cloud cannot be reached by the proxy" } else { "the cloud cannot be reached" };
    (ErrorClass::Transient, public.to_owned())
}

/// In the texts about the certificate of a cloud, and in no other ones.
pub(super) const CERTIFICATE: &str = "the certificate of the cloud's endpoint";

/// In the text about a certificate of an unknown authority, and in no other one.
pub(super) const UNTRUSTED: &str = "is not trusted";

const NOTHING_IN_COMMON: &str =
    "the server and the operator have no TLS version, no cipher or no kind of certificate in common";

fn problem_of_certificate(problem: &CertificateError) -> String {
    use CertificateError as Problem;
    let text = match problem {
        Problem::ApplicationVerificationFailure => "is not the one whose fingerprint the settings name",
        Problem::NotValidForName | Problem::NotValidForNameContext { .. } => {
            "is for another host: the address in the settings must be in its subjectAltName"
        }
        Problem::Expired | Problem::ExpiredContext { .. } => "has expired",
        Problem::NotValidYet | Problem::NotValidYetContext { .. } => "is not valid yet",
        Problem::UnsupportedSignatureAlgorithmContext { .. }
        | Problem::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            "is signed, or an authority's is, in a way that the operator does not know: use ECDSA with P-256 or P-384 and SHA-256 or \
             SHA-384, Ed25519, or RSA with 2048 bits or more"
        }
        Problem::UnknownIssuer | Problem::BadSignature => {
            return format!(
                "{UNTRUSTED}; put a private authority's, beside the public ones, into SSL_CERT_FILE, then restart the operator"
            );
        }
        Problem::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
            "is an authority's (CA:TRUE): make one for the server with CA:FALSE"
        }
        _ => "cannot be used: the log says why",
    };
    text.to_owned()
}

/// Whether the server's alert says that it found nothing to agree on.
fn is_incompatible(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::HandshakeFailure
            | AlertDescription::InsufficientSecurity
            | AlertDescription::ProtocolVersion
    )
}

/// Whether the server's alert says that it does not accept our certificate.
fn refuses_certificate(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::AccessDenied
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRequired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            // Another authority of the same name signed it.
            | AlertDescription::DecryptError
            | AlertDescription::UnknownCA
            | AlertDescription::UnsupportedCertificate
    )
}
