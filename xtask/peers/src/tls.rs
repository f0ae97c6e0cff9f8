//! A TLS relay to a server, with certificates of an authority that no machine trusts.

use std::{fs, net::SocketAddr, path::Path, sync::Arc};

use anyhow::{Context as _, Result, ensure};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy, copy_bidirectional, sink},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer},
        server::WebPkiClientVerifier,
    },
};

/// The longest head of a request to a proxy.
const MOST: usize = 8 << 10;

/// An authority of its own.
pub struct Authority {
    certificate: CertificateDer<'static>,
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// The clients that a relay accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clients {
    /// All.
    All,
    /// Those with a certificate of the relay's authority.
    Known,
}

/// Decrypts and forwards connections. Dropping it ends its connections.
pub struct TlsRelay {
    address: SocketAddr,
    _running: JoinSet<()>,
}

impl Authority {
    /// A new one.
    pub fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        let name = format!("test authority {:08x}", fastrand::u32(..));
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?;
        let (pem, certificate) = (certificate.pem(), certificate.der().clone());
        Ok(Self { certificate, pem, issuer: Issuer::new(params, key) })
    }

    /// Its certificate, in PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Writes a client's certificate and its key as `cert.pem` and `key.pem`, and the authority's certificate as `ca.pem`.
    pub fn client(&self, dir: &Path) -> Result<()> {
        let mut params = CertificateParams::default();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
        for (name, text) in
            [("ca.pem", &self.pem), ("cert.pem", &certificate), ("key.pem", &key.serialize_pem())]
        {
            fs::write(dir.join(name), text)
                .with_context(|| format!("writing {name} in {}", dir.display()))?;
        }
        Ok(())
    }

    fn server(&self, host: &str, clients: Clients) -> Result<ServerConfig> {
        let mut params = CertificateParams::new([host.to_owned()])?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.der().clone();
        let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?;
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions()?;
        let builder = match clients {
            Clients::All => builder.with_no_client_auth(),
            Clients::Known => {
                let mut roots = RootCertStore::empty();
                roots.add(self.certificate.clone())?;
                let known = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
                builder.with_client_cert_verifier(known.build()?)
            }
        };
        Ok(builder.with_single_cert(vec![certificate], key)?)
    }
}

impl TlsRelay {
    /// A relay before the server at `upstream`, at the same address on a port of its own. Must be called within a tokio runtime.
    pub async fn start(upstream: SocketAddr, authority: &Authority, clients: Clients) -> Result<Self> {
        let host = upstream.ip().to_string();
        Self::serve(SocketAddr::new(upstream.ip(), 0), upstream, authority.server(&host, clients)?, None)
            .await
    }

    /// A proxy through which clients reach only the server at `upstream`, under the name of this host and port 443.
    pub async fn proxy(host: &str, upstream: SocketAddr, authority: &Authority) -> Result<Self> {
        let config = authority.server(host, Clients::All)?;
        Self::serve(([127, 0, 0, 1], 0).into(), upstream, config, Some(format!("CONNECT {host}:443 "))).await
    }

    /// Each connection begins with `request`, if this is a proxy.
    async fn serve(
        address: SocketAddr,
        upstream: SocketAddr,
        config: ServerConfig,
        request: Option<String>,
    ) -> Result<Self> {
        let listener = TcpListener::bind(address).await.context("listening for TLS")?;
        let address = listener.local_addr()?;
        let tls = TlsAcceptor::from(Arc::new(config));
        let mut running = JoinSet::new();
        running.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (tls, request) = (tls.clone(), request.clone());
                // Errors are expected: a client may close the connection or be refused.
                connections.spawn(async move { drop(relay(stream, upstream, &tls, request).await) });
            }
        });
        Ok(Self { address, _running: running })
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn relay(
    mut stream: TcpStream,
    upstream: SocketAddr,
    tls: &TlsAcceptor,
    request: Option<String>,
) -> Result<()> {
    if let Some(request) = request {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            ensure!(head.len() < MOST, "the head is too long");
            head.push(stream.read_u8().await?);
        }
        let is_expected = head.starts_with(request.as_bytes());
        let answer = if is_expected { "200 OK" } else { "403 Forbidden" };
        stream.write_all(format!("HTTP/1.1 {answer}\r\n\r\n").as_bytes()).await?;
        ensure!(is_expected, "another host");
    }
    let mut stream = match tls.accept(stream).into_fallible().await {
        Ok(stream) => stream,
        Err((refusal, mut stream)) => {
            // If the connection closed now, a client that still sends would not read the refusal.
            stream.shutdown().await?;
            copy(&mut stream, &mut sink()).await?;
            return Err(refusal.into());
        }
    };
    let mut upstream = TcpStream::connect(upstream).await?;
    copy_bidirectional(&mut stream, &mut upstream).await?;
    Ok(())
}
