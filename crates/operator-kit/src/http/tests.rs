use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::{Instant, timeout};

use super::*;
use crate::ListenAt;
use prometheus_client::metrics::info::Info;

const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);
const DEADLINE: Duration = Duration::from_secs(60);

fn start(health: SocketAddr, metrics: SocketAddr) -> (Servers, Readiness, CancellationToken) {
    let mut registry = Registry::default();
    registry.register("build", "The version", Info::new([("version", "1")]));
    let stop = CancellationToken::new();
    let endpoints = Endpoints { registry, ..endpoints(health, metrics) };
    let readiness = endpoints.readiness.clone();
    (endpoints.serve(&stop).unwrap(), readiness, stop)
}

fn endpoints(health: SocketAddr, metrics: SocketAddr) -> Endpoints {
    Endpoints {
        health: ListenAt::from(health).chosen_by("--health"),
        metrics: ListenAt::from(metrics).chosen_by("--metrics"),
        secure: None,
        page: None,
        readiness: Readiness::default(),
        registry: Registry::default(),
    }
}

/// Another local address, so that the two differ although both let the system choose the port.
fn second() -> SocketAddr {
    "127.0.0.2:0".parse().unwrap()
}

async fn request(address: SocketAddr, request: &str) -> String {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    timeout(DEADLINE, exchange).await.unwrap()
}

async fn get(address: SocketAddr, path: &str) -> String {
    request(address, &format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n")).await
}

#[tokio::test]
async fn readiness_follows_its_conditions_and_health_does_not() {
    let (servers, readiness, _stop) = start(LOCAL, second());
    let synced = readiness.needs("widgets");
    let answer = get(servers.health, "/readyz").await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("[-] widgets: not yet\n"), "{answer}");
    let answer = get(servers.health, "/healthz").await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\r\n\r\nok\n"), "{answer}");
    assert!(answer.contains("connection: close\r\n"), "one request per connection: {answer}");
    synced.met();
    let answer = get(servers.health, "/readyz?verbose").await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("ready\n[+] widgets\n"), "{answer}");
}

#[tokio::test]
async fn each_address_serves_its_own_paths() {
    let (servers, _readiness, _stop) = start(LOCAL, second());
    assert_ne!(servers.health, servers.metrics);
    let answer = get(servers.metrics, "/metrics").await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("# EOF\n"), "{answer}");
    assert!(answer.contains(&format!("content-type: {OPEN_METRICS}\r\n")), "{answer}");
    for (address, path) in [
        (servers.health, "/metrics"),
        (servers.metrics, "/healthz"),
        (servers.metrics, "/readyz"),
        (servers.health, "/"),
    ] {
        assert!(get(address, path).await.starts_with("HTTP/1.1 404 "), "{path}");
    }
}

#[tokio::test]
async fn equal_addresses_share_a_server() {
    let (servers, _readiness, _stop) = start(LOCAL, LOCAL);
    assert_eq!(servers.health, servers.metrics);
    assert!(get(servers.health, "/healthz").await.starts_with("HTTP/1.1 200 "));
    assert!(get(servers.health, "/metrics").await.contains("build_info"));
}

#[tokio::test]
async fn a_page_is_made_anew_for_each_request() {
    let count = std::sync::atomic::AtomicUsize::new(0);
    let content = move || count.fetch_add(1, std::sync::atomic::Ordering::Relaxed).to_string();
    let page = Page {
        at: ListenAt::from(second()).into(),
        path: "/state",
        content_type: "application/json",
        content: Box::new(content),
    };
    let endpoints = Endpoints { page: Some(page), ..endpoints(LOCAL, LOCAL) };
    let stop = CancellationToken::new();
    let servers = endpoints.serve(&stop).unwrap();
    let address = servers.page.unwrap();
    for expected in ["0", "1"] {
        let answer = get(address, "/state").await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with(expected), "{answer}");
        assert!(answer.contains("content-type: application/json\r\n"), "{answer}");
    }
    let answer = get(address, "/metrics").await;
    assert!(answer.starts_with("HTTP/1.1 404 ") && answer.ends_with("there is /state\n"), "{answer}");
    assert!(get(servers.health, "/state").await.starts_with("HTTP/1.1 404 "));
}

#[tokio::test]
async fn odd_requests_get_an_answer() {
    let (servers, _readiness, _stop) = start(LOCAL, LOCAL);
    let answer =
        request(servers.health, "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 405 ") && answer.contains("allow: GET, HEAD\r\n"), "{answer}");
    let answer =
        request(servers.health, "POST /other HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    let answer = request(servers.health, "HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\n"), "{answer}");
    let answer = request(servers.health, "\u{0}nonsense\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    let long = "x".repeat(2 * BUFFER);
    let answer = request(servers.health, &format!("GET /healthz HTTP/1.1\r\nA: {long}\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
}

#[tokio::test]
async fn a_port_in_use_is_reported_with_the_flag_to_change() {
    let taken = TcpListener::bind(LOCAL).await.unwrap();
    let taken = taken.local_addr().map(|address| (taken, address)).unwrap();
    for (health, flags) in [(LOCAL, "--metrics"), (taken.1, "--health or --metrics")] {
        let result = endpoints(health, taken.1).serve(&CancellationToken::new());
        let error = result.unwrap_err().to_string();
        assert!(
            error.ends_with(&format!(" with {flags}")) && error.contains(&taken.1.to_string()),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_stop_ends_idle_connections_too() {
    let (servers, _readiness, stop) = start(LOCAL, second());
    let health = servers.health;
    let mut idle = TcpStream::connect(health).await.unwrap();
    // The idle connection has been accepted once a later one gets an answer.
    get(health, "/healthz").await;
    stop.cancel();
    // Sooner than a connection's time runs out.
    timeout(PATIENCE / 2, servers.stopped()).await.unwrap();
    assert_eq!(idle.read(&mut [0]).await.unwrap(), 0);
    assert!(TcpStream::connect(health).await.is_err());
}

/// Opens connections that ask for nothing.
async fn silent(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    let mut silent = Vec::new();
    for _ in 0..count {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    silent
}

#[tokio::test(start_paused = true)]
async fn silent_clients_do_not_keep_others_out() {
    let (servers, _readiness, _stop) = start(LOCAL, second());
    let _silent = silent(servers.health, 4 * CONNECTIONS).await;
    // At the deadline the clock of this test runs ahead, so that it fails rather than hangs.
    let end = std::time::Instant::now() + DEADLINE;
    tokio::spawn(async move {
        while std::time::Instant::now() < end {
            tokio::task::yield_now().await;
        }
    });
    let before = Instant::now();
    let answer = get(servers.health, "/healthz").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(before.elapsed(), Duration::ZERO, "no deadline passed");
}

#[tokio::test(start_paused = true)]
async fn a_request_must_arrive_soon() {
    let (servers, _readiness, _stop) = start(LOCAL, second());
    let mut slow = silent(servers.health, 1).await.remove(0);
    slow.write_all(b"GET /healthz HTTP/1.1\r\n").await.unwrap();
    let before = Instant::now();
    assert_eq!(slow.read(&mut [0]).await.unwrap(), 0);
    assert!((PATIENCE / 2..=PATIENCE).contains(&before.elapsed()), "{:?}", before.elapsed());
}
