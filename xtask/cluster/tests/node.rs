//! A real node: it runs Pods, and leaves nothing behind. All of this needs root.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use cluster::process::{Identity, Lifetime, Process};
use cluster::wait::eventually;
use cluster::{Cluster, ClusterOptions, Component};
use image::{Config, Files, Image};
use serde_json::{Value, json};
use tempfile::TempDir;

const DEADLINE: Duration = Duration::from_secs(60);
const IMAGE: &str = "test:1";

async fn start(fake_nodes: usize) -> Result<(Cluster, TempDir)> {
    let dir = tempfile::tempdir()?;
    Ok((Cluster::start(&options(&dir.path().join("c"), fake_nodes)).await?, dir))
}

fn options(dir: &Path, fake_nodes: usize) -> ClusterOptions {
    ClusterOptions { real_node: true, fake_nodes, ..ClusterOptions::new(dir) }
}

/// An image with a shell and kubectl.
fn image(cluster: &Cluster) -> Result<Image> {
    let mut files = Files::new();
    for program in ["/bin/sh", "/bin/sleep"] {
        files.install(Path::new(program), program)?;
    }
    files.install(&cluster.tools().kubectl, "/bin/kubectl")?.folder("/tmp");
    let config = Config { env: vec!["PATH=/bin".to_owned()], ..Config::default() };
    Ok(Image { name: IMAGE.to_owned(), files, config })
}

/// A Pod under the restricted profile that runs this script, and a Service in front of its port 8001.
fn objects(script: &str) -> Value {
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "securityContext": {
                "runAsNonRoot": true,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{
                "name": "main",
                "image": IMAGE,
                "imagePullPolicy": "Never",
                "command": ["sh", "-c", script],
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "readOnlyRootFilesystem": true,
                    "capabilities": {"drop": ["ALL"]},
                },
            }],
        },
    });
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8001}]},
    });
    json!({"apiVersion": "v1", "kind": "List", "items": [pod, service]})
}

async fn create(cluster: &Cluster, objects: &Value) -> Result<()> {
    let file = cluster.dir().join("objects.json");
    fs::write(&file, objects.to_string())?;
    cluster.kubectl(&["create", "-f", file.to_str().context("UTF-8")?]).await.map(drop)
}

async fn runs(cluster: &Cluster) -> Result<()> {
    eventually("the Pod runs", DEADLINE, async || {
        let status = cluster.kubectl(&["get", "pod", "web", "--output=jsonpath={.status}"]).await?;
        ensure!(status.contains(r#""phase":"Running""#), "its status is {status}");
        Ok(())
    })
    .await
}

async fn a_pod_on_the_real_node_has_logs_exec_a_service_and_a_token(cluster: &mut Cluster) -> Result<()> {
    // `whoami` asks the API server, through the Service in every Pod's environment and with the Pod's token.
    let whoami = "kubectl auth whoami --output=jsonpath={.status.userInfo.username}";
    let serve = "exec kubectl proxy --address=0.0.0.0 --accept-hosts=.*";
    create(cluster, &objects(&format!("{whoami}; {serve}"))).await?;
    runs(cluster).await?;
    let log = eventually("the Pod says who it is", DEADLINE, async || {
        let log = cluster.kubectl(&["logs", "web"]).await?;
        ensure!(log.contains("Starting to serve"), "its log is {log}");
        Ok(log)
    })
    .await?;
    assert!(log.starts_with("system:serviceaccount:default:default"), "{log}");
    let said = cluster.kubectl(&["exec", "web", "--", "sh", "-c", "echo $KUBERNETES_SERVICE_HOST"]).await?;
    assert_eq!(said.trim(), "10.96.0.1");
    let version = "/api/v1/namespaces/default/services/web:80/proxy/version";
    let answer = eventually("the Service answers", DEADLINE, async || {
        cluster.kubectl(&["get", "--raw", version]).await
    })
    .await?;
    assert!(answer.contains("gitVersion"), "{answer}");
    // Another Service than the Pod's own, from inside, by kube-proxy's rules.
    let address = cluster.kubectl(&["get", "service", "web", "--output=jsonpath={.spec.clusterIP}"]).await?;
    let ask = format!("kubectl --server=http://{address} get --raw /version");
    let ask = ["exec", "web", "--", "sh", "-c", &ask];
    let answer =
        eventually("kube-proxy knows the Service", DEADLINE, async || cluster.kubectl(&ask).await).await?;
    assert!(answer.contains("gitVersion"), "{answer}");

    // A restarted kubelet finds its Pod unchanged.
    let started = "--output=jsonpath={.status.containerStatuses[0].restartCount} {.status.startTime}";
    let before = cluster.kubectl(&["get", "pod", "web", started]).await?;
    cluster.restart(Component::Kubelet).await?;
    eventually("the kubelet answers again", DEADLINE, async || cluster.kubectl(&["logs", "web"]).await)
        .await?;
    assert_eq!(cluster.kubectl(&["get", "pod", "web", started]).await?, before);
    cluster.kubectl(&["delete", "pod/web", "service/web", "--timeout=60s"]).await.map(drop)
}

/// The processes of a cluster's Pods.
fn processes(cluster: &Cluster) -> Result<Vec<Identity>> {
    let mut found = Vec::new();
    let namespaces = cluster.process(Component::Namespaces).context("its namespaces")?.identity().clone();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|it| it.parse::<i32>().ok()) else { continue };
        let cgroup = fs::read_to_string(entry.path().join("cgroup")).unwrap_or_default();
        if cgroup.contains(&cgroup_of(namespaces.pid)?) {
            let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            let started =
                stat.rsplit_once(')').and_then(|(_, it)| it.split_ascii_whitespace().nth(19)?.parse().ok());
            let started = started.with_context(|| format!("the start of process {pid}"))?;
            found.push(Identity { pid, started, boot: namespaces.boot.clone() });
        }
    }
    ensure!(found.len() >= 2, "a Pod has a pause container and its own, and {found:?} are there");
    Ok(found)
}

/// The start of the name of this process's cgroup.
fn cgroup_of(pid: i32) -> Result<String> {
    let namespace = fs::metadata("/proc/self/ns/pid")?.ino();
    Ok(format!("peerpod-operator.{namespace}.{pid}."))
}

/// All traces of nodes on this machine: network interfaces, cgroups, mounts and rules of the packet filter.
fn traces() -> Result<Vec<String>> {
    let shell = r"PATH=$PATH:/usr/sbin; ip -o link | sed -n 's/^[0-9]*: \(node-[^@:]*\).*/\1/p'
        ls -d /sys/fs/cgroup/peerpod-operator.* /sys/fs/cgroup/*/peerpod-operator.* 2>/dev/null
        grep -E 'kubelet|containerd' /proc/mounts; iptables-save | grep KUBE; true";
    let output = Command::new("sh").args(["-c", shell]).output()?;
    Ok(String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect())
}

/// The traces that name one of these: a network of this host address, a cgroup of this process.
fn traces_of(cluster: &Cluster) -> Result<impl Fn() -> Result<Vec<String>> + use<>> {
    let host = cluster.host_address().context("a real node's network")?.octets();
    let pid = cluster.process(Component::Namespaces).context("its namespaces")?.identity().pid;
    let names = [format!("node-{}-{}", host[1], host[2]), cgroup_of(pid)?];
    Ok(move || {
        let all = traces()?;
        Ok(all.into_iter().filter(|it| names.iter().any(|name| it.contains(name))).collect())
    })
}

#[tokio::test]
async fn nodes_run_side_by_side_and_nothing_is_left_of_them() -> Result<()> {
    // One cluster also has a fake node, which must not get the Pods.
    let ((mut one, _one_dir), (mut other, _other_dir)) = tokio::try_join!(start(1), start(0))?;
    for cluster in [&one, &other] {
        cluster.import(&image(cluster)?).await?;
    }
    a_pod_on_the_real_node_has_logs_exec_a_service_and_a_token(&mut one).await?;
    for cluster in [&one, &other] {
        create(cluster, &objects("exec sleep 600")).await?;
    }
    tokio::try_join!(runs(&one), runs(&other))?;
    let (of_one, of_other) = (processes(&one)?, processes(&other)?);
    let (left_of_one, left_of_other) = (traces_of(&one)?, traces_of(&other)?);
    assert!(left_of_one()?.len() > 1 && left_of_other()?.len() > 1, "a network interface and cgroups");
    let foreign: Vec<_> =
        traces()?.into_iter().filter(|it| it.contains("KUBE") || it.contains("kubelet")).collect();
    assert!(foreign.is_empty(), "the machine itself has nothing to do with it: {foreign:?}");

    drop(one);
    assert!(!of_one.iter().any(Identity::is_running), "Pods go with their node");
    assert_eq!(left_of_one()?, Vec::<String>::new());
    assert!(of_other.iter().all(Identity::is_running), "another node stays");
    other.stop().await?;
    assert!(!of_other.iter().any(Identity::is_running));
    assert_eq!(left_of_other()?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn a_node_ends_with_the_program_that_started_it_however_that_ends() -> Result<()> {
    const ROLE: &str = "CLUSTER_TEST_NODE_DIR";
    const NAME: &str = "a_node_ends_with_the_program_that_started_it_however_that_ends";
    if let Some(dir) = std::env::var_os(ROLE) {
        // This test starts the program below. It starts a node with a Pod, then waits to be killed.
        let dir = Path::new(&dir);
        let cluster = Cluster::start(&options(&dir.join("c"), 0)).await?;
        cluster.import(&image(&cluster)?).await?;
        create(&cluster, &objects("exec sleep 600")).await?;
        runs(&cluster).await?;
        let mut processes = processes(&cluster)?;
        // The first process of its namespaces ends last. While it exists, no other program may remove its cgroup.
        processes.push(cluster.process(Component::Namespaces).context("its namespaces")?.identity().clone());
        let text = json!({"processes": processes, "left": traces_of(&cluster)?()?});
        fs::write(dir.join("new"), text.to_string())?;
        fs::rename(dir.join("new"), dir.join("told"))?;
        std::future::pending::<()>().await;
    }
    let dir = tempfile::tempdir()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--exact", NAME, "--nocapture"]).env(ROLE, dir.path());
    let program = Process::start("program", &command, dir.path(), Lifetime::Owned)?;
    let told = || async { Ok(serde_json::from_str::<Value>(&fs::read_to_string(dir.path().join("told"))?)?) };
    let told = program.wait_until("it has a node with a Pod", 4 * DEADLINE, told).await?;
    let processes: Vec<Identity> = serde_json::from_value(told["processes"].clone())?;
    assert!(processes.iter().all(Identity::is_running));
    program.kill().await?;
    eventually("all its processes have ended", DEADLINE, async || {
        let left: Vec<_> = processes.iter().filter(|process| process.is_running()).collect();
        ensure!(left.is_empty(), "{left:?} run");
        Ok(())
    })
    .await?;
    // Only cgroups outlive the processes. The next program that starts a node removes them.
    let left = || -> Result<Vec<String>> {
        let before: Vec<String> = serde_json::from_value(told["left"].clone())?;
        Ok(traces()?.into_iter().filter(|it| before.contains(it)).collect())
    };
    eventually("its network is gone", DEADLINE, async || {
        if let Some(interface) = left()?.iter().find(|it| it.starts_with("node-")) {
            bail!("{interface} is there");
        }
        Ok(())
    })
    .await?;
    // The node ends before its folder is removed.
    let (next, _next_dir) = start(0).await?;
    assert_eq!(left()?, Vec::<String>::new());
    drop(next);
    Ok(())
}
