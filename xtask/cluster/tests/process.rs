//! Supervised processes: what they survive, and what they don't.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use cluster::process::{Identity, Lifetime, Process, Signal};
use cluster::wait::eventually;

const DEADLINE: Duration = Duration::from_secs(20);

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

/// The state letter of a process, from `/proc`.
fn state(process: &Process) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.identity().pid)).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

async fn says_ready(process: &Process) -> Result<()> {
    process
        .wait_until("it says so", DEADLINE, || async {
            ensure!(fs::read_to_string(process.log())?.contains("ready"), "it has not");
            Ok(())
        })
        .await
}

fn identity_in(file: &Path) -> Result<Identity> {
    let text = fs::read_to_string(file)?;
    let mut words = text.split_whitespace();
    let (Some(pid), Some(started), Some(boot)) = (words.next(), words.next(), words.next()) else {
        bail!("{} is not complete yet", file.display());
    };
    Ok(Identity { pid: pid.parse()?, started: started.parse()?, boot: boot.to_owned() })
}

#[tokio::test]
async fn an_owned_process_dies_with_its_killed_parent() -> Result<()> {
    const ROLE: &str = "CLUSTER_TEST_PARENT_DIR";
    if let Some(dir) = std::env::var_os(ROLE) {
        // This test starts the parent below. The parent starts the process from a thread that ends, then waits to be killed.
        let dir = Path::new(&dir).to_owned();
        let thread = std::thread::spawn(move || {
            Process::start("child", &shell("trap '' TERM; exec sleep 600"), &dir, Lifetime::Owned)
                .map(|p| (p, dir))
        });
        let (child, dir) = thread.join().expect("no panic")?;
        let Identity { pid, started, boot } = child.identity();
        child
            .wait_until("its program runs, which then has its lifetime", DEADLINE, || async {
                let program = fs::read_to_string(format!("/proc/{pid}/comm"))?;
                ensure!(program.trim() != "setpriv", "the program is {program}");
                Ok(())
            })
            .await?;
        fs::write(dir.join("new"), format!("{pid} {started} {boot}"))?;
        fs::rename(dir.join("new"), dir.join("identity"))?;
        loop {
            std::thread::park();
        }
    }
    let dir = tempfile::tempdir()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--exact", "an_owned_process_dies_with_its_killed_parent"]).env(ROLE, dir.path());
    let parent = Process::start("parent", &command, dir.path(), Lifetime::Owned)?;
    let child = parent
        .wait_until("it has a child", DEADLINE, || async { identity_in(&dir.path().join("identity")) })
        .await?;
    assert!(child.is_running(), "it outlives the thread that asked for it");
    parent.kill().await?;
    eventually("the child follows its parent", DEADLINE, async || {
        ensure!(!child.is_running(), "it outlives it");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_dropped_owned_process_is_gone_without_a_zombie() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let process =
        Process::start("sleeper", &shell("trap '' TERM; exec sleep 600"), dir.path(), Lifetime::Owned)?;
    let pid = process.identity().pid;
    drop(process);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    Ok(())
}

#[tokio::test]
async fn a_detached_process_is_found_by_its_identity_alone() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let identity = {
        let started =
            Process::start("sleeper", Command::new("sleep").arg("600"), dir.path(), Lifetime::Detached)?;
        started.identity().clone()
    };
    let reused = Identity { started: identity.started + 1, ..identity.clone() };
    assert!(Process::find("sleeper", &reused, dir.path())?.is_none(), "a reused pid is another process");
    let found = Process::find("sleeper", &identity, dir.path())?.expect("it runs");
    found.stop(DEADLINE).await?;
    assert!(Process::find("sleeper", &identity, dir.path())?.is_none());
    Ok(())
}

#[tokio::test]
async fn stop_returns_the_exit_status() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let script = "trap 'exit 7' TERM; echo ready; while :; do sleep 0.02; done";
    let process = Process::start("polite", &shell(script), dir.path(), Lifetime::Owned)?;
    says_ready(&process).await?;
    let status = process.stop(DEADLINE).await?.expect("the status of a child");
    assert_eq!(status.code(), Some(7));
    Ok(())
}

#[tokio::test]
async fn a_process_that_ignores_sigterm_is_killed_after_its_grace() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let script = "trap '' TERM; echo ready; while :; do sleep 0.02; done";
    let process = Process::start("stubborn", &shell(script), dir.path(), Lifetime::Owned)?;
    says_ready(&process).await?;
    let status = process.stop(Duration::from_millis(100)).await?.expect("the status of a child");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(Signal::KILL.as_raw()));
    Ok(())
}

#[tokio::test]
async fn a_paused_process_can_be_stopped() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let process = Process::start("sleeper", Command::new("sleep").arg("600"), dir.path(), Lifetime::Owned)?;
    process.signal(Signal::STOP)?;
    process
        .wait_until("it is paused", DEADLINE, || async {
            ensure!(state(&process) == Some('T'), "it is in state {:?}", state(&process));
            Ok(())
        })
        .await?;
    assert!(process.is_running());
    let begun = Instant::now();
    process.stop(DEADLINE).await?;
    assert!(begun.elapsed() < DEADLINE, "SIGTERM reached it although it was paused");
    Ok(())
}

#[tokio::test]
async fn an_early_end_is_reported_with_the_end_of_the_log() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let process = Process::start("broken", &shell("echo the reason; exit 3"), dir.path(), Lifetime::Owned)?;
    let error = process
        .wait_until::<(), _, _>("it is ready", DEADLINE, || async { bail!("not yet") })
        .await
        .expect_err("it never is");
    let text = format!("{error:#}");
    assert!(text.contains("exit status: 3") && text.contains("the reason"), "{text}");
    Ok(())
}

#[tokio::test]
async fn a_missed_deadline_is_reported_with_the_last_reason() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let process = Process::start("slow", Command::new("sleep").arg("600"), dir.path(), Lifetime::Owned)?;
    let error = process
        .wait_until::<(), _, _>("it is ready", Duration::from_millis(50), || async {
            bail!("connection refused")
        })
        .await
        .expect_err("it never is");
    let text = format!("{error:#}");
    assert!(text.contains("until it is ready") && text.contains("connection refused"), "{text}");
    Ok(())
}
