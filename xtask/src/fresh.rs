//! `cargo xtask fresh`: a command of the README in a pristine Debian 12 root file system.
//!
//! On a developer's machine, other packages may hide that the documented commands do not install one. So this root has only the
//! [`PREREQUISITES`] of the README. Rust, Go and the caches of what is built from pinned sources are those of this machine. `target/`
//! is one of its own.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};
use cluster::{folders, packages, progress::Progress, tools::GO_DOWNLOADS};
use tokio::{
    select,
    signal::unix::{SignalKind, signal},
};

use crate::repository;

/// What to run there.
#[derive(Args)]
pub(crate) struct Task {
    /// The command of the README to run: `cargo xtask COMMAND`
    #[arg(value_enum, default_value = "demo")]
    command: Readme,
}

/// A command that the README promises for a new machine.
#[derive(Clone, Copy, ValueEnum)]
enum Readme {
    Demo,
    Test,
}

impl Readme {
    /// The arguments of `cargo xtask`.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            // With `--no-node` the packages of a node would not be tested.
            Self::Demo => &["demo", "--node"],
            Self::Test => &["test"],
        }
    }
}

/// The release of Debian that the README asks for.
const SUITE: &str = "bookworm";
/// The packages that the README requires, beside Rust and Go.
const PREREQUISITES: [&str; 4] = ["gcc", "libc6-dev", "git", "ca-certificates"];
/// The package that builds the root file system.
const PACKAGES: [&str; 1] = ["mmdebstrap"];

/// How long to wait for another run.
const LOCK_DEADLINE: Duration = Duration::from_secs(3600);

/// The path of the clone of this repository in the root file system.
const CLONE: &str = "/src/peerpod-operator";

/// Files and folders of this machine that its package clients need to reach their registries. Each is copied if it exists.
const CLIENT_FILES: [&str; 4] =
    ["/etc/resolv.conf", "/etc/hosts", "/etc/apt/auth.conf.d", "/usr/local/share/ca-certificates"];
/// Prefixes of environment variables that package clients need to reach their registries.
const CLIENT_PREFIXES: [&str; 5] =
    ["CARGO_HTTP_", "CARGO_NET_", "CARGO_REGISTRIES_", "CARGO_SOURCE_", "SSL_CERT_"];
/// Further such variables, the paths of caches, and settings for output. Beside [`GO_DOWNLOADS`], the root gets no other variable.
const VARIABLES: [&str; 12] = [
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "CARGO_HOME",
    "RUSTUP_HOME",
    "RUSTUP_AUTO_INSTALL",
    "XDG_CACHE_HOME",
    "TERM",
    "NO_COLOR",
];

/// Makes `$1` the root of this mount namespace, binds the next `$3` folders into it and enters `$2`. [`RUN`] then runs the task that
/// follows.
/// `pivot_root` and not `chroot`: the demo's own namespaces need a root that is a mount point.
const ENTER: &str = r#"set -e
root=$1 clone=$2 folders=$3
shift 3
mount --make-rprivate /
mount --bind "$root" "$root"
while [ "$folders" -gt 0 ]; do
  mkdir -p "$root$1"
  mount --bind "$1" "$root$1"
  shift
  folders=$((folders - 1))
done
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=0755 tmpfs "$root/run"
mkdir -p "$root/outside"
cd "$root"
pivot_root . outside
umount --lazy /outside
update-ca-certificates >/dev/null 2>&1
cd "$clone"
"#;

/// Runs the task as a child of the shell, which is the first process of the PID namespace: an interrupt of the first process is lost if
/// it has no handler. The shell itself waits for the task's end, and then gives the task's exit code.
const RUN: &str = r#"trap : INT
cargo xtask "$@" || exit $?
"#;

pub(crate) async fn run(task: &Task) -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "only root can make a root file system: run this command as root"
    );
    packages::ensure(&PACKAGES)?;
    let folder = repository::target().join("fresh");
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let _lock = folders::lock(&folder.join("lock"), LOCK_DEADLINE, || {}).await?;
    let root = folder.join("root");
    remove(&root)?;

    let arguments = task.command.arguments();
    let mut progress = Progress::new(3);
    progress.step(format!("Debian {SUITE} with {}", PREREQUISITES.join(", ")));
    build(&root, &folder)?;
    progress.step("cloning the last commit into it");
    clone(&root)?;
    progress.step(format!("cargo xtask {}, in there", arguments.join(" ")));
    enter(&root, arguments).await?;
    progress.finish();
    // After a failure the root stays for inspection.
    remove(&root)
}

/// Builds the root file system from this machine's package sources, if they are of the same release.
fn build(root: &Path, folder: &Path) -> Result<()> {
    let include = format!("--include={}", PREREQUISITES.join(","));
    // A mount namespace of its own, so that its mounts always end with it. Otherwise the next run could not remove the root.
    let mut mmdebstrap = Command::new("setpriv");
    mmdebstrap.args(["--pdeathsig=KILL", "unshare", "--mount", "mmdebstrap"]);
    mmdebstrap.args(["--variant=minbase", &include, SUITE]).arg(root);
    let sources = ["/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"];
    mmdebstrap.args(
        sources.iter().filter(|file| fs::read_to_string(file).is_ok_and(|text| text.contains(SUITE))).take(1),
    );
    let acquire = acquire_options()?;
    let options = folder.join("apt.conf");
    // They may have the login of a proxy.
    folders::write_private(&options, &acquire)?;
    mmdebstrap.arg(format!("--aptopt={}", options.display()));
    let output = mmdebstrap.output().context("running mmdebstrap")?;
    ensure!(
        output.status.success(),
        "mmdebstrap failed ({}):\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );

    fs::remove_file(&options).with_context(|| format!("removing {}", options.display()))?;
    folders::write_private(&root.join("etc/apt/apt.conf.d/90machine"), &acquire)?;
    for path in CLIENT_FILES.map(Path::new).into_iter().filter(|path| path.exists()) {
        let target = root.join(path.strip_prefix("/")?);
        let target = target.parent().context("a path without a folder")?;
        let mut copy = Command::new("cp");
        copy.args(["--recursive", "--dereference"]).arg(path).arg(target);
        succeed(&mut copy)?;
    }
    Ok(())
}

/// This machine's settings of apt for downloads: proxies, certificates and the like.
fn acquire_options() -> Result<String> {
    let output = Command::new("apt-config").arg("dump").output().context("running apt-config")?;
    ensure!(output.status.success(), "apt-config failed ({})", output.status);
    let options = String::from_utf8(output.stdout).context("apt's options are not UTF-8")?;
    let options: Vec<_> = options.lines().filter(|line| line.starts_with("Acquire::")).collect();
    Ok(options.join("\n") + "\n")
}

fn clone(root: &Path) -> Result<()> {
    let target = root.join(CLONE.trim_start_matches('/'));
    let mut git = Command::new("git");
    git.args(["clone", "--quiet", "--no-local"]).arg(repository::root()).arg(&target);
    succeed(&mut git)
}

/// Runs the task in the root. It ends with this program.
async fn enter(root: &Path, arguments: &[&str]) -> Result<()> {
    let Toolchains { mut folders, path } = Toolchains::find()?;
    // A target folder of its own: cargo would mix up the builds of the two source trees.
    let target = repository::target().join("fresh/target");
    fs::create_dir_all(&target).with_context(|| format!("creating {}", target.display()))?;
    folders.push(target.clone());
    let mut unshare = tokio::process::Command::from(shell(&format!("{ENTER}{RUN}")));
    unshare.arg(root).args([CLONE, &folders.len().to_string()]);
    unshare.args(&folders).args(arguments);
    unshare.env_clear().env("PATH", &path).env("HOME", home()?);
    unshare.env("CARGO_TARGET_DIR", target);
    // It is built only once, so incremental state would just fill the disk.
    unshare.env("CARGO_INCREMENTAL", "0");
    unshare.envs(client_variables());
    let mut running = unshare.spawn().context("running unshare")?;
    // Ctrl-C also reaches the task, which ends what it started. This program waits for that, as the shell of `RUN` does. The kernel then
    // kills all that is left in the namespace of the shell.
    let mut interrupt = signal(SignalKind::interrupt()).context("listening for Ctrl-C")?;
    let status = loop {
        select! {
            status = running.wait() => break status?,
            _ = interrupt.recv() => {}
        }
    };
    ensure!(
        status.success(),
        "`cargo xtask {}` failed on a fresh machine: see above; its root file system is {}",
        arguments.join(" "),
        root.display()
    );
    Ok(())
}

/// A shell with mounts and processes of its own. It ends with this program.
fn shell(script: &str) -> Command {
    let mut unshare = Command::new("setpriv");
    unshare.args(["--pdeathsig=KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child"]);
    unshare.args(["sh", "-c", script, "sh"]);
    unshare
}

/// Rust, Go, and their and this repository's caches.
struct Toolchains {
    folders: Vec<PathBuf>,
    path: OsString,
}

impl Toolchains {
    fn find() -> Result<Self> {
        let home = home()?;
        let of =
            |variable, below_home| env::var_os(variable).map_or_else(|| home.join(below_home), PathBuf::from);
        let cargo = of("CARGO_HOME", ".cargo");
        let go = Command::new("go").args(["env", "GOROOT", "GOMODCACHE", "GOCACHE"]).output();
        let go = go.context("running go: install Go and put it on the PATH")?;
        let go = String::from_utf8(go.stdout).context("Go's folders are not UTF-8")?;
        let go: Vec<_> = go.lines().map(PathBuf::from).collect();
        let goroot = go.first().context("go names no GOROOT")?;
        let mut path = cargo.join("bin").into_os_string();
        for folder in
            [&goroot.join("bin"), Path::new("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")]
        {
            path.push(":");
            path.push(folder);
        }
        let mut folders = vec![cargo, of("RUSTUP_HOME", ".rustup"), folders::cache()?];
        folders.extend(go);
        for folder in &folders {
            fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        }
        Ok(Self { folders, path })
    }
}

fn home() -> Result<PathBuf> {
    env::home_dir().context("HOME is not set: set it")
}

/// The environment variables that package clients need to reach their registries.
fn client_variables() -> impl Iterator<Item = (OsString, OsString)> {
    env::vars_os().filter(|(name, _)| {
        let name = name.to_string_lossy();
        [&VARIABLES[..], &GO_DOWNLOADS].iter().any(|names| names.contains(&&*name))
            || CLIENT_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    })
}

fn succeed(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("running {name}"))?;
    ensure!(status.success(), "{name} failed ({status}): see above");
    Ok(())
}

/// Removes the remains of an earlier run. Its mounts ended with its mount namespace.
fn remove(folder: &Path) -> Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    fs::remove_dir_all(folder).with_context(|| format!("removing {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader},
        os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
        process::{ExitStatus, Stdio},
    };

    use rustix::process::{Pid, Signal, kill_process_group};

    use super::*;

    /// How the namespaces end whose task is this script. With `interrupt`, Ctrl-C is pressed when the script prints a line.
    fn ended(cargo: &str, interrupt: bool) -> Result<ExitStatus> {
        let dir = tempfile::tempdir()?;
        let program = dir.path().join("cargo");
        fs::write(&program, format!("#!/bin/sh\n{cargo}\n"))?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        let mut path = dir.path().as_os_str().to_owned();
        path.push(":");
        path.push(env::var_os("PATH").context("a PATH")?);
        let shell = shell(RUN);
        // A background job of a script ignores the signal, and so does what it starts.
        let mut task = Command::new("env");
        task.arg("--default-signal=INT").arg(shell.get_program()).args(shell.get_args());
        let mut running = task.env("PATH", path).process_group(0).stdout(Stdio::piped()).spawn()?;
        BufReader::new(running.stdout.take().context("its output")?).read_line(&mut String::new())?;
        if interrupt {
            kill_process_group(Pid::from_child(&running), Signal::INT)?;
        }
        Ok(running.wait()?)
    }

    #[test]
    fn an_interrupt_ends_the_task_and_its_exit_code_is_kept() -> Result<()> {
        assert_eq!(ended("echo ready; exec sleep 60", true)?.code(), Some(130), "the signal ends it");
        let cleans_up = "trap 'exit 7' INT; echo ready; while :; do sleep 0.1; done";
        assert_eq!(ended(cleans_up, true)?.code(), Some(7), "it ends by itself");
        assert_eq!(ended("echo ready; exit 3", false)?.code(), Some(3), "it fails");
        assert_eq!(ended("echo ready", false)?.code(), Some(0), "it succeeds");
        Ok(())
    }

    #[test]
    fn the_readme_names_the_packages_of_the_root_and_no_others() -> Result<()> {
        let named = format!("packages `{}`", PREREQUISITES.join(" "));
        for page in ["README.md", "docs/src/development.md"] {
            let text = fs::read_to_string(repository::root().join(page))?;
            let text: Vec<_> = text.split_whitespace().collect();
            ensure!(text.join(" ").contains(&named), "{page} does not say: {named}");
        }
        Ok(())
    }
}
