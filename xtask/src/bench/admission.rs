//! The webhook under load: eight connections by TLS. Each asks again as soon as it has an answer.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use cluster::{
    process::{Lifetime, Process},
    progress::Progress,
};
use futures::future::try_join_all;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    runtime::Builder,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, ServerName},
    },
};

use super::{build_operator, figures::Figures, usage};

const CONNECTIONS: usize = 8;
const WARM_UP: Duration = Duration::from_secs(1);
const MEASURED: Duration = Duration::from_secs(5);
/// The webhook's ports, on an address of its own.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 83, 17, 4);
const READY_DEADLINE: Duration = Duration::from_secs(10);

pub(super) async fn run() -> Result<Figures> {
    let mut progress = Progress::new(2);
    let program = build_operator(&mut progress)?;
    let dir = tempfile::tempdir()?;
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed([ADDRESS.to_string()])?;
    std::fs::write(dir.path().join("tls.crt"), cert.pem())?;
    std::fs::write(dir.path().join("tls.key"), signing_key.serialize_pem())?;
    let webhook = start(&program, dir.path()).await?;
    let (idle, _) = usage::memory(webhook.pid())?;

    progress.step(format!("reviews by {CONNECTIONS} connections, for {MEASURED:?}"));
    let tls = client(cert.der().clone())?;
    let before = usage::cpu(webhook.pid())?;
    let started = Instant::now();
    // The load has a thread of its own, so that it does not disturb the observation of the webhook.
    let load =
        std::thread::spawn(move || Builder::new_current_thread().enable_all().build()?.block_on(load(tls)));
    let mut latencies = tokio::task::spawn_blocking(|| load.join())
        .await?
        .map_err(|_| anyhow::anyhow!("the load panicked"))??;
    let spent = usage::cpu(webhook.pid())? - before;
    let share = spent / started.elapsed().as_secs_f64();
    let (resident, peak) = usage::memory(webhook.pid())?;
    webhook.stop(READY_DEADLINE).await?;
    progress.finish();

    latencies.sort_unstable();
    let at = |share: usize| {
        let latency = latencies.get(latencies.len() * share / 100).context("nothing was measured")?;
        anyhow::Ok(latency.as_secs_f64() * 1e3)
    };
    // The number of requests of some seconds is far below 2^32.
    let count = f64::from(u32::try_from(latencies.len())?);
    let mut figures = Figures::default();
    figures.at_least(
        "reviews, 8 connections, 3 containers each",
        count / MEASURED.as_secs_f64(),
        "1/s",
        18_000.0,
    );
    figures.info("latency, median", at(50)?, "ms");
    figures.at_most("latency, 99 of 100", at(99)?, "ms", 2.0);
    figures.info("processors used by the webhook meanwhile", share, "");
    figures.info("resident memory, idle", idle, "MiB");
    figures.at_most("resident memory after the load", resident, "MiB", 12.0);
    figures.at_most("resident memory, peak", peak, "MiB", 12.0);
    Ok(figures)
}

async fn start(program: &Path, dir: &Path) -> Result<Process> {
    let mut command = Command::new(program);
    command.arg("webhook").arg(format!("--addr={ADDRESS}:9443"));
    command.arg("--tls-cert").arg(dir.join("tls.crt")).arg("--tls-key").arg(dir.join("tls.key"));
    command.arg(format!("--health-addr={ADDRESS}:8081")).arg(format!("--metrics-addr={ADDRESS}:8080"));
    let webhook = Process::start("webhook", &command, dir, Lifetime::Owned)?;
    let listens = async || Ok(TcpStream::connect((ADDRESS, 9443)).await?);
    webhook.wait_until("the webhook listens", READY_DEADLINE, listens).await?;
    Ok(webhook)
}

fn client(authority: CertificateDer<'static>) -> Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    roots.add(authority)?;
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The latencies of all requests that were answered in the measured time.
async fn load(tls: TlsConnector) -> Result<Vec<Duration>> {
    let request = request();
    let counts = Instant::now() + WARM_UP;
    let connections = (0..CONNECTIONS).map(|_| ask_again_and_again(&tls, &request, counts));
    Ok(try_join_all(connections).await?.concat())
}

async fn ask_again_and_again(tls: &TlsConnector, request: &[u8], counts: Instant) -> Result<Vec<Duration>> {
    let stream = TcpStream::connect(SocketAddr::from((ADDRESS, 9443))).await?;
    stream.set_nodelay(true)?;
    let mut stream = tls.connect(ServerName::from(std::net::IpAddr::V4(ADDRESS)), stream).await?;
    let mut answer = Vec::new();
    let mut latencies = Vec::new();
    loop {
        let asked = Instant::now();
        if asked >= counts + MEASURED {
            return Ok(latencies);
        }
        stream.write_all(request).await?;
        read_answer(&mut stream, &mut answer).await?;
        if asked >= counts {
            latencies.push(asked.elapsed());
        }
    }
}

/// Reads one answer: a head, and a body of the length that the head gives. This client is written by hand because the measurement must
/// cost less than the webhook.
async fn read_answer(stream: &mut TlsStream<TcpStream>, answer: &mut Vec<u8>) -> Result<()> {
    answer.clear();
    loop {
        ensure!(stream.read_buf(answer).await? > 0, "the webhook closed the connection");
        let Some(end) = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { continue };
        let head = std::str::from_utf8(&answer[..end])?;
        ensure!(head.starts_with("HTTP/1.1 200 "), "the webhook answers {head}");
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let whole = end + 4 + length.context("the answer has no length")?.parse::<usize>()?;
        while answer.len() < whole {
            ensure!(stream.read_buf(answer).await? > 0, "the webhook closed the connection");
        }
        let patched = answer.windows(9).any(|bytes| bytes == b"JSONPatch");
        ensure!(patched, "the webhook does not change the Pod");
        return Ok(());
    }
}

/// A review as the API server sends it for a Pod of three containers.
fn request() -> Vec<u8> {
    let container = |name: &str, cpu: &str, memory: &str| {
        json!({
            "name": name,
            "image": format!("registry.example.com/shop/{name}:1.27.3"),
            "command": ["/usr/bin/server", "--listen=0.0.0.0:8080", "--verbose"],
            "env": (0..6).map(|index| json!({ "name": format!("SETTING_{index}"), "value": "a value of it" })).collect::<Vec<_>>(),
            "ports": [{ "containerPort": 8080, "protocol": "TCP" }],
            "resources": { "requests": { "cpu": cpu, "memory": memory }, "limits": { "cpu": cpu, "memory": memory } },
            "volumeMounts": [{
                "name": "kube-api-access-x7k2p", "readOnly": true,
                "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
            }],
            "livenessProbe": { "httpGet": { "path": "/healthz", "port": 8080, "scheme": "HTTP" }, "periodSeconds": 10 },
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
            "imagePullPolicy": "IfNotPresent",
        })
    };
    let review = json!({
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": { "group": "", "version": "v1", "kind": "Pod" },
            "resource": { "group": "", "version": "v1", "resource": "pods" },
            "requestKind": { "group": "", "version": "v1", "kind": "Pod" },
            "requestResource": { "group": "", "version": "v1", "resource": "pods" },
            "namespace": "shop",
            "operation": "CREATE",
            "userInfo": {
                "username": "system:serviceaccount:kube-system:replicaset-controller",
                "uid": "7c9e6679-7425-40de-944b-e07fc1f90ae7",
                "groups": ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"],
            },
            "object": {
                "kind": "Pod",
                "apiVersion": "v1",
                "metadata": {
                    "generateName": "orders-5d4f8c7b9-", "namespace": "shop", "creationTimestamp": null,
                    "labels": { "app": "orders", "pod-template-hash": "5d4f8c7b9" },
                    "annotations": { "prometheus.io/scrape": "true" },
                },
                "spec": {
                    "runtimeClassName": "kata-remote",
                    "volumes": [{ "name": "kube-api-access-x7k2p", "projected": { "sources": [
                        { "serviceAccountToken": { "expirationSeconds": 3607, "path": "token" } },
                    ], "defaultMode": 420 } }],
                    "containers": [
                        container("orders", "500m", "512Mi"),
                        container("proxy", "250m", "128Mi"),
                        container("logs", "100m", "64Mi"),
                    ],
                    "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
                    "serviceAccountName": "default", "securityContext": {}, "schedulerName": "default-scheduler",
                    "priority": 0, "enableServiceLinks": true, "preemptionPolicy": "PreemptLowerPriority",
                },
                "status": {},
            },
            "oldObject": null,
            "dryRun": false,
            "options": { "kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1" },
        },
    })
    .to_string();
    let length = review.len();
    let head = format!(
        "POST /mutate-v1-pod?timeout=10s HTTP/1.1\r\nHost: webhook\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n"
    );
    (head + &review).into_bytes()
}
