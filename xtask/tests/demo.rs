//! `cargo xtask demo` as its users see it.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

/// A folder for all that demos write, and the promise that none is left in it.
struct Demos(TempDir);

impl Demos {
    fn new() -> Result<Self> {
        Ok(Self(TempDir::new()?))
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
        xtask.arg("demo").args(arguments).env("RUST_BACKTRACE", "0");
        xtask.env("XDG_STATE_HOME", self.0.path()).env("TMPDIR", self.0.path());
        xtask
    }

    fn run(&self, arguments: &[&str]) -> Result<Output> {
        Ok(self.command(arguments).output()?)
    }

    /// Fails unless no file but the lock is left, and no process that has to do with the folder.
    fn ensure_nothing_is_left(&self) -> Result<()> {
        let left: Vec<_> = files(self.0.path())?.into_iter().filter(|name| name != "demo.lock").collect();
        ensure!(left.is_empty(), "left in the folder: {left:?}");
        let processes = processes(self.0.path())?;
        ensure!(processes.is_empty(), "still running: {processes:?}");
        Ok(())
    }
}

impl Drop for Demos {
    fn drop(&mut self) {
        // Where a test failed; fine where it took the demo down itself.
        let _ = self.run(&["--down"]);
    }
}

/// The names of all files below a folder.
fn files(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            names.extend(files(&entry.path())?);
        } else {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(names)
}

/// The command lines that name a folder.
fn processes(folder: &Path) -> Result<Vec<String>> {
    let folder = folder.to_str().context("a path in UTF-8")?;
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        // A process may end meanwhile, and most of /proc is none.
        let command = fs::read(entry?.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        if command.contains(folder) {
            found.push(command);
        }
    }
    Ok(found)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_kept_demo_goes_as_told_is_not_started_twice_and_leaves_nothing() -> Result<()> {
    let demos = Demos::new()?;
    let kept = demos.run(&["--keep"])?;
    let (said, problems) = (text(&kept.stdout), text(&kept.stderr));
    ensure!(kept.status.success(), "{said}\n{problems}");
    assert_eq!(said.matches("as told").count(), 5, "{said}");
    assert!(!said.contains('\x1b'), "no colours where there is no terminal: {said}");
    let kubeconfig = said.lines().find_map(|line| line.trim().strip_prefix("export KUBECONFIG="));
    assert!(kubeconfig.is_some_and(|path| Path::new(path).exists()), "{said}");
    assert!(processes(demos.0.path())?.iter().any(|command| command.contains("peerpod-operator run")));

    let second = demos.run(&[])?;
    assert_eq!(second.status.code(), Some(1));
    let problem = text(&second.stderr);
    assert!(problem.contains("already running") && problem.contains("cargo xtask demo --down"), "{problem}");

    assert!(text(&demos.run(&["--down"])?.stdout).contains("is gone"));
    demos.ensure_nothing_is_left()?;
    assert!(text(&demos.run(&["--down"])?.stdout).contains("was not there"));
    Ok(())
}

#[test]
fn a_demo_that_is_interrupted_leaves_nothing() -> Result<()> {
    for arguments in [[].as_slice(), &["--keep"]] {
        let demos = Demos::new()?;
        let mut demo = demos.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let stdout = demo.stdout.take().context("its output was asked for")?;
        let mut lines = BufReader::new(stdout).lines();
        let begun = lines.find(|line| line.as_ref().is_ok_and(|line| line.starts_with("Story 2")));
        ensure!(begun.is_some(), "it did not come to the second story");
        let interrupted = Command::new("kill").args(["-INT", &demo.id().to_string()]).status()?;
        ensure!(interrupted.success(), "it could not be interrupted");
        lines.for_each(drop);
        let ended = demo.wait_with_output()?;
        assert_eq!(ended.status.code(), Some(1));
        assert!(text(&ended.stderr).contains("interrupted"), "{}", text(&ended.stderr));
        demos.ensure_nothing_is_left()?;
    }
    Ok(())
}
