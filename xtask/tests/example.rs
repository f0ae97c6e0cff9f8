//! `cargo xtask example`, as a user of the example runs it.

use std::{
    env,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Result, ensure};
use cluster::{
    Cluster, ClusterOptions,
    process::{Lifetime, Process},
    wait::eventually,
};

const DEADLINE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn podset_is_installed_run_and_uninstalled() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let cluster =
        Cluster::start(&ClusterOptions { fake_nodes: 1, ..ClusterOptions::new(dir.path().join("cluster")) })
            .await?;
    let kubectl = cluster.kubectl_program().parent().map(Path::to_owned);
    let others = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths(kubectl.into_iter().chain(env::split_paths(&others)))?;
    let example = |action: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command.args(["example", "podset"]).args(action).env("KUBECONFIG", cluster.kubeconfig());
        command.env("PATH", &path);
        command
    };
    let succeeds = |mut command: Command| -> Result<()> {
        ensure!(command.stdout(Stdio::null()).status()?.success(), "{command:?} failed");
        Ok(())
    };
    let without_kubectl = example(&["install"]).env("PATH", dir.path()).output()?;
    let said = String::from_utf8(without_kubectl.stderr)?;
    ensure!(!without_kubectl.status.success() && said.contains("put it on the PATH"), "{said}");
    succeeds(example(&["install"]))?;
    let arguments = ["run", "--", "--health-addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0"];
    let operator = Process::start("operator", &example(&arguments), dir.path(), Lifetime::Owned)?;
    let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/podset/manifests/sample.yaml");
    cluster.kubectl(&["apply", "--filename", sample]).await?;
    // The operator may have to be built.
    let pods = eventually("the sample has its Pods", 10 * DEADLINE, async || {
        ensure!(operator.is_running(), "the operator ended: {}", operator.log_tail());
        let pods = cluster.kubectl(&["get", "pods", "--selector=app=podset-sample", "--output=name"]).await?;
        ensure!(pods.lines().count() == 3, "{pods}");
        Ok(pods)
    });
    pods.await?;
    let ended = operator.stop(Duration::from_secs(20)).await?;
    ensure!(ended.is_some_and(|status| status.success()), "it ended by {ended:?}: {}", operator.log_tail());
    succeeds(example(&["uninstall"]))?;
    let definition = ["get", "crd", "podsets.app.example.com", "--ignore-not-found", "--output=name"];
    let left = cluster.kubectl(&definition).await?;
    ensure!(left.is_empty(), "its definition is still there: {left}");
    Ok(())
}

/// Plays a story. Fails unless its output has this end.
fn story(example: &str, end: &str) -> Result<()> {
    let played = Command::new(env!("CARGO_BIN_EXE_xtask")).args(["example", example, "demo"]).output()?;
    let told = String::from_utf8(played.stdout)?;
    ensure!(played.status.success(), "{told}\n{}", String::from_utf8_lossy(&played.stderr));
    ensure!(told.contains(end), "{told}");
    Ok(())
}

#[test]
fn the_story_of_podset_runs_as_described() -> Result<()> {
    story("podset", "The operator created six Pods in all, and none twice")
}

#[test]
fn the_story_of_ptemplate_runs_as_described() -> Result<()> {
    story("ptemplate", "The garbage collector deleted the Module, the DaemonSet and its Pod")
}
