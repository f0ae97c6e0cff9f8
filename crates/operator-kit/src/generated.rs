//! Generated files: written by a command, or compared by the same command with `--check`.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

/// Generated files by their path below the root.
pub type Files = BTreeMap<PathBuf, String>;

/// Where files are generated.
#[derive(Clone, Copy, Debug)]
pub struct Generated<'a> {
    /// The top folder of the repository.
    pub root: &'a Path,
    /// The folders below it in which everything is generated: other files in them are removed.
    pub folders: &'a [&'a str],
    /// The command that writes the files, for errors.
    pub command: &'a str,
}

/// What was changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// How many files were written.
    pub written: usize,
    /// How many files were removed.
    pub removed: usize,
}

/// Why files are not as they should be.
#[derive(Debug, thiserror::Error)]
pub enum GeneratedError {
    /// A file does not have its text.
    #[error("{} is stale: run `{command}`", path.display())]
    Stale {
        /// The file.
        path: PathBuf,
        /// The command that writes it.
        command: String,
    },
    /// A file is no longer generated.
    #[error("{} is not generated any more: run `{command}`", path.display())]
    Left {
        /// The file.
        path: PathBuf,
        /// The command that removes it.
        command: String,
    },
    /// A file or folder could not be read, written or removed.
    #[error("{action} {}: {problem}", path.display())]
    Failed {
        /// What was done.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why it failed.
        problem: io::Error,
    },
}

impl Generated<'_> {
    /// Writes these files, and removes others.
    pub fn write(&self, files: &Files) -> Result<Changed, GeneratedError> {
        let mut changed = Changed::default();
        for (path, text) in files {
            let path = self.root.join(path);
            if is_current(&path, text) {
                continue;
            }
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder).map_err(failed("making", folder))?;
            }
            fs::write(&path, text).map_err(failed("writing", &path))?;
            changed.written += 1;
        }
        for path in self.others(files)? {
            fs::remove_file(&path).map_err(failed("removing", &path))?;
            changed.removed += 1;
        }
        Ok(changed)
    }

    /// Changes nothing, and fails at the first file that [`write`](Self::write) would change.
    pub fn check(&self, files: &Files) -> Result<(), GeneratedError> {
        let command = || self.command.to_owned();
        let stale = files.iter().map(|(path, text)| (self.root.join(path), text));
        if let Some((path, _)) = stale.into_iter().find(|(path, text)| !is_current(path, text)) {
            return Err(GeneratedError::Stale { path, command: command() });
        }
        match self.others(files)?.into_iter().next() {
            Some(path) => Err(GeneratedError::Left { path, command: command() }),
            None => Ok(()),
        }
    }

    /// The files in the folders that nothing generates.
    fn others(&self, files: &Files) -> Result<Vec<PathBuf>, GeneratedError> {
        let mut others = Vec::new();
        let mut folders: Vec<_> = self.folders.iter().map(|folder| self.root.join(folder)).collect();
        while let Some(folder) = folders.pop() {
            if !folder.is_dir() {
                continue;
            }
            for entry in fs::read_dir(&folder).map_err(failed("listing", &folder))? {
                let path = entry.map_err(failed("listing", &folder))?.path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.strip_prefix(self.root).is_ok_and(|path| !files.contains_key(path)) {
                    others.push(path);
                }
            }
        }
        Ok(others)
    }
}

fn is_current(path: &Path, text: &str) -> bool {
    fs::read_to_string(path).is_ok_and(|current| current == text)
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> GeneratedError {
    let path = path.to_owned();
    move |problem| GeneratedError::Failed { action, path, problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(text: &str) -> Files {
        [("crd/a.yaml".into(), text.to_owned())].into()
    }

    #[test]
    fn a_changed_file_is_found_when_checking_and_corrected_when_writing() {
        let folder = tempfile::tempdir().unwrap();
        let generated =
            Generated { root: folder.path(), folders: &["crd"], command: "cargo xtask manifests" };
        let changed = |written, removed| Changed { written, removed };
        assert_eq!(generated.write(&files("a: 1\n")).unwrap(), changed(1, 0));
        generated.check(&files("a: 1\n")).unwrap();
        assert_eq!(generated.write(&files("a: 1\n")).unwrap(), changed(0, 0));
        let problem = generated.check(&files("a: 2\n")).unwrap_err().to_string();
        assert!(problem.contains("a.yaml is stale: run `cargo xtask manifests`"), "{problem}");
        let problem = generated.check(&Files::new()).unwrap_err().to_string();
        assert!(problem.contains("a.yaml is not generated any more: run `cargo xtask"), "{problem}");
        assert_eq!(generated.others(&Files::new()).unwrap(), [folder.path().join("crd/a.yaml")]);
        assert_eq!(generated.write(&Files::new()).unwrap(), changed(0, 1));
        generated.check(&Files::new()).unwrap();
    }
}
