//! The cluster for measurements of operators that are Pods.

use std::path::Path;

use anyhow::Result;
use cluster::{process::Lifetime, progress::Progress};
use testbed::{RealNode, Shell};

use super::build_operator;

/// The number of steps of its start.
pub(super) const STEPS: usize = 2;

/// Starts a cluster with a real node that has the operator's released image, and a shell for documented commands. All files are in
/// `dir`. Nothing is installed.
pub(super) async fn start(dir: &Path, progress: &mut Progress) -> Result<(RealNode, Shell)> {
    let program = build_operator(progress)?;
    progress.step("starting a cluster with a real node, and libvirtd");
    let node = RealNode::start(dir, &program, Lifetime::Owned).await?;
    let shell = Shell::new(dir.join("user"), node.testbed.cluster(), node.uri.clone()).await?;
    Ok((node, shell))
}
