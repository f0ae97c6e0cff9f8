//! Reviews over real connections.

mod patience;

use std::io;
use std::net::Ipv4Addr;

use futures::future::try_join_all;
use http_body_util::BodyExt;
use hyper::client::conn as client;
use prometheus_client::registry::Registry;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream as ClientStream,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, ServerName, pem::PemObject},
        version::{TLS12, TLS13},
    },
};

use super::*;
use crate::{api::v1alpha1::Sizing, settings::tls::TlsOptions, webhook::certificates::Serving};

const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const DEADLINE: Duration = Duration::from_secs(30);
const MOST_BODY: usize = 4 * 1024 * 1024;

struct Fixture {
    server: Server,
    registry: Registry,
    readiness: Readiness,
    serving: Arc<Serving>,
    trusted: RootCertStore,
    stop: CancellationToken,
}

/// A certificate for localhost, in PEM with its key.
fn certificate() -> (String, String) {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    (cert.pem(), signing_key.serialize_pem())
}

impl Fixture {
    fn start(options: &TlsOptions) -> Self {
        let mut registry = Registry::default();
        let (readiness, stop) = (Readiness::default(), CancellationToken::new());
        let webhook = Webhook::new(
            Options {
                runtime_class: "kata-remote".into(),
                extended_resource: "kata.peerpods.io/vm".into(),
                sizing: Sizing::Kubernetes,
            },
            OtherClasses::Admit,
            ReviewMetrics::new(&mut registry),
            readiness.clone(),
        );
        let serving = Arc::new(Serving::default());
        let tls = options.server_config(serving.clone()).unwrap();
        let server = serve(LOCAL.into(), tls, webhook, stop.clone()).unwrap();
        let mut fixture =
            Self { server, registry, readiness, serving, trusted: RootCertStore::empty(), stop };
        fixture.rotate();
        fixture
    }

    /// How many reviews had this outcome.
    fn count(&self, outcome: &str) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let name = format!("peerpod_operator_admission_reviews_total{{outcome=\"{outcome}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&name)).unwrap().to_owned()
    }

    fn plain() -> Self {
        Self::start(&TlsOptions::parse("", "").unwrap())
    }

    /// Shows another certificate, which clients trust beside those before.
    fn rotate(&mut self) {
        let (cert, key) = certificate();
        self.trusted.add(CertificateDer::from_pem_slice(cert.as_bytes()).unwrap()).unwrap();
        assert!(self.serving.show(cert.as_bytes(), key.as_bytes()).unwrap());
    }

    async fn connect(&self) -> io::Result<ClientStream<TcpStream>> {
        self.connect_with(self.client(), &["http/1.1"]).await
    }

    /// A client that reads all that is there.
    fn client(&self) -> ClientConfig {
        ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS12, &TLS13])
            .unwrap()
            .with_root_certificates(self.trusted.clone())
            .with_no_client_auth()
    }

    /// A connection by one of these protocols.
    async fn connect_with(
        &self,
        mut config: ClientConfig,
        protocols: &[&str],
    ) -> io::Result<ClientStream<TcpStream>> {
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let stream = TcpStream::connect(self.server.address).await?;
        TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost").unwrap(), stream).await
    }

    async fn http1(&self) -> Http1 {
        let stream = self.connect().await.unwrap();
        let (sender, connection) = client::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender
    }
}

type Http1 = client::http1::SendRequest<Full<Bytes>>;

fn request(method: Method, path: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    Request::builder()
        .method(method)
        .uri(format!("https://localhost{path}"))
        .header("host", "localhost")
        .body(Full::new(body.into()))
        .unwrap()
}

fn a_review() -> Request<Full<Bytes>> {
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": { "uid": "u-1", "operation": "CREATE", "object": {
            "metadata": {}, "spec": { "runtimeClassName": "kata-remote", "containers": [{ "name": "a" }] },
        } },
    });
    request(Method::POST, "/mutate-v1-pod?timeout=5s", review.to_string())
}

async fn body(response: hyper::Response<Incoming>) -> (u16, String) {
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

async fn ask(sender: &mut Http1, request: Request<Full<Bytes>>) -> (u16, String) {
    body(timeout(DEADLINE, sender.send_request(request)).await.unwrap().unwrap()).await
}

fn is_patched(answer: &(u16, String)) -> bool {
    let review: Value = serde_json::from_str(&answer.1).unwrap();
    answer.0 == 200 && review["response"]["patchType"] == "JSONPatch"
}

#[tokio::test]
async fn reviews_are_answered_many_on_one_connection_and_on_many() {
    let fixture = Fixture::plain();
    let mut connections = Vec::new();
    for _ in 0..10 {
        connections.push(fixture.http1().await);
    }
    let many = connections.iter_mut().map(|http1| async {
        for _ in 0..10 {
            assert!(is_patched(&ask(http1, a_review()).await));
        }
        anyhow::Ok(())
    });
    timeout(DEADLINE, try_join_all(many)).await.unwrap().unwrap();
}

#[tokio::test]
async fn odd_requests_get_an_answer() {
    let fixture = Fixture::plain();
    let mut http1 = fixture.http1().await;
    for (request, status, words) in [
        (request(Method::GET, PATH, ""), 405, "does not allow this method"),
        (request(Method::POST, "/", "x"), 404, "/mutate-v1-pod"),
        (request(Method::POST, PATH, "x"), 400, "Status"),
        (request(Method::POST, PATH, ""), 400, "Status"),
        (request(Method::GET, "/healthz", ""), 200, "ok"),
        (request(Method::POST, "/healthz", ""), 405, "does not allow this method"),
        (request(Method::GET, "/readyz", ""), 503, "not ready"),
    ] {
        let (code, text) = ask(&mut http1, request).await;
        assert!(code == status && text.contains(words), "{code} {text}");
    }
    fixture.readiness.needs("certificate").met();
    assert_eq!(ask(&mut http1, request(Method::GET, "/readyz", "")).await.0, 200);
}

#[tokio::test]
async fn bodies_are_bounded_and_what_is_just_short_enough_is_read() {
    let fixture = Fixture::plain();
    for (length, status) in [(MOST_BODY, 400), (MOST_BODY + 1, 413), (2 * MOST_BODY, 413)] {
        let body_ = vec![b' '; length];
        let (code, text) = ask(&mut fixture.http1().await, request(Method::POST, PATH, body_)).await;
        assert_eq!(code, status, "{text}");
        assert!(text.contains("\"kind\":\"Status\""), "{text}");
    }
    let mut again = fixture.http1().await;
    assert!(is_patched(&ask(&mut again, a_review()).await), "what was held for bodies is given back");
}

#[tokio::test]
async fn a_client_that_sends_no_more_gets_its_answer() {
    let fixture = Fixture::plain();
    let mut stream = fixture.connect().await.unwrap();
    let review = a_review().into_body().collect().await.unwrap().to_bytes();
    let head = format!("POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", review.len());
    stream.write_all(&[head.as_bytes(), &review].concat()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = String::new();
    timeout(DEADLINE, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("JSONPatch"), "{answer}");
}

#[tokio::test]
async fn certificates_change_under_load_and_no_request_fails() {
    let mut fixture = Fixture::plain();
    let old = fixture.http1().await;
    let done = CancellationToken::new();
    let load = |mut sender: Http1| {
        let done = done.clone();
        async move {
            let mut count = 0;
            while !done.is_cancelled() || count == 0 {
                assert!(is_patched(&ask(&mut sender, a_review()).await));
                count += 1;
            }
            count
        }
    };
    let mut running = vec![tokio::spawn(load(old))];
    for _ in 0..20 {
        fixture.rotate();
        let sender = fixture.http1().await;
        running.push(tokio::spawn(load(sender)));
    }
    let shown = fixture.connect().await.unwrap();
    let shown = shown.get_ref().1.peer_certificates().unwrap()[0].clone();
    let newest = fixture.trusted.roots.last().unwrap().subject_public_key_info.to_vec();
    assert!(shown.windows(newest.len()).any(|part| part == newest), "the newest certificate is shown");
    done.cancel();
    for load in running {
        assert!(timeout(DEADLINE, load).await.unwrap().unwrap() > 0);
    }
}

#[tokio::test]
async fn a_stop_answers_what_was_asked_and_ends_idle_connections() {
    let fixture = Fixture::plain();
    let (mut http1, mut idle) = (fixture.http1().await, fixture.http1().await);
    assert!(is_patched(&ask(&mut http1, a_review()).await));
    assert!(is_patched(&ask(&mut idle, a_review()).await));
    // Half a request: it is answered once the rest is there.
    let mut half = fixture.connect().await.unwrap();
    let head =
        format!("POST {PATH} HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n");
    half.write_all(head.as_bytes()).await.unwrap();
    let mut wanted = [0; b"HTTP/1.1 100 Continue\r\n\r\n".len()];
    timeout(DEADLINE, half.read_exact(&mut wanted)).await.unwrap().unwrap();
    let address = fixture.server.address;
    fixture.stop.cancel();
    half.write_all(b"{}").await.unwrap();
    let mut answer = String::new();
    timeout(DEADLINE, half.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    // The server answers what was sent before the client could know, and then the client knows.
    let last = timeout(DEADLINE, http1.send_request(a_review())).await.unwrap().unwrap();
    assert_eq!(last.headers()[CONNECTION], "close");
    assert!(is_patched(&body(last).await));
    assert!(timeout(DEADLINE, http1.ready()).await.unwrap().is_err(), "it is closed then");
    // Sooner than connections are cut.
    timeout(LONGEST_STOP / 2, fixture.server.stopped()).await.unwrap();
    assert!(TcpStream::connect(address).await.is_err());
    assert!(timeout(DEADLINE, idle.ready()).await.unwrap().is_err());
}

#[tokio::test]
async fn clients_that_do_not_speak_what_is_wanted_are_turned_away() {
    let tls13 = Fixture::start(&TlsOptions::parse("VersionTLS13", "").unwrap());
    let cipher = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384";
    let one_cipher = Fixture::start(&TlsOptions::parse("", cipher).unwrap());
    let old = |fixture: &Fixture| {
        ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS12])
            .unwrap()
            .with_root_certificates(fixture.trusted.clone())
            .with_no_client_auth()
    };
    assert!(tls13.connect_with(old(&tls13), &[]).await.is_err());
    let stream = one_cipher.connect_with(old(&one_cipher), &[]).await.unwrap();
    let chosen = stream.get_ref().1.negotiated_cipher_suite().unwrap();
    assert_eq!(format!("{:?}", chosen.suite()), cipher);
}

#[tokio::test]
async fn http_1_1_is_spoken_and_nothing_else() {
    let fixture = Fixture::plain();
    let agreed = async |protocols| {
        let stream = fixture.connect_with(fixture.client(), protocols).await?;
        io::Result::Ok(stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec))
    };
    assert_eq!(agreed(&["h2", "http/1.1"]).await.unwrap().unwrap(), b"http/1.1");
    assert_eq!(agreed(&[]).await.unwrap(), None);
    let problem = agreed(&["h2"]).await.unwrap_err().to_string();
    assert!(problem.contains("NoApplicationProtocol"), "{problem}");
}
