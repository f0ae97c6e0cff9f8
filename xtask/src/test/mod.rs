//! `cargo xtask test`: all checks, the cheapest first.

mod binaries;
mod lanes;

use std::{
    io::{self, Write as _},
    path::Path,
};

use anyhow::{Context as _, Result, ensure};
use cluster::{
    node,
    progress::Progress,
    tools::{self, Tools},
};
use peerpod_operator::install::NAME;
use peers::{
    alibaba::Alibaba, aws::Moto, azure::Azure, docker::Podman, gcp::ComputeEngine, ibm::Ibm, vsphere::Vsphere,
};
use testbed::stand_in;
use tokio::{join, process::Command};

use crate::repository;

/// The libraries that other programs use.
const LIBRARIES: [&str; 2] = [NAME, "operator-kit"];

/// The versions of k8s-openapi, by the names of its features, with which the libraries are checked. Like another program, the check
/// uses no default features and chooses one of these versions.
const KUBERNETES_VERSIONS: [&str; 2] = ["v1_33", "v1_37"];

/// The types of fields differ between these versions. A conversion may be needed in one and useless in another.
const ALLOWED: &str = "--allow=clippy::useless_conversion";

pub(crate) async fn run() -> Result<()> {
    let mut progress = Progress::new(6);
    progress.step("formatting");
    cargo(&["fmt", "--all", "--check"])?;
    progress.step("programs of the control plane, the node and the clouds, and helm");
    Tools::ensure().await?;
    tools::helm().await?;
    Moto::install().await?;
    Azure::install().await?;
    ComputeEngine::install().await?;
    Ibm::install().await?;
    Alibaba::install().await?;
    Vsphere::install().await?;
    Podman::install()?;
    if node::obstacle().is_none() {
        node::install().await?;
        stand_in::install().await?;
    }
    progress.step("lints");
    cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "--deny", "warnings"])?;
    progress.step("the libraries by themselves, with the oldest and the newest Kubernetes");
    check_libraries().await?;
    progress.step("building the tests");
    let binaries = binaries::build()?;
    progress.step("tests, generated files among them");
    lanes::run(binaries, &mut progress).await?;
    progress.finish();
    Ok(())
}

/// Checks the libraries with both versions at the same time, because a single check leaves a processor idle. If both fail, both errors
/// are shown.
async fn check_libraries() -> Result<()> {
    let [oldest, newest] = KUBERNETES_VERSIONS;
    // Cargo locks the folder that it builds in.
    let own = repository::root().join("target").join(format!("clippy-{newest}"));
    let (oldest, newest) = join!(check_with(oldest, None), check_with(newest, Some(&own)));
    let problems = [oldest, newest].into_iter().filter_map(Result::err);
    let problems: Vec<_> = problems.map(|problem| format!("{problem:#}")).collect();
    ensure!(problems.is_empty(), "{}", problems.join("; "));
    Ok(())
}

/// Checks the libraries with one version, and has cargo build in this folder if there is one.
async fn check_with(version: &str, folder: Option<&Path>) -> Result<()> {
    let feature = format!("k8s-openapi/{version}");
    for library in LIBRARIES {
        let mut cargo = repository::cargo();
        cargo.args(["clippy", "--quiet", "--package", library, "--lib", "--no-default-features"]);
        cargo.args(["--features", &feature]);
        if let Some(folder) = folder {
            cargo.arg("--target-dir").arg(folder);
        }
        cargo.args(["--", "--deny", "warnings", ALLOWED]);
        let output = Command::from(cargo).kill_on_drop(true).output().await;
        let output = output.with_context(|| format!("running cargo for {library} with {feature}"))?;
        // All at once, so that the messages of two checks do not mix.
        io::stderr().write_all(&output.stderr)?;
        ensure!(output.status.success(), "`cargo clippy` of {library} with {feature} failed: see above");
    }
    Ok(())
}

/// Runs cargo in this repository, with this program's output.
fn cargo(arguments: &[&str]) -> Result<()> {
    let status = repository::cargo().args(arguments).status();
    let status = status.with_context(|| format!("running cargo {}", arguments.join(" ")))?;
    ensure!(status.success(), "`cargo {}` failed: see above", arguments.join(" "));
    Ok(())
}
