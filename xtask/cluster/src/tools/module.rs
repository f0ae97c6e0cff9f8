//! A Go module, and what its build depends on.

use std::env::consts::ARCH;
use std::fs;
use std::iter;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use anyhow::{Context as _, Result, ensure};

pub(crate) const LDFLAGS: &str = "-s -w";

/// Settings of the user that change the result of a build: what it is for, and with which features.
const REMOVED: [&str; 7] = ["GOOS", "GOARCH", "GOAMD64", "GOARM64", "GOPPC64", "GOEXPERIMENT", "GOFIPS140"];
/// Settings of the user for Go's downloads and caches. They change no result of a build.
pub const GO_DOWNLOADS: [&str; 11] = [
    "GOPROXY",
    "GOSUMDB",
    "GONOSUMDB",
    "GONOPROXY",
    "GOPRIVATE",
    "GOINSECURE",
    "GOAUTH",
    "GOVCS",
    "GOTOOLCHAIN",
    "GOMODCACHE",
    "GOCACHE",
];

/// The architecture whose build folders have no architecture in their hash. They would otherwise be built again, which takes long.
const UNNAMED_ARCHITECTURE: &str = "x86_64";

const NO_GO: &str = "running go: the cluster's programs are built with Go 1.21 or newer, which fetches the release that they need; \
    install it from https://go.dev/dl and put it on the PATH";

/// The values of [`GO_DOWNLOADS`], from the environment or from the user's file of `go env -w`. They are the same for all modules.
static SETTINGS: OnceLock<Vec<String>> = OnceLock::new();

/// A Go module with programs to build: its own, or those that its `tool` directives name.
pub struct Module {
    pub(crate) name: &'static str,
    /// The folder with its `go.mod`, its `go.sum` and its own sources.
    pub(crate) source: &'static str,
    /// Build tags; none if empty.
    pub(crate) tags: &'static str,
    pub(crate) ldflags: &'static str,
    /// Each program's name and package.
    pub(crate) programs: &'static [(&'static str, &'static str)],
    pub(crate) data: Option<Data>,
}

/// Files of a Go module that a program needs at run time. They are kept beside it, so that a start needs no Go.
pub(crate) struct Data {
    pub(super) go_module: &'static str,
    pub(super) folder: &'static str,
    pub(super) files: &'static [&'static str],
}

impl Data {
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.files.iter().map(|file| file.rsplit_once('/').map_or(*file, |(_, name)| name))
    }
}

impl Module {
    /// A module with these programs, each with its name and its package. `name` names its folder in the cache.
    pub const fn new(
        name: &'static str,
        source: &'static str,
        programs: &'static [(&'static str, &'static str)],
    ) -> Self {
        Self { name, source, tags: "", ldflags: LDFLAGS, programs, data: None }
    }

    pub(super) fn build_flags(&self) -> Vec<&str> {
        let mut flags = vec!["-trimpath", "-buildvcs=false", "-ldflags", self.ldflags];
        if !self.tags.is_empty() {
            flags.extend(["-tags", self.tags]);
        }
        flags
    }

    /// The folders with its sources: its own, and those beside it that a `replace` of its `go.mod` names.
    fn folders(&self) -> Result<Vec<PathBuf>> {
        let own = Path::new(self.source);
        let go_mod = own.join("go.mod");
        let text = fs::read_to_string(&go_mod).with_context(|| format!("reading {}", go_mod.display()))?;
        let beside = text.lines().filter_map(|line| line.split_once("=> ../"));
        let beside = beside.map(|(_, name)| own.with_file_name(name));
        Ok(iter::once(own.to_owned()).chain(beside).collect())
    }

    /// The files that the build depends on, in a fixed order.
    fn files(&self) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for folder in self.folders()? {
            for entry in fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))? {
                files.push(entry?.path());
            }
        }
        files.retain(|path| {
            path.extension().is_some_and(|it| ["go", "mod", "sum"].iter().any(|kind| it == *kind))
        });
        files.sort();
        Ok(files)
    }

    /// A hash of everything that the build depends on.
    pub(super) fn hash(&self) -> Result<String> {
        self.hash_on(ARCH)
    }

    /// [`Self::hash`] on a machine of this architecture: machines of several may share a home folder.
    fn hash_on(&self, architecture: &str) -> Result<String> {
        let mut text = self.build_flags().join(" ").into_bytes();
        if architecture != UNNAMED_ARCHITECTURE {
            text.extend(architecture.bytes());
        }
        for path in self.files()? {
            text.extend(fs::read(&path).with_context(|| format!("reading {}", path.display()))?);
        }
        let digest = ring::digest::digest(&ring::digest::SHA256, &text);
        let start = digest.as_ref().first_chunk().context("an empty digest")?;
        Ok(format!("{:016x}", u64::from_be_bytes(*start)))
    }

    /// A `go` command in the module's folder, without settings that would change the result.
    pub(super) fn go(&self, args: &[&str]) -> Result<Command> {
        let mut go = Command::new("go");
        go.args(args).current_dir(self.source);
        go.env("CGO_ENABLED", "0").env("GOFLAGS", "").env("GOWORK", "off");
        without_removed(&mut go);
        // Without the user's file: a variable that is removed or empty would have its value from there.
        go.env("GOENV", "off").envs(GO_DOWNLOADS.into_iter().zip(settings()?));
        Ok(go)
    }

    /// The standard output of a short `go` command.
    pub(super) fn ask_go(&self, args: &[&str]) -> Result<String> {
        let output = self.go(args)?.output().context(NO_GO)?;
        printed(&output, || format!("go {} in {}", args.join(" "), self.source))
    }
}

/// The values of [`GO_DOWNLOADS`], in that order.
fn settings() -> Result<&'static [String]> {
    if let Some(settings) = SETTINGS.get() {
        return Ok(settings);
    }
    let mut go = Command::new("go");
    // No module is there, so go does not fetch the release that one asks for.
    without_removed(go.arg("env").args(GO_DOWNLOADS).current_dir("/"));
    let text = printed(&go.output().context(NO_GO)?, || "go env".to_owned())?;
    let values: Vec<_> = text.lines().map(str::to_owned).collect();
    ensure!(
        values.len() == GO_DOWNLOADS.len(),
        "go env printed {} values for {}",
        values.len(),
        GO_DOWNLOADS.join(", ")
    );
    Ok(SETTINGS.get_or_init(|| values))
}

fn without_removed(go: &mut Command) {
    for name in REMOVED {
        go.env_remove(name);
    }
}

/// The standard output of a command that succeeded.
fn printed(output: &Output, name: impl Fn() -> String) -> Result<String> {
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} failed: {stderr}", name());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ffi::OsStr;

    use super::*;
    use crate::tools::ETCD;

    #[test]
    fn a_build_folder_depends_on_flags_and_sources() -> Result<()> {
        let other_flags = Module { ldflags: "-s", ..ETCD };
        assert_eq!(ETCD.hash()?, ETCD.hash()?);
        assert_ne!(ETCD.hash()?, other_flags.hash()?);
        let other_source = concat!(env!("CARGO_MANIFEST_DIR"), "/tools/containerd");
        assert_ne!(ETCD.hash()?, Module { source: other_source, ..ETCD }.hash()?, "other sources");
        Ok(())
    }

    #[test]
    fn a_build_folder_depends_on_modules_beside_it() -> Result<()> {
        let peer = Module::new("gcp", concat!(env!("CARGO_MANIFEST_DIR"), "/../peers/gcp"), &[]);
        let files = peer.files()?;
        for file in ["gcp/main.go", "control/control.go"] {
            assert!(files.iter().any(|path| path.ends_with(file)), "no {file} in {files:?}");
        }
        Ok(())
    }

    #[test]
    fn a_build_folder_is_of_one_architecture() -> Result<()> {
        assert_ne!(ETCD.hash_on("x86_64")?, ETCD.hash_on("aarch64")?);
        assert_ne!(ETCD.hash_on("s390x")?, ETCD.hash_on("aarch64")?);
        assert_eq!(ETCD.hash()?, ETCD.hash_on(ARCH)?);
        Ok(())
    }

    #[test]
    fn settings_of_the_user_do_not_change_a_build() -> Result<()> {
        let go = ETCD.go(&["build"])?;
        let variables: BTreeMap<_, _> = go.get_envs().collect();
        let value = |name: &str| variables.get(OsStr::new(name)).copied().flatten();
        for name in REMOVED {
            assert_eq!(variables.get(OsStr::new(name)), Some(&None), "{name}");
        }
        assert_eq!(value("GOENV"), Some(OsStr::new("off")), "the file of `go env -w`");
        for name in ["GOPROXY", "GOMODCACHE", "GOCACHE", "GOTOOLCHAIN"] {
            assert!(value(name).is_some_and(|it| !it.is_empty()), "{name} is as the user has it");
        }
        Ok(())
    }
}
