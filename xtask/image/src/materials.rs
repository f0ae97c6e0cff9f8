//! What a program and its image are made of.
//!
//! These are the crates that are linked into a program of this machine or needed to build it, without those of tests. `cargo metadata`
//! lists them. Beside them is what cargo does not list: see [`SystemPart`].

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use cargo_metadata::{DepKindInfo, DependencyKind, Metadata, MetadataCommand, Package, PackageId};

use crate::files::Files;
use crate::rustc;
use crate::system::SystemPart;

/// What a program and its image are made of.
pub struct Materials {
    /// The folder of the workspace.
    pub(crate) root: PathBuf,
    metadata: Metadata,
    package: PackageId,
    pub(crate) system: Vec<SystemPart>,
}

impl Materials {
    /// The materials of this package of the workspace in `root`.
    pub fn of(root: &Path, package: &str) -> Result<Self> {
        let host = rustc::host(root)?;
        let metadata = MetadataCommand::new()
            .manifest_path(root.join("Cargo.toml"))
            .other_options(["--locked".to_owned(), "--filter-platform".to_owned(), host])
            .exec()
            .context("asking cargo what the program is made of")?;
        let found = metadata.workspace_packages().into_iter().find(|it| it.name == package);
        let package = found.with_context(|| format!("the workspace has no package {package}"))?.id.clone();
        let system = vec![
            SystemPart::c_library(),
            SystemPart::compiler_library(),
            SystemPart::standard_library(root)?,
        ];
        Ok(Self { root: root.to_owned(), metadata, package, system })
    }

    /// These materials, and the public authorities that the operator's image has.
    #[must_use]
    pub fn with_authorities(mut self) -> Self {
        self.system.push(SystemPart::authorities());
        self
    }

    /// Adds the project's licence, and those of the software of others, to an image of this name.
    pub fn license_files(&self, name: &str, files: &mut Files) -> Result<()> {
        let license = self.root.join("LICENSE");
        let text = fs::read(&license).with_context(|| format!("reading {}", license.display()))?;
        let folder = format!("/usr/share/licenses/{name}");
        files.file(&format!("{folder}/LICENSE"), text);
        files.file(&format!("{folder}/THIRD-PARTY.txt"), self.third_party()?);
        Ok(())
    }

    /// The package of the program.
    pub(crate) fn package(&self) -> &PackageId {
        &self.package
    }

    /// All packages of the workspace and of its dependencies.
    pub(crate) fn packages(&self) -> BTreeMap<&PackageId, &Package> {
        self.metadata.packages.iter().map(|package| (&package.id, package)).collect()
    }

    /// The dependencies of each package that the program needs, directly or indirectly, without those of tests.
    pub(crate) fn dependencies(&self) -> Result<BTreeMap<&PackageId, Vec<&PackageId>>> {
        let resolve = self.metadata.resolve.as_ref().context("cargo did not resolve the dependencies")?;
        let nodes: BTreeMap<_, _> = resolve.nodes.iter().map(|node| (&node.id, node)).collect();
        let mut found = BTreeMap::new();
        let mut open = vec![&self.package];
        while let Some(id) = open.pop() {
            if found.contains_key(id) {
                continue;
            }
            let node = nodes.get(id).with_context(|| format!("cargo did not resolve {id}"))?;
            let for_tests =
                |kinds: &[DepKindInfo]| kinds.iter().all(|it| it.kind == DependencyKind::Development);
            let needs: Vec<_> =
                node.deps.iter().filter(|it| !for_tests(&it.dep_kinds)).map(|it| &it.pkg).collect();
            open.extend(&needs);
            found.insert(id, needs);
        }
        Ok(found)
    }
}

/// A package's licence as an SPDX expression.
pub(crate) fn expression(package: &Package) -> String {
    // The slash of older manifests means a choice. A package without an expression names a file instead.
    let license = package.license.as_ref().map(|license| license.replace('/', " OR "));
    license.unwrap_or_else(|| format!("LicenseRef-{}", package.name))
}
