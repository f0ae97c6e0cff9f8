//! Debian packages: finds those that are missing, and installs them if possible or else names them.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::progress::Progress;
use anyhow::{Context as _, Result, bail, ensure};

/// Keeps apt and the packages' scripts from asking questions, from starting services, and from translating [`LOCKED`].
const QUIET: [(&str, &str); 3] =
    [("DEBIAN_FRONTEND", "noninteractive"), ("RUNLEVEL", "1"), ("LC_ALL", "C.UTF-8")];

/// The message of apt-get while another program has one of its locks. By `DPkg::Lock::Timeout` it would wait for dpkg's lock alone.
const LOCKED: &str = "Could not get lock";
/// How long to wait for that program, and how often to try. A new VM updates its packages when it starts.
const LOCKED_DEADLINE: Duration = Duration::from_secs(600);
const LOCKED_PAUSE: Duration = Duration::from_secs(1);

/// The lock of those that install, and the output of apt-get. Both are root's alone: in `/tmp`, not even root may open the file of
/// another user.
const LOCK: &str = "/run/peerpod-operator-packages.lock";
const LOG: &str = "/run/peerpod-operator-packages.log";

/// The packages that this program found installed, or installed. To ask for them takes a process each time.
static INSTALLED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

fn installed() -> MutexGuard<'static, BTreeSet<String>> {
    INSTALLED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Those of `packages` that are not installed.
pub fn missing<'a>(packages: &[&'a str]) -> Result<Vec<&'a str>> {
    let output = Command::new("dpkg-query")
        .args(["--show", "--showformat=${Package} ${db:Status-Status}\n"])
        .args(packages)
        .output()
        .context("asking dpkg-query which packages are installed (this needs Debian or a relative of it)")?;
    // dpkg-query also fails if it does not know one of them. Its output is right all the same.
    let answer = String::from_utf8_lossy(&output.stdout);
    let installed =
        |package: &&str| answer.lines().any(|line| line.split_once(' ') == Some((*package, "installed")));
    Ok(packages.iter().copied().filter(|package| !installed(package)).collect())
}

/// Makes sure that all `packages` are installed. As root on Debian it installs the missing ones; else it fails with the command that
/// does. Programs that call this at the same time wait for one another.
pub fn ensure(packages: &[&str]) -> Result<()> {
    if packages.iter().all(|package| installed().contains(*package)) {
        return Ok(());
    }
    install_missing(packages)?;
    installed().extend(packages.iter().map(|package| (*package).to_owned()));
    Ok(())
}

fn install_missing(packages: &[&str]) -> Result<()> {
    let before = missing(packages)?;
    if before.is_empty() {
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() || !Path::new("/etc/debian_version").exists() {
        bail!("packages are missing; install them with\n  sudo {}", install_command(&before));
    }
    let lock = File::create(LOCK).with_context(|| format!("creating the lock {LOCK}"))?;
    lock.lock().with_context(|| format!("waiting for the lock {LOCK}"))?;
    // The program that held the lock may have installed them.
    let missing = missing(packages)?;
    if missing.is_empty() {
        return Ok(());
    }
    let mut progress = Progress::new(2);
    progress.step("apt-get update");
    apt_get(&mut progress, &["update", "--quiet"])?;
    progress.step(format!("installing {}", missing.join(" ")));
    let install = ["install", "--quiet", "--yes", "--no-install-recommends"];
    apt_get(&mut progress, &[&install, missing.as_slice()].concat())?;
    progress.finish();
    Ok(())
}

/// The command by which a user installs `packages`.
fn install_command(packages: &[&str]) -> String {
    format!("apt-get install --yes --no-install-recommends {}", packages.join(" "))
}

/// Runs apt-get, once no other program has its locks.
fn apt_get(progress: &mut Progress, arguments: &[&str]) -> Result<()> {
    retry_while_locked(
        || try_apt_get(arguments),
        || {
            progress.detail("waiting for another program that installs packages");
            sleep(LOCKED_PAUSE);
        },
    )
}

fn retry_while_locked(mut attempt: impl FnMut() -> Result<()>, mut wait: impl FnMut()) -> Result<()> {
    let until = Instant::now() + LOCKED_DEADLINE;
    loop {
        match attempt() {
            Err(error) if error.to_string().contains(LOCKED) && Instant::now() < until => wait(),
            outcome => return outcome,
        }
    }
}

/// Runs apt-get. Shows its output only if it fails.
fn try_apt_get(arguments: &[&str]) -> Result<()> {
    let what = format!("apt-get {}", arguments.join(" "));
    let output = File::create(LOG).with_context(|| format!("creating the log {LOG}"))?;
    let status = Command::new("apt-get")
        .args(arguments)
        .envs(QUIET)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .status()
        .with_context(|| format!("running {what}"))?;
    ensure!(status.success(), "{what} failed ({status}):\n{}", fs::read_to_string(LOG).unwrap_or_default());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_package_is_missing_and_installed_ones_are_not() {
        let missing = missing(&["dpkg", "no-such-package-as-this", "coreutils"]).unwrap();
        assert_eq!(missing, ["no-such-package-as-this"]);
    }

    #[test]
    fn nothing_is_done_when_nothing_is_missing() {
        ensure(&["dpkg", "coreutils"]).unwrap();
    }

    #[test]
    fn apt_is_tried_again_only_while_it_is_locked() {
        let mut answers = vec![
            "E: Unable to locate package x",
            "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (apt-get)",
            "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt-get)",
        ];
        let mut waited = 0;
        let error = retry_while_locked(|| bail!("{}", answers.pop().unwrap_or_default()), || waited += 1);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("Unable to locate"), "{error}");
        assert!(answers.is_empty() && waited == 2);
    }

    #[test]
    fn people_get_the_exact_command() {
        assert_eq!(
            install_command(&["libvirt-daemon", "ovmf"]),
            "apt-get install --yes --no-install-recommends libvirt-daemon ovmf"
        );
    }
}
