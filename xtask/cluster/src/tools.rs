//! Programs in Go, such as those of a cluster. They are built once, from the pinned modules in `tools/`, and kept outside `target/`.
//!
//! They are in `~/.cache/peerpod-operator/tools/MODULE-HASH/`, where the hash covers everything that the build depends on. A build uses
//! a temporary folder and moves it into place, under a lock, so several processes may build at once.
//!
//! If `KUBEBUILDER_ASSETS` names a folder, the programs in it are used instead.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use crate::folders;
use crate::process::{Lifetime, Process};
use crate::progress::Progress;

/// The time limit of a build, and of waiting for another process that builds the same.
const BUILD_DEADLINE: Duration = Duration::from_secs(3600);
/// How often the progress of a build is checked.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

pub(crate) const LDFLAGS: &str = "-s -w";
pub(crate) const KUBERNETES_LDFLAGS: &str = "-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3 \
    -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36";

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
    go_module: &'static str,
    folder: &'static str,
    files: &'static [&'static str],
}

impl Data {
    fn names(&self) -> impl Iterator<Item = &'static str> {
        self.files.iter().map(|file| file.rsplit_once('/').map_or(*file, |(_, name)| name))
    }
}

/// The versions of all programs of a cluster, in one module: what several of them need is compiled once.
pub(crate) const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tools");

const ETCD: Module = Module {
    name: "etcd",
    source: SOURCE,
    tags: "",
    ldflags: LDFLAGS,
    programs: &[("etcd", "go.etcd.io/etcd/server/v3")],
    data: None,
};
const KWOK: Module = Module {
    name: "kwok",
    source: SOURCE,
    tags: "",
    ldflags: LDFLAGS,
    programs: &[("kwok", "sigs.k8s.io/kwok/cmd/kwok")],
    data: Some(KWOK_STAGES),
};
/// kwok's rules for Pods and nodes: which step follows which, and when.
const KWOK_STAGES: Data = Data {
    go_module: "sigs.k8s.io/kwok",
    folder: "kustomize/stage",
    files: &[
        "node/fast/node-initialize.yaml",
        "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
        "pod/fast/pod-ready.yaml",
        "pod/fast/pod-complete.yaml",
        "pod/fast/pod-delete.yaml",
    ],
};
const KUBERNETES: Module = Module {
    name: "kubernetes",
    source: SOURCE,
    tags: "",
    ldflags: KUBERNETES_LDFLAGS,
    programs: &[
        ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
        ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
        ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
        ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
    ],
    data: None,
};

const HELM: Module = Module {
    name: "helm",
    source: SOURCE,
    tags: "",
    ldflags: LDFLAGS,
    programs: &[("helm", "helm.sh/helm/v3/cmd/helm")],
    data: None,
};

impl Module {
    /// A module with these programs, each with its name and its package. `name` names its folder in the cache.
    pub const fn new(
        name: &'static str,
        source: &'static str,
        programs: &'static [(&'static str, &'static str)],
    ) -> Self {
        Self { name, source, tags: "", ldflags: LDFLAGS, programs, data: None }
    }

    fn build_flags(&self) -> Vec<&str> {
        let mut flags = vec!["-trimpath", "-buildvcs=false", "-ldflags", self.ldflags];
        if !self.tags.is_empty() {
            flags.extend(["-tags", self.tags]);
        }
        flags
    }

    /// The files that the build depends on, in a fixed order.
    fn files(&self) -> Result<Vec<PathBuf>> {
        let listed = fs::read_dir(self.source).with_context(|| format!("reading {}", self.source))?;
        let mut files = listed.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        files.retain(|path| {
            path.extension().is_some_and(|it| ["go", "mod", "sum"].iter().any(|kind| it == *kind))
        });
        files.sort();
        Ok(files)
    }

    /// A hash of everything that the build depends on.
    fn hash(&self) -> Result<String> {
        let mut text = self.build_flags().join(" ").into_bytes();
        for path in self.files()? {
            text.extend(fs::read(&path).with_context(|| format!("reading {}", path.display()))?);
        }
        let digest = ring::digest::digest(&ring::digest::SHA256, &text);
        let start = digest.as_ref().first_chunk().context("an empty digest")?;
        Ok(format!("{:016x}", u64::from_be_bytes(*start)))
    }

    /// A `go` command in the module's folder, without settings that would change the result.
    fn go(&self, args: &[&str]) -> Command {
        let mut go = Command::new("go");
        go.args(args).current_dir(self.source);
        go.env("CGO_ENABLED", "0").env("GOFLAGS", "").env("GOWORK", "off");
        go
    }

    /// The standard output of a short `go` command.
    fn ask_go(&self, args: &[&str]) -> Result<String> {
        let output = self.go(args).output().context(
            "running go: the cluster's programs are built with Go 1.21 or newer, which fetches the release that they \
             need; install it from https://go.dev/dl and put it on the PATH",
        )?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "go {} in {} failed: {stderr}", args.join(" "), self.source);
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// The path of each program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tools {
    /// etcd's server.
    pub etcd: PathBuf,
    /// `kube-apiserver`.
    pub api_server: PathBuf,
    /// `kube-controller-manager`.
    pub controller_manager: PathBuf,
    /// `kube-scheduler`.
    pub scheduler: PathBuf,
    /// `kubectl`.
    pub kubectl: PathBuf,
    /// The controller that plays kubelet for fake nodes.
    pub kwok: PathBuf,
    /// kwok's stage files.
    pub kwok_stages: Vec<PathBuf>,
}

impl Tools {
    /// Finds every program. First builds the missing ones, which takes minutes and shows progress on standard error.
    pub async fn ensure() -> Result<Self> {
        let places = Places::from_environment()?;
        places.build_missing(&[&ETCD, &KWOK, &KUBERNETES]).await?;
        let stages = places.folder(&KWOK)?;
        Ok(Self {
            etcd: places.program(&ETCD, "etcd")?,
            api_server: places.program(&KUBERNETES, "kube-apiserver")?,
            controller_manager: places.program(&KUBERNETES, "kube-controller-manager")?,
            scheduler: places.program(&KUBERNETES, "kube-scheduler")?,
            kubectl: places.program(&KUBERNETES, "kubectl")?,
            kwok: places.program(&KWOK, "kwok")?,
            kwok_stages: KWOK_STAGES.names().map(|name| stages.join(name)).collect(),
        })
    }
}

/// Finds helm, which no cluster needs by itself. First builds it if it is missing, which takes a minute or two and shows progress on
/// standard error.
pub async fn helm() -> Result<PathBuf> {
    program(&HELM, "helm").await
}

/// Finds a program of this module. First builds it if it is missing.
pub async fn program(module: &Module, name: &str) -> Result<PathBuf> {
    let places = Places::from_environment()?;
    places.build_missing(&[module]).await?;
    places.program(module, name)
}

/// The folders where programs are looked for.
pub(crate) struct Places {
    /// Programs from elsewhere, which come first.
    assets: Option<PathBuf>,
    /// The programs that were built here.
    cache: PathBuf,
}

impl Places {
    pub(crate) fn from_environment() -> Result<Self> {
        let assets = std::env::var_os("KUBEBUILDER_ASSETS").filter(|dir| !dir.is_empty()).map(PathBuf::from);
        if let Some(dir) = &assets {
            ensure!(
                dir.is_dir(),
                "KUBEBUILDER_ASSETS names {}, which is no folder: correct it or unset it",
                dir.display()
            );
        }
        Ok(Self { assets, cache: folders::cache()?.join("tools") })
    }

    fn folder(&self, module: &Module) -> Result<PathBuf> {
        Ok(self.cache.join(format!("{}-{}", module.name, module.hash()?)))
    }

    pub(crate) fn program(&self, module: &Module, program: &str) -> Result<PathBuf> {
        // A program from elsewhere would lack its files.
        let assets = self.assets.as_ref().filter(|_| module.data.is_none());
        let asset = assets.map(|dir| dir.join(program)).filter(|path| path.is_file());
        asset.map_or_else(|| Ok(self.folder(module)?.join(program)), Ok)
    }

    /// The packages of a module whose programs are not found.
    fn missing(&self, module: &Module) -> Result<Vec<&'static str>> {
        let mut missing = Vec::new();
        for (program, package) in module.programs {
            if !self.program(module, program)?.is_file() {
                missing.push(*package);
            }
        }
        Ok(missing)
    }

    pub(crate) async fn build_missing(&self, modules: &[&Module]) -> Result<()> {
        let mut incomplete = Vec::new();
        for module in modules {
            if !self.missing(module)?.is_empty() {
                incomplete.push(*module);
            }
        }
        let mut progress = Progress::new(incomplete.len());
        for module in incomplete {
            progress.step(format!("building {}", module.name));
            self.build(module, &mut progress).await.with_context(|| format!("building {}", module.name))?;
        }
        progress.finish();
        Ok(())
    }

    async fn build(&self, module: &Module, progress: &mut Progress) -> Result<()> {
        let folder = self.folder(module)?;
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        let waiting = || progress.detail("waiting for another process that builds it");
        let _lock = folders::lock(&folder.join("lock"), BUILD_DEADLINE, waiting).await?;
        // Another process may have built them while this one waited for the lock.
        let packages = self.missing(module)?;
        if packages.is_empty() {
            return Ok(());
        }
        // A killed build left it. This process has the lock, so no other build is running.
        let fresh = folder.join("new");
        if fresh.exists() {
            fs::remove_dir_all(&fresh)?;
        }
        fs::create_dir(&fresh)?;

        let flags = module.build_flags();
        let mut list = vec!["list", "-deps", "-f", "{{if .Stale}}{{.ImportPath}}{{end}}"];
        list.extend(&flags);
        list.extend(&packages);
        progress.detail("downloading its modules");
        let total = module.ask_go(&list)?.lines().filter(|line| !line.is_empty()).count();

        let mut build = module.go(&["build", "-v", "-o"]);
        // An interrupted build leaves its work here, where the next one removes it.
        build.env("GOTMPDIR", &fresh);
        build.arg(&fresh).args(&flags).args(&packages);
        let build = Process::start("build", &build, &fresh, Lifetime::Owned)?;
        let until = Instant::now() + BUILD_DEADLINE;
        let status = loop {
            tokio::select! {
                status = build.ended() => break status,
                () = sleep(LOOK_INTERVAL) => {
                    let log = fs::read_to_string(build.log()).unwrap_or_default();
                    // The log has lines about downloads beside the packages' names.
                    let done = log.lines().filter(|line| !line.starts_with("go: ")).count();
                    progress.detail(&format!("{done} of {total} packages"));
                }
            }
            if Instant::now() > until {
                build.kill().await?;
                bail!("it took longer than {BUILD_DEADLINE:?}\n{}", build.log_tail());
            }
        };
        ensure!(status.is_some_and(|status| status.success()), "go build failed\n{}", build.log_tail());

        if let Some(data) = &module.data {
            copy_data(module, data, &folder)?;
        }
        for (program, package) in module.programs {
            if packages.contains(package) {
                fs::rename(fresh.join(go_name(package)), folder.join(program))
                    .with_context(|| format!("moving {program} in place"))?;
            }
        }
        fs::remove_dir_all(&fresh)?;
        Ok(())
    }
}

/// The name that go gives a program: that of its package's folder, or of the one above where this is a version.
fn go_name(package: &str) -> &str {
    let mut elements = package.rsplit('/');
    let is_version = |name: &&str| name.strip_prefix('v').is_some_and(|number| number.parse::<u32>().is_ok());
    elements.find(|name| !is_version(name)).unwrap_or(package)
}

fn copy_data(module: &Module, data: &Data, folder: &Path) -> Result<()> {
    let source = module.ask_go(&["list", "-m", "-f", "{{.Dir}}", data.go_module])?;
    for (file, name) in data.files.iter().zip(data.names()) {
        let from = Path::new(source.trim()).join(data.folder).join(file);
        // Read and written instead of copied: the module cache is read-only, and a copy would be, too.
        let copied = fs::read(&from).and_then(|text| fs::write(folder.join(name), text));
        copied.with_context(|| format!("copying {}", from.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_folder_depends_on_flags_and_sources() -> Result<()> {
        let other_flags = Module { ldflags: "-s", ..ETCD };
        assert_eq!(ETCD.hash()?, ETCD.hash()?);
        assert_ne!(ETCD.hash()?, other_flags.hash()?);
        let other_source = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
        assert_ne!(ETCD.hash()?, Module { source: other_source, ..ETCD }.hash()?, "other sources");
        Ok(())
    }

    #[test]
    fn a_version_names_no_program() {
        assert_eq!(go_name("go.etcd.io/etcd/server/v3"), "server");
        assert_eq!(go_name("sigs.k8s.io/kwok/cmd/kwok"), "kwok");
    }

    #[test]
    fn assets_are_preferred_and_only_missing_programs_are_built() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let assets = dir.path().join("assets");
        fs::create_dir(&assets)?;
        fs::write(assets.join("kubectl"), "")?;
        fs::write(assets.join("kube-apiserver"), "")?;
        let places = Places { assets: Some(assets.clone()), cache: dir.path().join("cache") };
        assert_eq!(places.program(&KUBERNETES, "kubectl")?, assets.join("kubectl"));
        fs::write(assets.join("kwok"), "")?;
        assert_eq!(
            places.program(&KWOK, "kwok")?,
            places.folder(&KWOK)?.join("kwok"),
            "its stages are there"
        );
        assert_eq!(places.program(&ETCD, "etcd")?, places.folder(&ETCD)?.join("etcd"));
        assert_eq!(
            places.missing(&KUBERNETES)?,
            ["k8s.io/kubernetes/cmd/kube-controller-manager", "k8s.io/kubernetes/cmd/kube-scheduler"]
        );
        Ok(())
    }
}
