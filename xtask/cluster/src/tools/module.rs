//! A Go module, and what its build depends on.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

pub(crate) const LDFLAGS: &str = "-s -w";

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
    pub(super) fn hash(&self) -> Result<String> {
        let mut text = self.build_flags().join(" ").into_bytes();
        for path in self.files()? {
            text.extend(fs::read(&path).with_context(|| format!("reading {}", path.display()))?);
        }
        let digest = ring::digest::digest(&ring::digest::SHA256, &text);
        let start = digest.as_ref().first_chunk().context("an empty digest")?;
        Ok(format!("{:016x}", u64::from_be_bytes(*start)))
    }

    /// A `go` command in the module's folder, without settings that would change the result.
    pub(super) fn go(&self, args: &[&str]) -> Command {
        let mut go = Command::new("go");
        go.args(args).current_dir(self.source);
        go.env("CGO_ENABLED", "0").env("GOFLAGS", "").env("GOWORK", "off");
        go
    }

    /// The standard output of a short `go` command.
    pub(super) fn ask_go(&self, args: &[&str]) -> Result<String> {
        let output = self.go(args).output().context(
            "running go: the cluster's programs are built with Go 1.21 or newer, which fetches the release that they \
             need; install it from https://go.dev/dl and put it on the PATH",
        )?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "go {} in {} failed: {stderr}", args.join(" "), self.source);
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::ETCD;

    #[test]
    fn a_build_folder_depends_on_flags_and_sources() -> Result<()> {
        let other_flags = Module { ldflags: "-s", ..ETCD };
        assert_eq!(ETCD.hash()?, ETCD.hash()?);
        assert_ne!(ETCD.hash()?, other_flags.hash()?);
        let other_source = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
        assert_ne!(ETCD.hash()?, Module { source: other_source, ..ETCD }.hash()?, "other sources");
        Ok(())
    }
}
