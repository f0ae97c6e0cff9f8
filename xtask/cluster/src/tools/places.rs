//! The folders where programs are looked for.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use super::Module;
use crate::folders;

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

    pub(super) fn folder(&self, module: &Module) -> Result<PathBuf> {
        Ok(self.cache.join(format!("{}-{}", module.name, module.hash()?)))
    }

    pub(crate) fn program(&self, module: &Module, program: &str) -> Result<PathBuf> {
        // A program from elsewhere would lack its files.
        let assets = self.assets.as_ref().filter(|_| module.data.is_none());
        let asset = assets.map(|dir| dir.join(program)).filter(|path| path.is_file());
        asset.map_or_else(|| Ok(self.folder(module)?.join(program)), Ok)
    }

    /// The packages of a module whose programs are not found.
    pub(super) fn missing(&self, module: &Module) -> Result<Vec<&'static str>> {
        let mut missing = Vec::new();
        for (program, package) in module.programs {
            if !self.program(module, program)?.is_file() {
                missing.push(*package);
            }
        }
        Ok(missing)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::tools::{ETCD, KUBERNETES, KWOK};

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
