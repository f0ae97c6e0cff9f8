//! A demo that stays: how to find and to end it.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use cluster::{
    Cluster, folders,
    process::{Identity, Process},
};
use peers::libvirt::Libvirtd;
use testbed::Pods;

use super::{
    paint::{Paint, Style},
    stage::{NAMESPACE, Stage},
    stories::{CONFIG_FILE, PODS_FILE},
};
use crate::cluster::{exports, quote};

/// The file that records the operator's process, if it is a process of this machine.
const NOTE: &str = "operator.json";
/// How long the operator may take to end in order.
const GRACE: Duration = Duration::from_secs(5);
/// How long to wait for another demo that starts or ends.
const LOCK_DEADLINE: Duration = Duration::from_secs(5);

/// The folder of the kept demo. There is at most one.
pub(super) fn dir() -> Result<PathBuf> {
    Ok(folders::state()?.join("demo"))
}

/// Keeps other programs from starting or ending a kept demo as long as the file is open.
pub(super) async fn lock() -> Result<File> {
    let state = folders::state()?;
    fs::create_dir_all(&state).with_context(|| format!("creating {}", state.display()))?;
    folders::lock(&state.join("demo.lock"), LOCK_DEADLINE, || ())
        .await
        .context("another `cargo xtask demo` is running: wait until it ends")
}

/// Fails if there is a kept demo, and says what the user can do.
pub(super) fn ensure_none() -> Result<()> {
    let dir = dir()?;
    if !dir.exists() {
        return Ok(());
    }
    let cluster = Cluster::open(&cluster_dir(&dir))?.filter(|cluster| cluster.ended().is_empty());
    match cluster {
        Some(cluster) => bail!(
            "an earlier `cargo xtask demo --keep` is still running.\n\n  use it:  {}\n  end it:  cargo xtask demo --down",
            exports(&cluster)
        ),
        None => bail!(
            "an earlier `cargo xtask demo --keep` has left {}, but not all of it still runs.\n\n  remove \
             it:  cargo xtask demo --down",
            dir.display()
        ),
    }
}

/// The operator's folder below that of a demo.
pub(super) fn operator_dir(dir: &Path) -> PathBuf {
    dir.join("operator")
}

/// The cluster's folder below that of a demo.
pub(super) fn cluster_dir(dir: &Path) -> PathBuf {
    dir.join("testbed/cluster")
}

/// Records the process of an operator that stays. Cluster and libvirtd record their own processes.
pub(super) fn note(dir: &Path, operator: &testbed::Operator) -> Result<()> {
    let note = dir.join(NOTE);
    let identity = serde_json::to_vec(operator.process().identity())?;
    fs::write(&note, identity).with_context(|| format!("writing {}", note.display()))
}

/// Ends the kept demo, whole or not, and removes its folder. Returns false if there is none. Only recorded processes are ended.
pub(super) async fn down() -> Result<bool> {
    let dir = dir()?;
    if !dir.exists() {
        return Ok(false);
    }
    stop_operator(&dir).await?;
    if let Some(mut cluster) = Cluster::open(&cluster_dir(&dir))? {
        cluster.stop().await?;
    }
    Libvirtd::stop_detached(&dir.join("libvirtd")).await?;
    fs::remove_dir_all(&dir).with_context(|| format!("removing {}", dir.display()))?;
    Ok(true)
}

async fn stop_operator(dir: &Path) -> Result<()> {
    let note = dir.join(NOTE);
    if !note.exists() {
        return Ok(());
    }
    let text = fs::read(&note).with_context(|| format!("reading {}", note.display()))?;
    let identity: Identity =
        serde_json::from_slice(&text).with_context(|| format!("reading {}", note.display()))?;
    if let Some(operator) = Process::find("operator", &identity, &operator_dir(dir))? {
        operator.stop(GRACE).await?;
    }
    Ok(())
}

/// Leaves a Pod with a VM for the user to delete. Prints how to look around, and how to end everything.
pub(super) async fn invite(stage: Stage, paint: Paint) -> Result<()> {
    stage.kubelet.leave().await?;
    let host = stage.libvirtd.host();
    let pod = Pods::new(stage.testbed.client(), NAMESPACE).run("yours").await?;
    stage.caa.start_vm(&pod, host).await?;

    let cluster = stage.testbed.cluster();
    let virsh = format!("virsh --connect '{}'", host.uri());
    let lines = [exports(cluster), format!("{virsh} list --all"), format!("{virsh} vol-list default")];

    let mut stdout = io::stdout().lock();
    let heading = |text: &str| paint.paint(Style::Bold, text);
    writeln!(stdout, "\n{}", heading("Everything keeps running. To explore it:"))?;
    for line in &lines {
        writeln!(stdout, "  {line}")?;
    }
    writeln!(
        stdout,
        "\n{}",
        heading("The Pod `yours` has a VM, and no cloud-api-adaptor to delete it. Try:")
    )?;
    writeln!(stdout, "  kubectl -n {NAMESPACE} get pods,peerpods")?;
    writeln!(stdout, "  kubectl -n {NAMESPACE} delete pod yours")?;
    writeln!(
        stdout,
        "\n{}",
        heading("Three nodes are ready for peer pods. Use the files of the last story:")
    )?;
    writeln!(stdout, "  kubectl apply -f {}", quote(&stage.dir.join(CONFIG_FILE)))?;
    writeln!(stdout, "  kubectl -n {NAMESPACE} create -f {}", quote(&stage.dir.join(PODS_FILE)))?;
    writeln!(stdout, "\n{}", heading("Logs:"))?;
    writeln!(stdout, "  operator       {}", stage.operator.log())?;
    writeln!(stdout, "  control plane  {}/", cluster.logs().display())?;
    writeln!(stdout, "\n{}\n  cargo xtask demo --down", heading("End it all:"))?;
    Ok(())
}
