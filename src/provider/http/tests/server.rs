//! A server that answers every request in one way.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivatePkcs8KeyDer},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::{TlsAcceptor, rustls};

/// What a request gets.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    /// This, and then nothing: the connection stays open.
    Text(String),
    /// This, and the connection ends.
    Drops(String),
    /// Nothing, and the connection stays open.
    Silence,
    /// The connection ends.
    Reset,
    /// What a proxy does with `CONNECT`.
    Tunnel,
}

pub(super) struct Server {
    address: SocketAddr,
    scheme: &'static str,
    connections: Arc<AtomicUsize>,
    _running: JoinSet<()>,
}

impl Server {
    pub(super) async fn start(answer: Answer) -> Self {
        Self::serve(answer, None).await
    }

    /// One with TLS, and the authority of its certificate.
    pub(super) async fn encrypted(answer: Answer) -> (Self, CertificateDer<'static>) {
        let made =
            rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        let certificate = made.cert.der().clone();
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key.into())
            .unwrap();
        (Self::serve(answer, Some(TlsAcceptor::from(Arc::new(config)))).await, certificate)
    }

    async fn serve(answer: Answer, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let connections = Arc::new(AtomicUsize::new(0));
        let mut running = JoinSet::new();
        let count = Arc::clone(&connections);
        running.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Relaxed);
                let (answer, tls) = (answer.clone(), tls.clone());
                open.spawn(async move {
                    // What a client gives up is no failure of the server.
                    let _ = match tls {
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => converse(stream, answer).await,
                            Err(error) => Err(error),
                        },
                        None => converse(stream, answer).await,
                    };
                });
            }
        });
        Self { address, scheme, connections, _running: running }
    }

    pub(super) fn uri(&self, path: &str) -> String {
        format!("{}://{}{path}", self.scheme, self.address)
    }

    /// How many connections were made to it.
    pub(super) fn connections(&self) -> usize {
        self.connections.load(Relaxed)
    }
}

async fn converse(mut stream: impl AsyncRead + AsyncWrite + Unpin, answer: Answer) -> io::Result<()> {
    while let Some(request) = head(&mut stream).await? {
        match &answer {
            Answer::Text(text) => stream.write_all(text.as_bytes()).await?,
            Answer::Drops(text) => return stream.write_all(text.as_bytes()).await,
            Answer::Silence => {}
            Answer::Reset => return Ok(()),
            Answer::Tunnel => {
                let to = request.split(' ').nth(1).unwrap_or_default();
                let mut to = TcpStream::connect(to).await?;
                stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
                return copy_bidirectional(&mut stream, &mut to).await.map(drop);
            }
        }
    }
    Ok(())
}

/// The next request's head. The client sends no bodies.
async fn head(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<String>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Err(end) if end.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            byte => head.push(byte?),
        }
    }
    Ok(Some(String::from_utf8_lossy(&head).into_owned()))
}
