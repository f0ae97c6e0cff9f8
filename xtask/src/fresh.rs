//! `cargo xtask fresh`: a command of the README in a pristine Debian 12 root file system.
//!
//! A package that somebody installed on a machine hides that our own commands do not install it. So this root holds the
//! [`PREREQUISITES`] of the README and nothing else. Rust, Go and the caches of what is built from pinned sources are those
//! of this machine; `target/` is not.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};
use cluster::{folders, packages, progress::Progress};

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
    fn name(self) -> &'static str {
        match self {
            Self::Demo => "demo",
            Self::Test => "test",
        }
    }
}

/// The release of Debian that the README asks for.
const SUITE: &str = "bookworm";
/// The packages that the README asks for, beside Rust and Go.
const PREREQUISITES: [&str; 4] = ["ca-certificates", "gcc", "git", "libc6-dev"];
/// What builds the root file system.
const PACKAGES: [&str; 1] = ["mmdebstrap"];

/// Where the root file system has the clone of this repository.
const CLONE: &str = "/src/peerpod-operator";

/// Files and folders of this machine with which its package clients reach their registries. Each is copied if it is there.
const CLIENT_FILES: [&str; 4] =
    ["/etc/resolv.conf", "/etc/hosts", "/etc/apt/auth.conf.d", "/usr/local/share/ca-certificates"];
/// Beginnings of the names of environment variables with which package clients reach their registries.
const CLIENT_VARIABLES: [&str; 6] = ["CARGO_", "RUSTUP_", "GO", "SSL_CERT_", "GIT_SSL_", "CURL_CA_"];
/// Variables of that kind under their whole names, and those that say how to print.
const FURTHER_VARIABLES: [&str; 9] = [
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "TERM",
    "NO_COLOR",
    "CI",
];
/// What cargo tells the programs that it runs, and settings that would lead out of the root.
const DROPPED_VARIABLES: [&str; 3] = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_TARGET_"];

/// Makes `$1` the root of this mount namespace, with the folders that follow `--` bound into it, and runs the command.
/// `pivot_root` and not `chroot`: the demo's own namespaces need a root that is a mount point.
const ENTER: &str = r#"set -e
root=$1 clone=$2 command=$3
shift 3
mount --make-rprivate /
mount --bind "$root" "$root"
for dir; do
  mkdir -p "$root$dir"
  mount --bind "$dir" "$root$dir"
done
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
mkdir -p "$root/outside"
cd "$root"
pivot_root . outside
umount --lazy /outside
update-ca-certificates >/dev/null
cd "$clone"
exec cargo xtask "$command"
"#;

pub(crate) fn run(task: &Task) -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "only root can make a root file system: run this command as root"
    );
    packages::ensure(&PACKAGES)?;
    let folder = repository::root().join("target/fresh");
    remove(&folder)?;
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let root = folder.join("root");

    let command = task.command.name();
    let mut progress = Progress::new(3);
    progress.step(format!("Debian {SUITE} with {}", PREREQUISITES.join(", ")));
    build(&root, &folder)?;
    progress.step("cloning the last commit into it");
    clone(&root)?;
    progress.step(format!("cargo xtask {command}, in there"));
    enter(&root, command)?;
    progress.finish();
    // After a failure it stays, for a look at it.
    remove(&folder)
}

/// Builds the root file system from the package sources of this machine, if these are of the same release.
fn build(root: &Path, folder: &Path) -> Result<()> {
    let include = format!("--include={}", PREREQUISITES.join(","));
    let mut mmdebstrap = Command::new("mmdebstrap");
    mmdebstrap.args(["--variant=minbase", &include, SUITE]).arg(root);
    let sources = ["/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"];
    mmdebstrap.args(
        sources.iter().filter(|file| fs::read_to_string(file).is_ok_and(|text| text.contains(SUITE))).take(1),
    );
    let acquire = acquire_options()?;
    let options = folder.join("apt.conf");
    fs::write(&options, &acquire).with_context(|| format!("writing {}", options.display()))?;
    mmdebstrap.arg(format!("--aptopt={}", options.display()));
    let output = mmdebstrap.output().context("running mmdebstrap")?;
    ensure!(
        output.status.success(),
        "mmdebstrap failed ({}):\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );

    fs::write(root.join("etc/apt/apt.conf.d/90machine"), acquire).context("writing apt's options")?;
    for path in CLIENT_FILES.map(Path::new).into_iter().filter(|path| path.exists()) {
        let target = root.join(path.strip_prefix("/")?);
        let target = target.parent().context("a path without a folder")?;
        let mut copy = Command::new("cp");
        copy.args(["--recursive", "--dereference"]).arg(path).arg(target);
        succeed(&mut copy)?;
    }
    Ok(())
}

/// How apt on this machine downloads: proxies, certificates and the like.
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

/// Runs the command in the root. It ends with this program.
fn enter(root: &Path, command: &str) -> Result<()> {
    let toolchains = Toolchains::find()?;
    let mut unshare = Command::new("setpriv");
    unshare.args(["--pdeathsig=KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child"]);
    unshare.args(["sh", "-c", ENTER, "sh"]).arg(root).args([CLONE, command]).args(&toolchains.folders);
    unshare.env_clear().env("PATH", &toolchains.path).env("HOME", home()?).envs(client_variables());
    let status = unshare.status().context("running unshare")?;
    ensure!(
        status.success(),
        "`cargo xtask {command}` failed on a fresh machine: see above; its root file system is {}",
        root.display()
    );
    Ok(())
}

/// Rust, Go and what they and this repository cache.
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

/// The environment with which package clients reach their registries.
fn client_variables() -> impl Iterator<Item = (OsString, OsString)> {
    env::vars_os().filter(|(name, _)| {
        let name = name.to_string_lossy();
        let begins = |beginnings: &[&str]| beginnings.iter().any(|beginning| name.starts_with(beginning));
        FURTHER_VARIABLES.contains(&&*name) || begins(&CLIENT_VARIABLES) && !begins(&DROPPED_VARIABLES)
    })
}

fn succeed(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("running {name}"))?;
    ensure!(status.success(), "{name} failed ({status}): see above");
    Ok(())
}

/// Removes what an earlier run left. What it mounted went with its mount namespace.
fn remove(folder: &Path) -> Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    fs::remove_dir_all(folder).with_context(|| format!("removing {}", folder.display()))
}
