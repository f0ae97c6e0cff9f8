//! Python programs with pinned packages, each in a virtual environment of its own, outside `target/`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use cluster::{folders, packages, progress::Progress};

/// The Debian packages that an environment needs.
const PACKAGES: [&str; 2] = ["python3", "python3-venv"];

/// How long to wait for another process that installs the same.
const DEADLINE: Duration = Duration::from_secs(900);

/// Succeeds if the environment has a folder of packages of this version of Python.
const HAS_PACKAGES: &str =
    "import os, sys, sysconfig; sys.exit(not os.path.isdir(sysconfig.get_path('purelib')))";

/// The `python` of the environment with the packages of this `requirements.txt`. Makes the environment first if it is missing.
pub(crate) async fn environment(requirements: &Path) -> Result<PathBuf> {
    let pins = fs::read(requirements).with_context(|| format!("reading {}", requirements.display()))?;
    let digest = ring::digest::digest(&ring::digest::SHA256, &pins);
    let hash = u64::from_be_bytes(*digest.as_ref().first_chunk().context("an empty digest")?);
    let name = requirements.parent().and_then(Path::file_name).context("pins without a folder")?;
    let folder = folders::cache()?.join("python").join(format!("{}-{hash:016x}", name.display()));
    let env = folder.join("env");
    let (python, whole) = (env.join("bin/python"), folder.join("whole"));
    // The cache may outlive the machine. `python` is a link to Debian's, which may be missing, or of another version than the packages.
    let is_usable = || whole.exists() && run(Command::new(&python).args(["-c", HAS_PACKAGES])).is_ok();
    if is_usable() {
        return Ok(python);
    }
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let _lock = folders::lock(&folder.join("lock"), DEADLINE, || {}).await?;
    if !can_make_environments() {
        packages::ensure(&PACKAGES)?;
    }
    if is_usable() {
        return Ok(python);
    }
    let mut progress = Progress::new(1);
    progress.step(format!("installing the Python packages of {}", name.display()));
    // `--clear` removes the remains of an interrupted install.
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&env))?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes", "-r"];
    run(Command::new(&python).args(pip).arg(requirements))?;
    fs::write(&whole, "")?;
    progress.finish();
    Ok(python)
}

fn can_make_environments() -> bool {
    let probe = Command::new("python3").args(["-c", "import ensurepip, venv"]).output();
    probe.is_ok_and(|probe| probe.status.success())
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("running {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed ({}):\n{said}", output.status);
    Ok(())
}
