//! The files that a program needs to be loaded.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// The dynamic loader and the libraries that a program of this machine needs, according to `ldd`, each at the path where the loader
/// looks for it. Empty for a statically linked program.
pub fn closure(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd")
        .arg(program)
        // ldd translates its message about a static program.
        .env("LC_ALL", "C")
        .output()
        .context("running ldd, which comes with the C library")?;
    let (said, complaint) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if said.contains("statically linked") || complaint.contains("not a dynamic executable") {
        return Ok(Vec::new());
    }
    ensure!(output.status.success(), "ldd {} failed: {}", program.display(), complaint.trim());
    said.lines()
        .filter_map(|line| library(line).transpose())
        .collect::<Result<_>>()
        .with_context(|| format!("finding the libraries of {}", program.display()))
}

/// The file in a line of ldd's output; `None` for a library of the kernel's own.
fn library(line: &str) -> Result<Option<PathBuf>> {
    let line = line.trim();
    // `NAME => FILE (ADDRESS)`, or `FILE (ADDRESS)` of the loader, or `NAME (ADDRESS)` of what the kernel brings.
    let (name, file) = line.split_once(" => ").unwrap_or((line, line));
    ensure!(file != "not found", "the library {name} is not installed");
    let file = file.split(" (").next().unwrap_or(file);
    Ok(file.starts_with('/').then(|| PathBuf::from(file)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_line_is_understood() -> Result<()> {
        let told = |line| library(line).map(|path| path.map(|path| path.display().to_string()));
        assert_eq!(told("\tlibm.so.6 => /lib/libm.so.6 (0x7f)")?.as_deref(), Some("/lib/libm.so.6"));
        assert_eq!(told("\t/lib64/ld-linux.so.2 (0x7f)")?.as_deref(), Some("/lib64/ld-linux.so.2"));
        assert_eq!(told("\tlinux-vdso.so.1 (0x7f)")?, None);
        let missing = told("\tlibodd.so.1 => not found").expect_err("it is missing");
        assert!(missing.to_string().contains("libodd.so.1"), "{missing}");
        Ok(())
    }
}
