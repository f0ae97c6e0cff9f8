//! Where this repository is.

use std::path::{Path, PathBuf};

/// Its top folder.
pub(crate) fn root() -> PathBuf {
    // The crate's folder is one below the top.
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).to_path_buf()
}
