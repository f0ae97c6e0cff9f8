//! 20,000 PeerPods and their Pods: how long `status` takes, and its memory.

use std::{
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use cluster::progress::Progress;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, api::PostParams};
use peerpod_operator::api::v1alpha1::EXTENDED_RESOURCE;
use serde_json::json;
use testbed::{Caa, Options, Testbed};
use tokio::{process::Command, time::sleep};
use uuid::Uuid;

use super::{
    build_operator,
    figures::{Figures, median_and_slowest},
    scene::CONCURRENCY,
    usage,
};

const PEERPODS: usize = 20_000;
const NODES: usize = 200;
/// The number of runs. In the first, the API server may have to fill its caches.
const RUNS: usize = 5;
/// How often to read its memory.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

pub(super) async fn run() -> Result<Figures> {
    let mut progress = Progress::new(3);
    let program = build_operator(&mut progress)?;
    progress.step(format!("{PEERPODS} PeerPods and their Pods on {NODES} nodes"));
    let dir = tempfile::tempdir()?;
    let testbed = Testbed::start(&Options::new(dir.path().join("testbed"))).await?;
    populate(&testbed).await?;
    progress.step("status, again and again");
    let kubeconfig = testbed.cluster().kubeconfig();
    let mut figures = Figures::default();
    for (format, time, memory) in [
        ("table", "20,000 PeerPods as a table: time", "20,000 PeerPods as a table: memory, peak"),
        ("json", "20,000 PeerPods as JSON: time", "20,000 PeerPods as JSON: memory, peak"),
    ] {
        let (mut times, mut most) = (Vec::new(), 0.0_f64);
        for _ in 0..RUNS {
            let (took, peak) = measure(&program, &kubeconfig, format).await?;
            times.push(took);
            most = most.max(peak);
        }
        let [median, _] = median_and_slowest(&times);
        figures.at_most(time, median, "s", 2.0);
        figures.at_most(memory, most, "MiB", 60.0);
    }
    progress.finish();
    Ok(figures)
}

/// Makes peer pods on nodes without a kubelet.
async fn populate(testbed: &Testbed) -> Result<()> {
    let nodes: Api<Node> = Api::all(testbed.client());
    for index in 0..NODES {
        let node = json!({ "metadata": { "name": node_name(index) } });
        nodes.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
    }
    let (caa, namespace) = (Caa::install(testbed).await?, testbed.namespace("bench").await?);
    let pods: Api<Pod> = Api::namespaced(testbed.client(), &namespace);
    let made = (0..PEERPODS).map(async |index| {
        let resources = json!({ "limits": { (EXTENDED_RESOURCE): "1" } });
        let pod = json!({
            "metadata": { "generateName": "bench-" },
            "spec": {
                "nodeName": node_name(index % NODES),
                // No node ever becomes ready.
                "tolerations": [{ "operator": "Exists" }],
                "containers": [{ "name": "main", "image": "any", "resources": resources }],
            },
        });
        let pod = pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        caa.record(&pod, "libvirt", &Uuid::new_v4().to_string()).await
    });
    stream::iter(made).buffer_unordered(CONCURRENCY).try_for_each(async |_| Ok(())).await
}

fn node_name(index: usize) -> String {
    format!("bench-{index}")
}

/// The time that it takes, and the most memory that it has, in MiB.
async fn measure(program: &Path, kubeconfig: &Path, format: &str) -> Result<(Duration, f64)> {
    let mut command = Command::new(program);
    command.env("KUBECONFIG", kubeconfig).args(["status", "-A", "-o", format]).stdout(Stdio::piped());
    let start = Instant::now();
    let child = command.kill_on_drop(true).spawn()?;
    let pid = i32::try_from(child.id().context("it runs")?)?;
    let mut peak = 0.0_f64;
    let look = async {
        // Once it has ended, it has no memory.
        while let Ok((_, most)) = usage::memory(pid) {
            peak = peak.max(most);
            sleep(LOOK_INTERVAL).await;
        }
    };
    let (output, ()) = tokio::join!(child.wait_with_output(), look);
    let (output, took) = (output?, start.elapsed());
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines =
        output.stdout.split(|byte| *byte == b'\n').filter(|line| line.windows(6).any(|it| it == b"bench-"));
    let shown = lines.count();
    ensure!(shown >= PEERPODS, "it shows {shown} lines of PeerPods and nodes, in the format {format}");
    Ok((took, peak))
}
