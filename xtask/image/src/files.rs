//! The files of an image.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};
use tar::{Builder, EntryType, Header};

use crate::closure::closure;

/// Files by their absolute path, all owned by root. Their folders are added automatically, and every user may enter them.
#[derive(Clone, Debug, Default)]
pub struct Files(BTreeMap<String, Entry>);

#[derive(Clone, Debug)]
enum Entry {
    Folder,
    File { content: Vec<u8>, mode: u32 },
}

impl Files {
    /// No files.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an empty folder at this absolute path.
    pub fn folder(&mut self, path: &str) -> &mut Self {
        let relative = path.trim_matches('/');
        let ends = relative.match_indices('/').map(|(end, _)| end).chain([relative.len()]);
        for end in ends {
            self.0.entry(relative[..end].to_owned()).or_insert(Entry::Folder);
        }
        self
    }

    /// Adds a file that every user may read, at this absolute path.
    pub fn file(&mut self, path: &str, content: impl Into<Vec<u8>>) -> &mut Self {
        self.insert(path, content.into(), 0o644)
    }

    /// Adds a file that every user may read and run, at this absolute path.
    pub fn program(&mut self, path: &str, content: impl Into<Vec<u8>>) -> &mut Self {
        self.insert(path, content.into(), 0o755)
    }

    /// Adds a program of this machine at this absolute path, and [the files that it needs to be loaded](closure) at their own paths.
    pub fn install(&mut self, program: &Path, path: &str) -> Result<&mut Self> {
        self.program(path, read(program)?);
        for library in closure(program)? {
            let path = library.to_str().context("a library's path is no UTF-8")?;
            self.program(path, read(&library)?);
        }
        Ok(self)
    }

    fn insert(&mut self, path: &str, content: Vec<u8>, mode: u32) -> &mut Self {
        let relative = path.trim_matches('/');
        if let Some((folder, _)) = relative.rsplit_once('/') {
            self.folder(folder);
        }
        self.0.insert(relative.to_owned(), Entry::File { content, mode });
        self
    }

    /// All of them as a tar file.
    pub fn tar(&self) -> Result<Vec<u8>> {
        let mut builder = Builder::new(Vec::new());
        for (path, entry) in &self.0 {
            let (kind, mode, content) = match entry {
                Entry::Folder => (EntryType::Directory, 0o755, &[][..]),
                Entry::File { content, mode } => (EntryType::Regular, *mode, content.as_slice()),
            };
            append(&mut builder, path, kind, mode, content)?;
        }
        Ok(builder.into_inner()?)
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("reading {}", path.display()))
}

/// Adds an entry that root owns, without a time.
pub(crate) fn append(
    builder: &mut Builder<impl std::io::Write>,
    path: &str,
    kind: EntryType,
    mode: u32,
    content: &[u8],
) -> Result<()> {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(content.len() as u64);
    builder.append_data(&mut header, path, content).with_context(|| format!("adding {path} to a tar file"))
}
