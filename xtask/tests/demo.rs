//! `cargo xtask demo` as a user runs it.

use std::env;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, ensure};
use cluster::node;
use futures::executor::block_on;
use tempfile::TempDir;
use testbed::{OperatorPods, docs};
use tokio::sync::{Semaphore, SemaphorePermit};

/// How many demos run at once. Each has a cluster, and the processors are few.
static TURNS: Semaphore = Semaphore::const_new(2);

/// A folder for all files of a demo. Its end takes down a demo that a failed test left.
struct Demos {
    folder: TempDir,
    _turn: SemaphorePermit<'static>,
}

impl Demos {
    fn new() -> Result<Self> {
        // This may block the thread, which has nothing else to do.
        let turn = block_on(TURNS.acquire())?;
        Ok(Self { folder: TempDir::new()?, _turn: turn })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
        xtask.arg("demo").args(arguments).env("RUST_BACKTRACE", "0");
        self.contain(&mut xtask);
        xtask
    }

    /// Makes everything that the command starts write into the folder.
    fn contain(&self, command: &mut Command) {
        command.env("XDG_STATE_HOME", self.folder.path()).env("TMPDIR", self.folder.path());
    }

    fn run(&self, arguments: &[&str]) -> Result<Output> {
        Ok(self.command(arguments).output()?)
    }

    /// Fails unless only the lock file is left, and no process that uses the folder.
    fn ensure_nothing_is_left(&self) -> Result<()> {
        let left: Vec<_> =
            files(self.folder.path())?.into_iter().filter(|name| name != "demo.lock").collect();
        ensure!(left.is_empty(), "left in the folder: {left:?}");
        let processes = processes(self.folder.path())?;
        ensure!(processes.is_empty(), "still running: {processes:?}");
        Ok(())
    }
}

impl Drop for Demos {
    fn drop(&mut self) {
        // After a failure there may be a demo. Otherwise the test has already ended it.
        let _ = self.run(&["--down"]);
    }
}

/// The names of all files below a folder.
fn files(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            names.extend(files(&entry.path())?);
        } else {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(names)
}

/// The command lines that contain a folder's path.
fn processes(folder: &Path) -> Result<Vec<String>> {
    let folder = folder.to_str().context("a path in UTF-8")?;
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        // A process may end meanwhile, and most entries of /proc are no processes.
        let command = fs::read(entry?.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        if command.contains(folder) {
            found.push(command);
        }
    }
    Ok(found)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// How many stories a demo's output announces.
fn stories(said: &str) -> Result<usize> {
    let (_, rest) = said.split_once("Story 1 of ").context("it began no story")?;
    let (count, _) = rest.split_once(':').context("the first story has no title")?;
    Ok(count.parse()?)
}

/// Runs a demo that stays. Returns its output and its kubeconfig.
fn keep(demos: &Demos, arguments: &[&str]) -> Result<(String, PathBuf)> {
    let kept = demos.run(&[&["--keep"], arguments].concat())?;
    let (said, problems) = (text(&kept.stdout), text(&kept.stderr));
    ensure!(kept.status.success(), "{problems}\n{said}");
    assert_eq!(said.matches("as told").count(), stories(&said)?, "{said}");
    assert!(!said.contains('\x1b'), "no colours where there is no terminal: {said}");
    let kubeconfig =
        said.lines().find_map(|line| line.trim().strip_prefix("export KUBECONFIG='")?.split_once('\''));
    let kubeconfig = PathBuf::from(kubeconfig.context("it says how to look around")?.0);
    Ok((said, kubeconfig))
}

/// The nodes of the operator's Pods, in the cluster of this kubeconfig.
async fn nodes_of_operators(kubeconfig: &Path) -> Result<Vec<String>> {
    let pods = OperatorPods::new(stage::client(kubeconfig).await?).list().await?;
    Ok(pods.into_iter().filter_map(|pod| pod.spec?.node_name).collect())
}

#[test]
fn the_documented_demo_runs_as_described() -> Result<()> {
    let demos = Demos::new()?;
    let mut shell = Command::new("sh");
    shell.args(["-euc", &docs::block("demo")?]).current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    demos.contain(&mut shell);
    // Cargo sets variables about this test's package. The cargo that runs here must not see them, or it would rebuild much.
    for (name, _) in env::vars_os() {
        if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|it| name.to_string_lossy().starts_with(it)) {
            shell.env_remove(name);
        }
    }
    let output = shell.output()?;
    let said = text(&output.stdout);
    ensure!(output.status.success(), "{}\n{said}", text(&output.stderr));
    assert_eq!(said.matches("as told").count(), stories(&said)?, "{said}");
    assert!(said.contains("Everything has ended"), "{said}");
    demos.ensure_nothing_is_left()
}

/// A real node needs root, as this test does.
#[tokio::test]
async fn a_kept_demo_on_a_real_node_succeeds_and_leaves_nothing() -> Result<()> {
    let demos = Demos::new()?;
    let (said, kubeconfig) = keep(&demos, &[])?;
    assert!(!said.contains("not as a Pod"), "{said}");
    assert_eq!(nodes_of_operators(&kubeconfig).await?, [node::NAME; 2]);
    assert!(!processes(demos.folder.path())?.iter().any(|command| command.contains("peerpod-operator run")));

    assert!(text(&demos.run(&["--down"])?.stdout).contains("is gone"));
    demos.ensure_nothing_is_left()
}

#[tokio::test]
async fn a_kept_demo_without_a_node_starts_only_once_and_leaves_nothing() -> Result<()> {
    let demos = Demos::new()?;
    let (said, kubeconfig) = keep(&demos, &["--no-node"])?;
    assert!(said.contains("a process on this machine, not as a Pod: --no-node"), "{said}");
    assert!(nodes_of_operators(&kubeconfig).await?.is_empty());
    assert!(processes(demos.folder.path())?.iter().any(|command| command.contains("peerpod-operator run")));

    let second = demos.run(&[])?;
    assert_eq!(second.status.code(), Some(1));
    let problem = text(&second.stderr);
    assert!(problem.contains("still running") && problem.contains("cargo xtask demo --down"), "{problem}");

    assert!(text(&demos.run(&["--down"])?.stdout).contains("is gone"));
    demos.ensure_nothing_is_left()?;
    assert!(text(&demos.run(&["--down"])?.stdout).contains("was not there"));
    Ok(())
}

/// Interrupts a demo in its second story. Fails unless it ends and leaves nothing.
fn interrupt(arguments: &[&str]) -> Result<()> {
    let demos = Demos::new()?;
    let mut demo = demos.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let stdout = demo.stdout.take().context("its output was asked for")?;
    let mut lines = BufReader::new(stdout).lines();
    let begun = lines.find(|line| line.as_ref().is_ok_and(|line| line.starts_with("Story 2")));
    ensure!(begun.is_some(), "it did not come to the second story");
    let interrupted = Command::new("kill").args(["-INT", &demo.id().to_string()]).status()?;
    ensure!(interrupted.success(), "it could not be interrupted");
    lines.for_each(drop);
    let ended = demo.wait_with_output()?;
    assert_eq!(ended.status.code(), Some(1));
    assert!(text(&ended.stderr).contains("interrupted"), "{}", text(&ended.stderr));
    demos.ensure_nothing_is_left()
}

#[test]
fn a_demo_that_is_interrupted_leaves_nothing() -> Result<()> {
    interrupt(&[])
}

#[test]
fn a_demo_that_is_interrupted_leaves_nothing_although_it_was_to_be_kept() -> Result<()> {
    interrupt(&["--keep"])
}

#[test]
fn a_demo_without_a_node_that_is_interrupted_leaves_nothing_although_it_was_to_be_kept() -> Result<()> {
    interrupt(&["--keep", "--no-node"])
}
