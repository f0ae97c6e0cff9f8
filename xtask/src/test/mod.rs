//! `cargo xtask test`: all checks, the cheapest first.

mod binaries;
mod disk;
mod lanes;

use std::{fs, panic::resume_unwind, process::Command, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use cluster::{
    folders, node,
    progress::Progress,
    tools::{self, Tools},
};
use peerpod_operator::install::NAME;
use testbed::stand_in;

use crate::repository;

/// How long to wait for another run in this clone: both would write the same logs.
const LOCK_DEADLINE: Duration = Duration::from_secs(3600);

/// The libraries that other programs use.
const LIBRARIES: [&str; 2] = [NAME, "operator-kit"];

/// The versions of k8s-openapi, by the names of its features, with which the libraries are checked. Like another program, the check
/// uses no default features and chooses one of these versions.
const KUBERNETES_VERSIONS: [&str; 2] = ["v1_33", "v1_37"];

/// The types of fields differ between these versions. A conversion may be needed in one and useless in another.
const ALLOWED: &str = "--allow=clippy::useless_conversion";

pub(crate) async fn run() -> Result<()> {
    // Otherwise a user would learn it after a quarter of an hour of builds.
    ensure!(
        rustix::process::geteuid().is_root(),
        "the tests need root, for podman, sshd and addresses of Pods: run this command as root"
    );
    disk::has_room()?;
    let mut progress = Progress::new(5);
    progress.step("formatting");
    let logs = repository::root().join("target");
    fs::create_dir_all(&logs).with_context(|| format!("creating {}", logs.display()))?;
    let waits = || progress.detail("waiting for another run of the tests in this clone");
    let _lock = folders::lock(&logs.join("test.lock"), LOCK_DEADLINE, waits).await?;
    cargo(&["fmt", "--all", "--check"])?;
    progress.step("programs of the control plane, the node and the clouds, and helm");
    Tools::ensure().await?;
    tools::helm().await?;
    peers::install().await?;
    if node::obstacle().is_none() {
        node::install().await?;
        stand_in::install().await?;
    }
    progress.step("lints, of the libraries also by themselves, with the oldest and the newest Kubernetes");
    lint()?;
    progress.step("building the tests");
    let binaries = binaries::build()?;
    // The builds take gigabytes.
    disk::has_room()?;
    progress.step("tests, generated files among them");
    lanes::run(binaries, &mut progress).await?;
    progress.finish();
    Ok(())
}

/// Runs all lints. Those of the libraries by themselves run beside the others: each leaves a processor idle most of the time.
fn lint() -> Result<()> {
    thread::scope(|scope| {
        let libraries = scope.spawn(lint_libraries);
        let workspace =
            cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "--deny", "warnings"]);
        workspace.and(libraries.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

fn lint_libraries() -> Result<()> {
    for (library, version) in LIBRARIES.iter().flat_map(|it| KUBERNETES_VERSIONS.map(|version| (it, version)))
    {
        let mut command = repository::cargo();
        // One cargo at a time builds in a folder.
        command.env("CARGO_TARGET_DIR", repository::target().join("libraries"));
        let feature = format!("k8s-openapi/{version}");
        let library = ["clippy", "--quiet", "--package", library, "--lib", "--no-default-features"];
        run_cargo(
            command,
            &[&library[..], &["--features", &feature, "--", "--deny", "warnings", ALLOWED]].concat(),
        )?;
    }
    Ok(())
}

/// Runs cargo in this repository, with this program's output.
fn cargo(arguments: &[&str]) -> Result<()> {
    run_cargo(repository::cargo(), arguments)
}

fn run_cargo(mut cargo: Command, arguments: &[&str]) -> Result<()> {
    let status = cargo.args(arguments).status();
    let status = status.with_context(|| format!("running cargo {}", arguments.join(" ")))?;
    ensure!(status.success(), "`cargo {}` failed: see above", arguments.join(" "));
    Ok(())
}
