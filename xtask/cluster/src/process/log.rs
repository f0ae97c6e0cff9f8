//! The end of a log, for error messages.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use anyhow::{Result, ensure};

use super::Process;

/// How much of a log a failure quotes.
const TAIL_LINES: usize = 15;
const TAIL_BYTES: u64 = 16 * 1024;

impl Process {
    /// The last lines of its log, with a heading that names the file; for error messages.
    pub fn log_tail(&self) -> String {
        match tail(&self.log) {
            Ok(lines) => format!("--- the end of {} ---\n{lines}", self.log.display()),
            Err(error) => format!("--- {} can't be read: {error} ---", self.log.display()),
        }
    }
}

fn tail(path: &Path) -> Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    ensure!(!bytes.is_empty(), "it is empty");
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<_> = text.lines().collect();
    Ok(lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n"))
}
