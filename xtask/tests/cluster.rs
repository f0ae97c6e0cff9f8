//! `cargo xtask cluster` as a user runs it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Error, Result, ensure};
use cluster::{clients::quick, node};
use serde_json::Value;
use tempfile::TempDir;

const NAME: &str = "test";

/// A folder for the state of clusters. Its end takes down a cluster that a failed test left.
struct Clusters(TempDir);

impl Clusters {
    fn command(&self, task: &str) -> Command {
        let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
        xtask.arg("cluster").args(task.split(' ')).args(["--name", NAME]);
        xtask.env("XDG_STATE_HOME", self.0.path());
        xtask
    }

    fn run(&self, task: &str) -> Result<Output> {
        Ok(self.command(task).output()?)
    }

    /// The output of a task that succeeds.
    fn says(&self, task: &str) -> Result<String> {
        let output = self.run(task)?;
        let said = String::from_utf8(output.stderr)?;
        ensure!(output.status.success(), "{task} failed: {said}");
        Ok(said)
    }

    /// The error of a task that fails.
    fn refuses(&self, task: &str) -> Result<String> {
        let output = self.run(task)?;
        ensure!(!output.status.success(), "{task} succeeded");
        ensure!(
            output.stdout.is_empty(),
            "a shell would run this: {}",
            String::from_utf8_lossy(&output.stdout)
        );
        Ok(String::from_utf8(output.stderr)?)
    }

    fn folder(&self) -> PathBuf {
        self.0.path().join("peerpod-operator/clusters").join(NAME)
    }

    fn pids(&self) -> Result<Vec<(String, i64)>> {
        let state: Value = serde_json::from_slice(&fs::read(self.folder().join("cluster.json"))?)?;
        let processes = state["processes"].as_object().context("processes")?;
        processes.iter().map(|(name, it)| Ok((name.clone(), it["pid"].as_i64().context("a pid")?))).collect()
    }
}

impl Drop for Clusters {
    fn drop(&mut self) {
        // After a failure there may be a cluster. Otherwise the test has already ended it.
        let _ = self.run("down");
    }
}

fn runs(pid: i64) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Runs a command in a shell that has evaluated this line. Returns its output or its error.
fn shell(line: &str, command: &str) -> Result<Result<String, String>> {
    let script = format!("{line}; {command}");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).env("xtask", env!("CARGO_BIN_EXE_xtask"));
    let output = quick(&mut shell).output()?;
    let [printed, complained] = [output.stdout, output.stderr].map(String::from_utf8);
    Ok(if output.status.success() { Ok(printed?) } else { Err(complained?) })
}

fn tasks_work_on_the_current_cluster(line: &str) -> Result<()> {
    let does =
        |command: &str| shell(line, command)?.map_err(|problem| anyhow::anyhow!("{command}: {problem}"));
    does("$xtask install")?;
    does(
        "kubectl create -f - <<END
apiVersion: confidentialcontainers.org/v1alpha1
kind: PeerPod
metadata: { name: left, namespace: default }
spec: { cloudProvider: libvirt, instanceID: x }
END",
    )?;
    let refusal = shell(line, "$xtask uninstall")?.err().context("a PeerPod was deleted")?;
    ensure!(refusal.contains("1 PeerPods are left"), "{refusal}");
    does("kubectl delete peerpods left")?;
    does("$xtask uninstall")?;
    let definition = "kubectl get crd peerpods.confidentialcontainers.org --ignore-not-found --output=name";
    assert_eq!(does(definition)?, "", "the definition is there");

    let unknown = shell(line, "$xtask deploy --provider openstack")?.err().context("it was deployed")?;
    ensure!(unknown.contains("there is no overlay kustomize/overlays/openstack"), "{unknown}");
    does("$xtask deploy --provider libvirt --image registry.example/mine:v2")?;
    let image = "kubectl -n confidential-containers-system get deployment peerpod-operator \
                 -o jsonpath='{.spec.template.spec.containers[0].image}'";
    assert_eq!(does(image)?, "registry.example/mine:v2");
    let mine = "-n confidential-containers-system configmap peer-pods-cm";
    does(&format!("kubectl patch {mine} --patch '{{\"data\":{{\"LIBVIRT_URI\":\"mine\"}}}}'"))?;
    does("$xtask deploy --provider aws --image registry.example/mine:v3")?;
    assert_eq!(does(image)?, "registry.example/mine:v3");
    assert_eq!(does(&format!("kubectl get {mine} -o jsonpath='{{.data.LIBVIRT_URI}}'"))?, "mine");
    does(
        "kubectl create -f - <<END
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: { name: kata-remote }
handler: kata-remote
END",
    )?;
    does("$xtask samples")?;
    let refusal = shell(line, "$xtask undeploy")?.err().context("it was deleted without a drain")?;
    ensure!(
        refusal.contains("nothing was deleted") && refusal.contains("PeerPodConfigs are left"),
        "{refusal}"
    );
    does("kubectl -n confidential-containers-system delete peerpodconfigs --all")?;
    let refusal = shell(line, "$xtask uninstall")?.err().context("the operator lost its definitions")?;
    ensure!(refusal.contains("runs an operator already"), "{refusal}");
    does("$xtask undeploy")?;
    assert_eq!(does(definition)?, "", "the definition is there");
    Ok(())
}

#[test]
fn a_cluster_stays_up_and_is_taken_down_even_if_it_is_partly_dead() -> Result<()> {
    let clusters = Clusters(tempfile::tempdir()?);
    assert!(clusters.refuses("env")?.contains("cluster up --name test"), "it says what to do");
    assert!(clusters.says("up")?.contains("runs at https://127."));
    assert!(clusters.says("up")?.contains("already running"));
    if node::obstacle().is_none() {
        let said = clusters.refuses("up --node")?;
        assert!(said.contains("without a real node") && said.contains("cluster down --name test"), "{said}");
    }

    let env = String::from_utf8(clusters.run("env")?.stdout)?;
    let line = env.trim_end();
    assert!(line.starts_with("export KUBECONFIG=") && !line.contains('\n'), "{env}");
    let script = format!("{line}; cat \"$KUBECONFIG\"");
    let kubeconfig = Command::new("sh").args(["-c", &script]).output()?.stdout;
    assert!(String::from_utf8(kubeconfig)?.contains("current-context"));
    let other = clusters.0.path().join("other");
    fs::create_dir(&other)?;
    symlink("/bin/true", other.join("kubectl"))?;
    let line_after_other = format!("PATH='{}':\"$PATH\"; {line}", other.display());
    let found = shell(&line_after_other, "command -v kubectl")?.map_err(Error::msg)?;
    assert!(found.ends_with("/kubectl\n") && !found.starts_with(&*other.to_string_lossy()), "{found}");

    tasks_work_on_the_current_cluster(line)?;

    let pids = clusters.pids()?;
    assert!(pids.len() == 5 && pids.iter().all(|(_, pid)| runs(*pid)), "{pids:?}");
    let (_, scheduler) = pids.iter().find(|(name, _)| name == "scheduler").context("a scheduler")?;
    ensure!(Command::new("kill").args(["-KILL", &scheduler.to_string()]).status()?.success());
    let until = Instant::now() + Duration::from_secs(10);
    while runs(*scheduler) {
        ensure!(Instant::now() < until, "it survived SIGKILL");
        std::thread::yield_now();
    }
    for task in ["env", "up"] {
        let said = clusters.refuses(task)?;
        assert!(said.contains("no scheduler runs") && said.contains("logs"), "{said}");
    }
    // Another test takes down a whole cluster.
    assert!(clusters.says("down")?.contains("is gone"));
    assert!(!pids.iter().any(|(_, pid)| runs(*pid)));
    assert!(!clusters.folder().exists());
    assert!(clusters.says("down")?.contains("was not there"));
    Ok(())
}

#[test]
fn a_start_that_is_interrupted_leaves_nothing() -> Result<()> {
    let clusters = Clusters(tempfile::tempdir()?);
    let up = clusters.command("up").stderr(Stdio::piped()).spawn()?;
    // The programs may have to be built.
    let until = Instant::now() + Duration::from_secs(3600);
    while clusters.pids().is_err() {
        ensure!(Instant::now() < until, "it starts no process");
        std::thread::sleep(Duration::from_millis(10));
    }
    let pids = clusters.pids()?;
    ensure!(Command::new("kill").args(["-INT", &up.id().to_string()]).status()?.success());
    let ended = up.wait_with_output()?;
    let said = String::from_utf8(ended.stderr)?;
    assert!(!ended.status.success() && said.contains("interrupted"), "{said}");
    assert!(!pids.is_empty() && !pids.iter().any(|(_, pid)| runs(*pid)), "{pids:?}");
    assert!(!clusters.folder().exists());
    Ok(())
}

#[test]
fn a_real_node_takes_the_image_of_an_archive() -> Result<()> {
    let clusters = Clusters(tempfile::tempdir()?);
    let said = clusters.says("up --node")?;
    assert!(said.contains("cluster import --name test ARCHIVE"), "{said}");
    let pids = clusters.pids()?;
    assert_eq!(pids.len(), 9, "{pids:?}");
    let archive = clusters.0.path().join("image.tar");
    let program = PathBuf::from("/bin/true");
    image::operator(&program, "test:1", &BTreeMap::new())?.write(&archive, image::Compression::Gzip)?;
    let import = format!("import {}", archive.display());
    clusters.says(&import)?;
    fs::write(&archive, "no archive")?;
    assert!(clusters.refuses(&import)?.contains("importing the image of"));
    assert!(clusters.says("down")?.contains("is gone"));
    assert!(!pids.iter().any(|(_, pid)| runs(*pid)));
    assert!(!clusters.folder().exists());
    Ok(())
}
