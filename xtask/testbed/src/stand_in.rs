//! What runs in the place of cloud-api-adaptor's image, which is far too big for tests and needs Kata Containers.

use std::path::Path;

use anyhow::Result;
use cluster::{Cluster, node};

/// The name of an image that has what the DaemonSet asks of cloud-api-adaptor's: its program answers the startup probe, says
/// in its log what it is, and makes no VMs.
pub const NAME: &str = "cloud-api-adaptor-stand-in";
/// Its tag.
pub const TAG: &str = "1";

/// What the DaemonSet runs.
const PROGRAM: &str = "/usr/local/bin/entrypoint.sh";

/// Builds it, and puts it on a cluster's real node.
pub async fn import(cluster: &Cluster) -> Result<()> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("stand-in/cloud-api-adaptor.rs");
    let (dir, name) = (cluster.dir().to_owned(), format!("{NAME}:{TAG}"));
    let image =
        tokio::task::spawn_blocking(move || node::static_program(&source, &dir, &name, PROGRAM, "0:0"));
    cluster.import(&image.await??).await
}
