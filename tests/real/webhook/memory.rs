//! Malicious clients: the webhook stays within the memory of its Pod, and still answers other clients.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    process::Command,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use cluster::{
    address::loopback,
    process::{Lifetime, Process},
};
use peerpod_operator::{
    api::v1alpha1::EXTENDED_RESOURCE,
    webhook::{MOST_CONTAINERS, mutate::MOST_RESOURCES},
};
use serde_json::{Map, Value, json};
use testbed::wait::DEADLINE;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, ServerName, pem::PemObject as _},
    },
};

use super::expiry;
use crate::support::{PROGRAM, run};

/// The most memory that it may use, in KiB. Its Pod may use 64 MiB, which includes the program itself.
const MOST: u64 = 48 * 1024;

/// The number of malicious clients, and how long they act. There are fewer of them than places, so that each holds what it can.
const CLIENTS: usize = 150;
const FOR: Duration = Duration::from_secs(5);

/// How long a client waits after it was turned away.
const AGAIN: Duration = Duration::from_millis(200);

/// The pause of the one that is not malicious between two calls. Each call costs both sides a TLS connection.
const PAUSE: Duration = Duration::from_millis(20);

/// How long a call may wait on a slow machine. Without the webhook's limits it would wait as long as the malicious clients act.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone)]
struct Client {
    address: Ipv4Addr,
    tls: TlsConnector,
}

impl Client {
    async fn connect(&self) -> Result<TlsStream<TcpStream>> {
        let socket = TcpSocket::new_v4()?;
        // A small buffer, so that the webhook and not the system must hold unread answers.
        socket.set_recv_buffer_size(4096)?;
        let stream = socket.connect((self.address, 9443).into()).await?;
        Ok(self.tls.connect(ServerName::try_from("localhost")?, stream).await?)
    }

    /// Sends a request that declares this length of its body, and a part of the body.
    async fn send(&self, length: usize, body: &[u8]) -> Result<TlsStream<TcpStream>> {
        let mut stream = self.connect().await?;
        let head = format!("POST /mutate-v1-pod HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body).await?;
        stream.flush().await?;
        Ok(stream)
    }

    /// Sends a review as an API server does. Fails unless it is answered.
    async fn is_answered(&self) -> Result<()> {
        let review = r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","object":
            {"metadata":{},"spec":{"runtimeClassName":"kata-remote","containers":[{"name":"a"}]}}}}"#;
        let mut stream = self.send(review.len(), review.as_bytes()).await?;
        let mut answer = Vec::new();
        while !answer.windows(9).any(|part| part == b"JSONPatch") {
            ensure!(stream.read_buf(&mut answer).await? > 0, "{}", String::from_utf8_lossy(&answer));
        }
        Ok(())
    }
}

/// The review of a Pod with as many containers as the webhook reads.
fn review(container: impl Fn(usize) -> Value) -> Vec<u8> {
    let containers = |from| (from..from + MOST_CONTAINERS).map(&container).collect::<Vec<_>>();
    let spec = json!({
        "runtimeClassName": "kata-remote",
        "containers": containers(0),
        "initContainers": containers(MOST_CONTAINERS),
    });
    let request = json!({ "uid": "u", "operation": "CREATE", "object": { "metadata": {}, "spec": spec } });
    let review =
        json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request });
    review.to_string().into_bytes()
}

/// The most memory that it used so far, without the pages of its program, in KiB. What one review takes is given back before anything
/// else is answered, so the present memory would not show it.
fn peak_memory(webhook: &Process) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", webhook.pid()))?;
    let kibibytes = |name: &'static str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).context(name)?;
        anyhow::Ok(line.trim().trim_end_matches(" kB").parse::<u64>()?)
    };
    Ok(kibibytes("VmHWM:")?.saturating_sub(kibibytes("RssFile:")?))
}

#[test]
fn malicious_clients_take_bounded_memory_and_delay_no_others() -> Result<()> {
    run(async {
        let (dir, address) = (tempfile::tempdir()?, loopback());
        expiry::show(dir.path(), 0, 3600)?;
        let mut command = Command::new(PROGRAM);
        let arguments = ["--addr", "--health-addr", "--metrics-addr"].into_iter().zip([9443, 8081, 8080]);
        command.arg("webhook");
        command.args(arguments.map(|(flag, port)| format!("{flag}={}", SocketAddr::from((address, port)))));
        let [certificate, key] = ["certificate", "key"].map(|name| dir.path().join(name));
        command.arg("--tls-cert").arg(&certificate).arg("--tls-key").arg(key);
        let webhook = Process::start("webhook", &command, dir.path(), Lifetime::Owned)?;
        let listens = async || Ok(TcpStream::connect((address, 9443)).await?);
        webhook.wait_until("the webhook listens", DEADLINE, listens).await?;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&fs::read(certificate)?)?)?;
        let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let client = Client { address, tls: TlsConnector::from(Arc::new(tls)) };

        let stalled = vec![b' '; 4_000_000];
        // The answer is as long as the request, because it names every container.
        let unread = review(|it| json!({ "name": format!("{it:0400}") }));
        // As many as a container may have. One of them stays.
        let resources = (1..MOST_RESOURCES).map(|it| (format!("hugepages-{it}"), json!("1")));
        let others = ["a.b/c", EXTENDED_RESOURCE].map(|name| (name.to_owned(), json!("1")));
        let resources: Map<_, _> = resources.chain(others).collect();
        let resources = json!({ "requests": resources, "limits": resources });
        let greedy = review(|it| json!({ "name": it.to_string(), "resources": resources }));
        // Each list again and again, which no text of an API server has.
        let list: Vec<_> = (0..=MOST_RESOURCES).map(|it| format!(r#""{it}":1"#)).collect();
        let list = format!(r#""requests":{{{}}}"#, list.join(","));
        let lists = vec![list; MOST_RESOURCES + 1].join(",");
        let container = format!(r#"{{"name":"a","resources":{{{lists}}}}}"#);
        let containers = vec![&*container; (4_000_000 / container.len()).min(MOST_CONTAINERS)].join(",");
        let spec = format!(r#"{{"runtimeClassName":"kata-remote","containers":[{containers}]}}"#);
        let repeated = format!(r#"{{"request":{{"uid":"u","object":{{"spec":{spec}}}}}}}"#).into_bytes();
        for (what, length, body) in [
            ("bodies that stop short of their end", 4 << 20, stalled),
            ("answers that nobody reads", unread.len(), unread),
            ("Pods that ask for very much", greedy.len(), greedy),
            ("Pods that repeat themselves", repeated.len(), repeated),
        ] {
            let body: Arc<[u8]> = body.into();
            let mut harm = JoinSet::new();
            for _ in 0..CLIENTS {
                let (client, body) = (client.clone(), Arc::clone(&body));
                // A client that was turned away tries again. A client that got a place keeps it.
                harm.spawn(async move {
                    loop {
                        let sent = client.send(length, &body).await;
                        sleep(if sent.is_ok() { FOR } else { AGAIN }).await;
                    }
                });
            }
            let end = Instant::now() + FOR;
            while Instant::now() < end {
                timeout(PATIENCE, client.is_answered()).await.context(what)?.context(what)?;
                sleep(PAUSE).await;
            }
            let peak = peak_memory(&webhook)?;
            ensure!(peak < MOST, "{what}: {peak} KiB");
        }
        Ok(())
    })
}
