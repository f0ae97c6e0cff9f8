//! `status` on a real API server. The operators here are no Pods, so `status` cannot read what they saw of clouds.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Output, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Pod},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    config::Kubeconfig,
};
use peerpod_operator::{
    NAMESPACE,
    api::v1alpha1::{EXTENDED_RESOURCE, PeerPodConfig},
};
use serde_json::{Value, json};
use testbed::{
    Caa, FakeNodes, Testbed,
    wait::{self, DEADLINE},
};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
    time::timeout,
};

use crate::{
    cli::apply::PATIENCE,
    install::kustomize::documented,
    support::{PROGRAM, beside_others, without_operator},
};

/// What `status` says of a leader that is no Pod.
const ELSEWHERE: &str =
    "is --operator-namespace right? An operator outside the cluster answers at its own --status-addr";

/// The identifier of a machine that is none.
const FOREIGN: &str = "i-0123456789abcdef0";

async fn run(kubeconfig: &Path, arguments: &[&str]) -> Result<Output> {
    let mut command = Command::new(PROGRAM);
    command.env_clear().env("KUBECONFIG", kubeconfig).arg("status").args(arguments);
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
    Ok(timeout(PATIENCE, output).await.context("status takes too long")??)
}

/// What it prints, if it succeeds.
async fn printed(kubeconfig: &Path, arguments: &[&str]) -> Result<String> {
    let output = run(kubeconfig, arguments).await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

async fn document(kubeconfig: &Path, arguments: &[&str]) -> Result<Value> {
    let printed = printed(kubeconfig, &[&["-o", "json"], arguments].concat()).await?;
    serde_json::from_str(&printed).with_context(|| printed)
}

/// The subjects of the reported problems, each with its text.
fn problems(document: &Value) -> BTreeMap<&str, &str> {
    let problems = document["problems"].as_array().map(Vec::as_slice).unwrap_or_default();
    problems.iter().filter_map(|it| Some((it["subject"].as_str()?, it["text"].as_str()?))).collect()
}

#[test]
fn it_shows_what_is_stalled_before_what_is_well_in_every_format() -> Result<()> {
    beside_others(async |scene| {
        let cluster = scene.testbed.cluster();
        let kubeconfig = cluster.kubeconfig();
        let vm = scene.pod_with_vm("well").await?;
        let refused =
            scene.caa.record(&scene.pods.run("refused").await?, "nonsense", FOREIGN).await?.name_any();
        scene.pods.delete("refused").await?;
        scene.held(&refused, "UnknownProvider").await?;

        let here = ["-n", &scene.namespace];
        let seen = document(&kubeconfig, &here).await?;
        let [stalled, well] = seen["peerPods"].as_array().map(Vec::as_slice).unwrap_or_default() else {
            anyhow::bail!("{seen}")
        };
        ensure!(stalled["name"] == *refused && stalled["state"] == "Stalled", "{stalled}");
        ensure!(stalled["reason"] == "UnknownProvider" && stalled["vm"] == FOREIGN, "{stalled}");
        ensure!(stalled["pod"] == "refused" && stalled["node"] == Value::Null, "{stalled}");
        ensure!(well["name"] == *vm.name() && well["state"] == "Active" && well["pod"] == "well", "{well}");
        ensure!(well["node"] == "fake-0" && well["cloud"] == "libvirt", "{well}");
        let leader = seen["leader"]["identity"].as_str().context("nobody leads")?;
        let pod = leader.rsplit_once('_').context("it has no suffix")?.0;
        // The leader is a process of this host, not a Pod.
        let missing =
            format!("asking the operator's Pod {NAMESPACE}/{pod} failed: it does not exist: {ELSEWHERE}");
        ensure!(problems(&seen).get("clouds") == Some(&&*missing) && seen["clouds"] == Value::Null, "{seen}");

        let yaml: Value =
            serde_yaml::from_str(&printed(&kubeconfig, &[&here[..], &["-o", "yaml"]].concat()).await?)?;
        ensure!(yaml["peerPods"] == seen["peerPods"], "{yaml}");

        let table = printed(&kubeconfig, &here).await?;
        let head = format!("PeerPods in the namespace {}: 1 Stalled, 1 Active\nNAME ", scene.namespace);
        ensure!(table.contains(&head) && table.contains(FOREIGN), "{table}");
        ensure!(table.find(&refused) < table.find(&vm.name()), "{table}");
        let all = printed(&kubeconfig, &["-A"]).await?;
        ensure!(all.lines().any(|line| line.starts_with(&format!("{} ", scene.namespace))), "{all}");

        // As kubectl's plugin.
        let path = tempfile::tempdir()?;
        symlink(PROGRAM, path.path().join("kubectl-peerpods"))?;
        let mut kubectl = Command::new(cluster.kubectl_program());
        kubectl.env("PATH", path.path()).env("KUBECONFIG", &kubeconfig).arg("peerpods").args(here);
        let plugin = timeout(PATIENCE, kubectl.output()).await??;
        let plugin = String::from_utf8_lossy(&plugin.stdout);
        ensure!(plugin.contains(&head), "{plugin}");

        scene.abandon(&refused).await?;
        scene.released(&refused).await
    })
}

#[test]
fn watch_shows_later_changes() -> Result<()> {
    beside_others(async |scene| {
        let vm = scene.pod_with_vm("watched").await?;
        let mut command = Command::new(PROGRAM);
        command.env_clear().env("KUBECONFIG", scene.testbed.cluster().kubeconfig());
        command.args(["status", "--watch", "--namespace", &scene.namespace]).stdout(Stdio::piped());
        let mut watch = command.kill_on_drop(true).spawn()?;
        let mut lines = BufReader::new(watch.stdout.take().context("it is read once")?).lines();
        let mut until = async |text: &str| {
            let found = async {
                while let Some(line) = lines.next_line().await? {
                    if line.contains(text) {
                        return Ok(());
                    }
                }
                anyhow::bail!("it ended")
            };
            timeout(PATIENCE, found).await.with_context(|| format!("{text} was not shown")).flatten()
        };
        until(&vm.name()).await?;
        scene.pods.delete("watched").await?;
        scene.reaped(&vm).await?;
        until("No PeerPods in the namespace").await
    })
}

#[test]
fn credentials_that_are_refused_are_named_and_a_plugin_for_a_token_runs_once() -> Result<()> {
    beside_others(async |scene| {
        let dir = tempfile::tempdir()?;
        let ran = dir.path().join("ran");
        let credential = json!({
            "kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1",
            "status": { "token": "a-stale-token" },
        });
        let script = format!("echo once >> {}; echo '{credential}'", ran.display());
        let user = json!({ "exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
            "command": "sh", "args": ["-c", script],
        } });
        let mut kubeconfig = Kubeconfig::read_from(scene.testbed.cluster().kubeconfig())?;
        for it in &mut kubeconfig.auth_infos {
            it.auth_info = Some(serde_json::from_value(user.clone())?);
        }
        let file = dir.path().join("kubeconfig");
        fs::write(&file, serde_yaml::to_string(&kubeconfig)?)?;
        let output = run(&file, &[]).await?;
        let told = String::from_utf8_lossy(&output.stderr);
        let expected = "does not accept the credentials (401 Unauthorized): they may have expired";
        ensure!(output.status.code() == Some(1) && told.contains(expected), "{told}");
        ensure!(fs::read_to_string(ran)? == "once\n", "the plugin ran again");
        Ok(())
    })
}

#[test]
fn a_kubeconfig_that_verifies_nothing_needs_no_authorities() -> Result<()> {
    beside_others(async |scene| {
        let dir = tempfile::tempdir()?;
        let mut kubeconfig = Kubeconfig::read_from(scene.testbed.cluster().kubeconfig())?;
        for cluster in kubeconfig.clusters.iter_mut().filter_map(|it| it.cluster.as_mut()) {
            cluster.certificate_authority = None;
            cluster.insecure_skip_tls_verify = Some(true);
        }
        let (file, authorities) = (dir.path().join("kubeconfig"), dir.path().join("authorities"));
        fs::write(&file, serde_yaml::to_string(&kubeconfig)?)?;
        fs::write(&authorities, "")?;
        let mut command = Command::new(PROGRAM);
        command.env_clear().env("KUBECONFIG", &file).env("SSL_CERT_FILE", &authorities);
        let output = command.args(["status", "--context", "", "--namespace", &scene.namespace]).output();
        let output = timeout(PATIENCE, output).await.context("status takes too long")??;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    })
}

/// The kubeconfig of a user who is in these groups.
fn impersonated(testbed: &Testbed, dir: &Path, name: &str, groups: &[&str]) -> Result<PathBuf> {
    let mut kubeconfig = Kubeconfig::read_from(testbed.cluster().kubeconfig())?;
    for user in kubeconfig.auth_infos.iter_mut().filter_map(|it| it.auth_info.as_mut()) {
        user.impersonate = Some(name.to_owned());
        user.impersonate_groups = Some(groups.iter().map(ToString::to_string).collect());
    }
    let file = dir.join(name);
    fs::write(&file, serde_yaml::to_string(&kubeconfig)?)?;
    Ok(file)
}

#[test]
fn the_documented_rights_show_everything_and_fewer_rights_show_the_rest() -> Result<()> {
    without_operator(async |testbed: &Testbed| {
        let cluster = testbed.cluster();
        let namespace = testbed.namespace("status").await?;
        let caa = Caa::install(testbed).await?;
        let labels = BTreeMap::from([("test.example/status".to_owned(), String::new())]);
        let nodes = FakeNodes::join(testbed.client(), "status", 1, &labels).await?;
        let [node] = nodes.names() else { anyhow::bail!("{:?}", nodes.names()) };
        let level = json!({ (EXTENDED_RESOURCE): "3" });
        let advertised = Patch::Merge(json!({ "status": { "capacity": level, "allocatable": level } }));
        nodes.api().patch_status(node, &PatchParams::default(), &advertised).await?;
        let configs: Api<PeerPodConfig> = Api::namespaced(testbed.client(), NAMESPACE);
        let config = json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig",
            "metadata": { "name": "status" },
            "spec": { "limit": 3, "nodeSelector": { "test.example/status": "" } },
        });
        configs.create(&PostParams::default(), &serde_json::from_value(config)?).await?;
        let pods: Api<Pod> = Api::namespaced(testbed.client(), &namespace);
        let resources = json!({ "limits": { (EXTENDED_RESOURCE): "1" } });
        let pod = json!({
            "metadata": { "name": "web" },
            "spec": {
                "nodeName": node, "automountServiceAccountToken": false,
                "containers": [{ "name": "main", "image": "any", "resources": resources }],
            },
        });
        let pod = pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        caa.record(&pod, "libvirt", "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11").await?;
        let now = MicroTime(Timestamp::now());
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": "peerpod-operator", "namespace": NAMESPACE },
            "spec": {
                "holderIdentity": "gone_0123456789abcdef",
                "renewTime": now, "acquireTime": now,
            },
        });
        testbed.apply("status", &[lease]).await?;

        documented(cluster, "status-rights").await?;
        let dir = tempfile::tempdir()?;
        let reader = impersonated(testbed, dir.path(), "reader", &["peerpod-readers"])?;
        let may_read = async || {
            let seen = document(&reader, &["-A"]).await?;
            let told = problems(&seen);
            ensure!(told.keys().all(|it| *it == "clouds"), "{told:?}");
            ensure!(told.get("clouds").is_some_and(|it| it.contains("is forbidden")), "{told:?}");
            Ok(seen)
        };
        let seen = wait::eventually("the API server applies the reader's rights", DEADLINE, may_read).await?;
        let row = seen["nodes"].as_array().into_iter().flatten().find(|it| it["name"] == **node);
        let row = row.with_context(|| seen.to_string())?;
        ensure!(row["config"] == "status" && row["advertised"] == 3 && row["ready"] == true, "{row}");
        ensure!(row["used"] == 1 && row["free"] == 2, "{row}");
        ensure!(seen["peerPodConfigs"][0]["free"] == 2 && seen["peerPods"][0]["node"] == **node, "{seen}");
        ensure!(seen["leader"]["identity"] == "gone_0123456789abcdef", "{seen}");
        documented(cluster, "status-clouds").await?;
        wait::eventually("the reader may forward ports", DEADLINE, async || {
            let seen = document(&reader, &["-A"]).await?;
            let told = problems(&seen);
            ensure!(told.get("clouds").is_some_and(|it| it.ends_with(ELSEWHERE)), "{told:?}");
            Ok(())
        })
        .await?;

        // A user who may read only one namespace.
        cluster
            .kubectl(&["create", "role", "part", "-n", &namespace, "--verb=list", "--resource=peerpods,pods"])
            .await?;
        let bind = ["create", "rolebinding", "part", "-n", &namespace, "--role=part", "--user=tenant"];
        cluster.kubectl(&bind).await?;
        let tenant = impersonated(testbed, dir.path(), "tenant", &[])?;
        wait::eventually("the API server applies the tenant's rights", DEADLINE, async || {
            let seen = document(&tenant, &["-n", &namespace]).await?;
            ensure!(seen["peerPods"][0]["node"] == **node && seen["clouds"] == Value::Null, "{seen}");
            let subjects: Vec<_> = problems(&seen).into_keys().collect();
            ensure!(
                subjects == ["PeerPodConfigs", "Pods", "clouds", "leader", "nodes", "settings"],
                "{seen}"
            );
            Ok(())
        })
        .await?;

        let output = run(&tenant, &["-A"]).await?;
        let told = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(1) && told.contains("reading the PeerPods failed"), "{told}");
        let shown = String::from_utf8_lossy(&output.stdout);
        ensure!(shown.ends_with("PeerPods are not known.\n"), "{shown}");
        let leases: Api<Lease> = Api::namespaced(testbed.client(), NAMESPACE);
        leases.delete("peerpod-operator", &DeleteParams::default()).await?;
        // Other tests on this cluster look for remains of an installation.
        for (kinds, name) in [
            ("role,rolebinding", "peerpod-status"),
            ("role,rolebinding", "peerpod-status-clouds"),
            ("clusterrole,clusterrolebinding", "peerpod-status"),
        ] {
            cluster.kubectl(&["delete", kinds, name, "--namespace", NAMESPACE]).await?;
        }
        nodes.leave().await
    })
}
