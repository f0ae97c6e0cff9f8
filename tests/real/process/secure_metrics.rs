//! Metrics by TLS, only for accounts with the right to read them. The operator asks the API server about each account.

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use http_body_util::{BodyExt as _, Empty};
use hyper::{Request, body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use peerpod_operator::{
    NAMESPACE,
    install::{
        self, Options,
        metrics_rights::{self, READER, REVIEWER},
    },
};
use peers::libvirt::Libvirtd;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::{Value, json};
use testbed::{
    Operator, OperatorOptions, Settings, Testbed, http,
    wait::{self, DEADLINE},
};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, DigitallySignedStruct, Error, SignatureScheme,
        client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        crypto::{WebPkiSupportedAlgorithms, ring},
        pki_types::{CertificateDer, ServerName, UnixTime},
    },
};

use crate::support::{Alone, PROGRAM, alone_with};

/// Accepts any certificate, and keeps it.
#[derive(Debug)]
struct Any {
    seen: Mutex<Option<CertificateDer<'static>>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Any {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        *self.seen.lock().expect("nobody panics") = Some(certificate.clone().into_owned());
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        tokio_rustls::rustls::crypto::verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        tokio_rustls::rustls::crypto::verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// An answer by TLS.
pub struct Scrape {
    pub status: u16,
    pub challenge: Option<String>,
    pub text: String,
    /// The certificate that the server presented, in DER.
    pub certificate: Vec<u8>,
}

/// Scrapes the metrics, with this token if there is one.
pub async fn scrape(address: SocketAddr, token: Option<&str>) -> Result<Scrape> {
    timeout(Duration::from_secs(20), ask(address, token)).await.context("no answer")?
}

async fn ask(address: SocketAddr, token: Option<&str>) -> Result<Scrape> {
    let provider = Arc::new(ring::default_provider());
    let algorithms = provider.signature_verification_algorithms;
    let any = Arc::new(Any { seen: Mutex::default(), algorithms });
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(any.clone())
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await?;
    let stream =
        TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("metrics.test")?, stream).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let mut request = Request::get("/metrics").header("host", "metrics.test");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let request = request.body(Empty::<Bytes>::new())?;
    let exchange = async {
        let answer = sender.send_request(request).await?;
        let status = answer.status().as_u16();
        let challenge = answer.headers().get("www-authenticate").and_then(|it| it.to_str().ok());
        let challenge = challenge.map(str::to_owned);
        let body = answer.into_body().collect().await?.to_bytes();
        drop(sender);
        Ok::<_, hyper::Error>((status, challenge, body))
    };
    // The way in which the server closes the connection does not matter.
    let ((status, challenge, body), _) =
        tokio::try_join!(exchange, async { Ok::<_, hyper::Error>(connection.await) })?;
    let certificate = any.seen.lock().expect("nobody panics").take().context("a certificate")?.to_vec();
    Ok(Scrape { status, challenge, text: String::from_utf8(body.into())?, certificate })
}

/// A token of a new account, with or without the right to read metrics.
pub async fn token(testbed: &Testbed, account: &str, reads: bool) -> Result<String> {
    let group = "rbac.authorization.k8s.io";
    let mut objects = vec![json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": account, "namespace": NAMESPACE },
    })];
    if reads {
        objects.push(json!({
            "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": { "name": account },
            "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": READER },
            "subjects": [{ "kind": "ServiceAccount", "name": account, "namespace": NAMESPACE }],
        }));
    }
    testbed.apply(account, &objects).await?;
    let token = testbed.cluster().kubectl(&["create", "token", account, "-n", NAMESPACE]).await?;
    Ok(token.trim().to_owned())
}

/// Waits until a scrape with this token has this status.
async fn until(address: SocketAddr, token: &str, status: u16) -> Result<Scrape> {
    wait::eventually(&format!("the answer is {status}"), DEADLINE, async || {
        let answer = scrape(address, Some(token)).await?;
        ensure!(answer.status == status, "{}: {}", answer.status, answer.text);
        Ok(answer)
    })
    .await
}

/// How many token reviews the operator has asked the API server for.
fn reviews(alone: &Alone<'_>) -> Result<usize> {
    let asked = alone.testbed.audit()?.of_operator()?;
    Ok(asked.iter().filter(|request| request.resource == "tokenreviews").count())
}

/// Writes a new certificate into a folder. Returns it in DER.
fn mount(folder: &Path) -> Result<Vec<u8>> {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["metrics.test".to_owned()])?;
    fs::create_dir_all(folder)?;
    fs::write(folder.join("tls.crt"), cert.pem())?;
    fs::write(folder.join("tls.key"), signing_key.serialize_pem())?;
    Ok(cert.der().to_vec())
}

/// Starts an operator with secure metrics.
async fn operator(
    testbed: &Testbed,
    dir: &Path,
    libvirtd: &Libvirtd,
    further: &[String],
) -> Result<Operator> {
    let settings = Settings::libvirt(&libvirtd.host().uri().to_string());
    let options = OperatorOptions::new(PROGRAM, dir.join("operator"), settings);
    let own = ["--leader-elect=false", "--metrics-secure=true"].map(str::to_owned);
    let arguments = [&own[..], further].concat();
    Operator::start(testbed, &OperatorOptions { arguments, ..options }).await
}

#[test]
fn metrics_are_shown_by_tls_to_those_who_may_read_them() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let certificate = mount(folder.path())?;
    let start = async |testbed: &Testbed, dir: &Path, libvirtd: &Libvirtd| {
        let certificate = format!("--metrics-tls-dir={}", folder.path().display());
        operator(testbed, dir, libvirtd, &[certificate]).await
    };
    alone_with(start, async |alone| {
        let address = alone.operator.metrics_address();
        let reader = token(alone.testbed, "metrics-reader", true).await?;
        let other = token(alone.testbed, "metrics-other", false).await?;
        let nobody = scrape(address, None).await?;
        assert_eq!((nobody.status, nobody.challenge.as_deref()), (401, Some("Bearer")), "{}", nobody.text);
        ensure!(nobody.certificate == certificate, "another certificate is shown");
        // Without the installation's rights the operator cannot ask the API server about a token.
        assert_eq!(scrape(address, Some(&reader)).await?.status, 503);
        let rights = metrics_rights::objects(&Options::default())?;
        alone.testbed.apply("metrics-rights", &rights).await?;
        let shown = until(address, &reader, 200).await?;
        ensure!(shown.text.contains("peerpod_operator_build_info") && shown.text.ends_with("# EOF\n"));
        until(address, &other, 403).await?;
        let wrong = scrape(address, Some("nonsense")).await?;
        assert_eq!(wrong.status, 401, "{}", wrong.text);
        let plain = http::get(address, "/metrics").await;
        ensure!(plain.is_err(), "plain HTTP is answered: {plain:?}");
        let (ready, text) = alone.operator.health("/readyz").await?;
        assert_eq!(ready, 200, "{text}");

        let before = reviews(alone)?;
        for _ in 0..20 {
            assert_eq!(scrape(address, Some(&reader)).await?.status, 200);
        }
        assert_eq!(reviews(alone)?, before, "what was found out is remembered");

        // Another certificate replaces the mounted one.
        let next = mount(folder.path())?;
        wait::eventually("the new certificate is shown", DEADLINE, async || {
            ensure!(scrape(address, Some(&reader)).await?.certificate == next);
            Ok(())
        })
        .await?;
        for kind in ["clusterrole", "clusterrolebinding"] {
            alone.testbed.cluster().kubectl(&["delete", kind, REVIEWER]).await?;
        }
        Ok(())
    })
}

#[test]
fn without_a_mounted_certificate_it_shows_one_of_its_own() -> Result<()> {
    let start = async |testbed: &Testbed, dir: &Path, libvirtd: &Libvirtd| {
        operator(testbed, dir, libvirtd, &[]).await
    };
    alone_with(start, async |alone| {
        let address = alone.operator.metrics_address();
        let answer = scrape(address, None).await?;
        ensure!(answer.status == 401 && !answer.certificate.is_empty());
        Ok(())
    })
}

#[test]
fn the_options_of_an_installation_give_the_rights_and_ask_for_the_token() -> Result<()> {
    let objects = metrics_rights::objects(&Options::default())?;
    let subjects: Vec<_> =
        objects[1]["subjects"].as_array().into_iter().flatten().map(|it| it["name"].clone()).collect();
    assert_eq!(subjects, [install::NAME, "peerpod-webhook"].map(Value::from));
    // No account may read metrics until an administrator grants it.
    let bound = objects.iter().filter(|it| it["roleRef"]["name"] == READER).count();
    assert_eq!(bound, 0);
    Ok(())
}
