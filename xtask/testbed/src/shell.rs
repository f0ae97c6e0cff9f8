//! Runs commands as a user types them.

use std::{
    env,
    ffi::OsString,
    fs,
    mem::replace,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, Result, ensure};
use cluster::{Cluster, clients::quick, proxies::without_proxies, tools};
use tokio::process::Command;

use crate::docs;

/// The folders of this repository that documented commands name.
const FOLDERS: [&str; 3] = ["kustomize", "helm", "manifests"];

/// A user's working folder: what this repository has for users, and the programs that they need.
#[derive(Debug)]
pub struct Shell {
    dir: PathBuf,
    path: OsString,
    kubeconfig: PathBuf,
    libvirt: String,
}

impl Shell {
    /// Makes the folder, for an administrator of this cluster. `libvirt` is the URI of the libvirtd that commands use.
    pub async fn new(dir: PathBuf, cluster: &Cluster, libvirt: String) -> Result<Self> {
        let programs = dir.join("bin");
        fs::create_dir_all(&programs).with_context(|| format!("creating {}", programs.display()))?;
        symlink(&cluster.tools().kubectl, programs.join("kubectl"))?;
        symlink(tools::helm().await?, programs.join("helm"))?;
        for folder in FOLDERS {
            copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder), &dir.join(folder))?;
        }
        let others = env::var_os("PATH").unwrap_or_default();
        let path = env::join_paths([programs].into_iter().chain(env::split_paths(&others)))?;
        Ok(Self { dir, path, kubeconfig: cluster.kubeconfig(), libvirt })
    }

    /// Makes later commands use the libvirtd of this URI. Returns the last URI.
    pub fn set_libvirt(&mut self, uri: String) -> String {
        replace(&mut self.libvirt, uri)
    }

    /// Runs the documented block with this mark.
    pub async fn documented(&self, block: &str) -> Result<String> {
        self.run(&docs::block(block)?).await.with_context(|| format!("the documented block {block}"))
    }

    /// Runs commands, up to the first that fails. Returns their output.
    pub async fn run(&self, commands: &str) -> Result<String> {
        let mut shell = Command::new("sh");
        quick(without_proxies(shell.as_std_mut()));
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

    /// Appends lines to a file that earlier commands have written.
    pub fn append(&self, file: &str, lines: &str) -> Result<()> {
        let file = self.dir.join(file);
        let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        fs::write(&file, text + lines).with_context(|| format!("writing {}", file.display()))
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
