//! Installing and removing the operator with the commands of README.md.

use std::{
    env,
    ffi::OsString,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, Result, ensure};
use cluster::{Cluster, tools};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams},
};
use peerpod_operator::{NAMESPACE, api::v1alpha1::PeerPod};
use testbed::{
    Caa, readme,
    wait::{self, DEADLINE},
};
use tokio::process::Command;

use crate::support::Installation;

/// The folders of this repository that the commands name.
const FOLDERS: [&str; 2] = ["kustomize", "helm"];

/// How the operator can be installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Kustomize,
    Helm,
}

/// Where a user types: a folder with what this repository has for users, and the programs that they need.
pub struct Shell {
    dir: PathBuf,
    path: OsString,
    kubeconfig: PathBuf,
    libvirt: String,
}

impl Shell {
    /// Makes the folder; `libvirt` is the URI of the libvirtd to use.
    pub async fn new(dir: PathBuf, cluster: &Cluster, libvirt: String) -> Result<Self> {
        let programs = dir.join("bin");
        fs::create_dir_all(&programs)?;
        symlink(&cluster.tools().kubectl, programs.join("kubectl"))?;
        symlink(tools::helm().await?, programs.join("helm"))?;
        for folder in FOLDERS {
            copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &dir.join(folder))?;
        }
        let others = env::var_os("PATH").unwrap_or_default();
        let path = env::join_paths([programs].into_iter().chain(env::split_paths(&others)))?;
        Ok(Self { dir, path, kubeconfig: cluster.kubeconfig(), libvirt })
    }

    /// Runs the block of README.md with this mark.
    pub async fn readme(&self, block: &str) -> Result<String> {
        self.run(&readme::block(block)?).await.with_context(|| format!("README.md's block {block}"))
    }

    /// Runs commands, up to the first that fails; gives what they print.
    pub async fn run(&self, commands: &str) -> Result<String> {
        let mut shell = Command::new("sh");
        shell.args(["-euc", commands]).current_dir(&self.dir).env("PATH", &self.path);
        shell.env("KUBECONFIG", &self.kubeconfig).env("LIBVIRT_URI", &self.libvirt);
        for folder in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            shell.env(folder, self.dir.join("helm-home"));
        }
        let output = shell.kill_on_drop(true).stdin(Stdio::null()).output().await.context("running sh")?;
        let [said, problem] =
            [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
        ensure!(output.status.success(), "{commands}\nended with {}\n{said}{problem}", output.status);
        Ok(said)
    }

    /// Adds lines to a file that the commands before have written.
    pub fn append(&self, file: &str, lines: &str) -> Result<()> {
        let file = self.dir.join(file);
        let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        Ok(fs::write(&file, text + lines)?)
    }
}

impl Installation {
    /// Has the operator installed in this way and no other, by itself.
    pub async fn install(&mut self, way: Way) -> Result<()> {
        if self.way == Some(way) {
            return Ok(());
        }
        match self.way {
            Some(Way::Kustomize) => {
                self.end_peer_pods().await?;
                // A Pod that ends just now, or a kubelet that has just come back, takes no commands.
                wait::eventually("the operator drains", DEADLINE, async || self.shell.readme("drain").await)
                    .await?;
                self.shell.readme("remove").await?;
            }
            // What it leaves is no obstacle.
            Some(Way::Helm) => {
                self.end_peer_pods().await?;
                self.shell.run(&format!("helm uninstall peerpod-operator --namespace {NAMESPACE}")).await?;
            }
            None => {}
        }
        self.way = None;
        self.shell
            .readme(match way {
                Way::Kustomize => "kustomize",
                Way::Helm => "helm",
            })
            .await?;
        self.way = Some(way);
        self.testbed.collect_new_kinds().await?;
        self.caa = Some(Caa::install(&self.testbed).await?);
        self.enforce("restricted").await
    }

    /// Deletes all Pods that have a machine, which others may have left, and waits until no machine is recorded.
    async fn end_peer_pods(&self) -> Result<()> {
        let peerpods: Api<PeerPod> = Api::all(self.testbed.client());
        for peerpod in peerpods.list(&ListParams::default()).await? {
            let pods: Api<Pod> =
                Api::namespaced(self.testbed.client(), &peerpod.namespace().unwrap_or_default());
            for owner in peerpod.owner_references() {
                match pods.delete(&owner.name, &DeleteParams::default()).await {
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    deleted => drop(deleted?),
                }
            }
        }
        wait::eventually("no machine is recorded", DEADLINE, async || {
            let left = peerpods.list(&ListParams::default()).await?.items.len();
            ensure!(left == 0, "{left} PeerPods are there");
            Ok(())
        })
        .await
    }

    /// Grants Pods of the operator's namespace no more than this profile does.
    pub async fn enforce(&self, profile: &str) -> Result<()> {
        let enforce = format!("pod-security.kubernetes.io/enforce={profile}");
        self.testbed.cluster().kubectl(&["label", "--overwrite", "namespace", NAMESPACE, &enforce]).await?;
        Ok(())
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("creating {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), &to).with_context(|| format!("writing {}", to.display()))?;
        }
    }
    Ok(())
}
