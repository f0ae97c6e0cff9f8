//! Debian packages: finds those that are missing, and installs them if possible or else names them.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::progress::Progress;
use anyhow::{Context as _, Result, bail, ensure};

/// Keeps apt and the packages' scripts from asking questions, and from translating [`LOCKED`].
const QUIET: [(&str, &str); 2] = [("DEBIAN_FRONTEND", "noninteractive"), ("LC_ALL", "C.UTF-8")];

/// The programs by which the packages' scripts start and enable services. The machine's own services are not needed: sshd, for one, would
/// serve at its usual port for good.
const SERVICE_PROGRAMS: [&str; 4] =
    ["deb-systemd-helper", "deb-systemd-invoke", "invoke-rc.d", "update-rc.d"];
/// The folder of programs that do nothing in their place. Nothing can be run in `/run`, while dpkg runs its own scripts in `/var/lib`.
const STUBS: &str = "/var/lib/peerpod-operator-no-services";
/// Where the scripts find programs otherwise.
const SCRIPTS_PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// What apt-get says if the packages conflict with installed ones.
const REMOVES: &str = "remove is disabled";

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

/// Those of `packages` that are not installed. A package that provides another one, as Docker's containerd.io does runc, counts as both.
pub fn missing<'a>(packages: &[&'a str]) -> Result<Vec<&'a str>> {
    let output = Command::new("dpkg-query")
        .args(["--show", "--showformat=${db:Status-Status}, ${Package}, ${Provides}\n"])
        .output()
        .context("asking dpkg-query which packages are installed (this needs Debian or a relative of it)")?;
    let answer = String::from_utf8_lossy(&output.stdout);
    let there: BTreeSet<_> = answer.lines().flat_map(provided).collect();
    Ok(packages.iter().copied().filter(|package| !there.contains(package)).collect())
}

/// The package of this line, and those that it provides; none if it is not installed.
fn provided(line: &str) -> impl Iterator<Item = &str> {
    let names = line.strip_prefix("installed, ").unwrap_or_default().split(", ");
    // A version may follow: `runc (= 1.2)`.
    names.filter_map(|name| name.split_whitespace().next())
}

/// The path of a program of a package. Another package that provides that one may have the program in the other folder.
pub fn program(name: &str) -> Result<PathBuf> {
    let folders = ["/usr/sbin", "/usr/bin"].map(Path::new);
    let found = folders.map(|folder| folder.join(name)).into_iter().find(|path| path.exists());
    found.with_context(|| format!("there is no {name} in /usr/sbin or /usr/bin"))
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
    make_stubs()?;
    let path = format!("DPkg::Path={STUBS}:{SCRIPTS_PATH}");
    let install =
        ["install", "--quiet", "--yes", "--no-install-recommends", "--no-remove", "--option", &path];
    let installed = apt_get(&mut progress, &[&install, missing.as_slice()].concat());
    fs::remove_dir_all(STUBS).with_context(|| format!("removing {STUBS}"))?;
    installed.map_err(|error| {
        let removes = error.to_string().contains(REMOVES);
        let advice =
            "nothing was installed, as that would remove packages of this machine: use another machine";
        if removes { error.context(advice) } else { error }
    })?;
    progress.finish();
    Ok(())
}

/// Makes the [`STUBS`].
fn make_stubs() -> Result<()> {
    let folder = Path::new(STUBS);
    fs::create_dir_all(folder).with_context(|| format!("creating {STUBS}"))?;
    for program in SERVICE_PROGRAMS {
        let stub = folder.join(program);
        let written = fs::write(&stub, "#!/bin/sh\n");
        let usable = written.and_then(|()| fs::set_permissions(&stub, fs::Permissions::from_mode(0o755)));
        usable.with_context(|| format!("creating {}", stub.display()))?;
        // The scripts would silently use the next program of this name.
        let status = Command::new(&stub).status().with_context(|| format!("running {}", stub.display()))?;
        ensure!(status.success(), "{} failed ({status})", stub.display());
    }
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
    fn a_package_that_provides_another_one_counts_as_both_while_it_is_installed() {
        let names = |line| provided(line).collect::<Vec<_>>();
        let line = "installed, containerd.io, containerd, runc (= 1.2)";
        assert_eq!(names(line), ["containerd.io", "containerd", "runc"]);
        assert_eq!(names("installed, git, "), ["git"]);
        assert!(names("config-files, runc, ").is_empty());
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
