//! The surroundings of an operator that is a Pod.

use std::path::Path;

use anyhow::{Context as _, Result};
use cluster::process::Lifetime;
use image::Compression;
use peerpod_operator::names::DEFAULT_IMAGE;
use peers::libvirt::Libvirtd;

use crate::{Options, Testbed, strip};

/// A cluster with a real node and nothing installed, the operator's image on that node, and a libvirtd that Pods
/// there can reach. Needs root.
pub struct RealNode {
    /// The cluster, with an audit log.
    pub testbed: Testbed,
    /// Also listens for Pods by TCP.
    pub libvirtd: Libvirtd,
    /// The value of `LIBVIRT_URI` for Pods.
    pub uri: String,
}

impl RealNode {
    /// Starts it with all its files in `dir`. The image contains the operator's program at `program`, without its symbols.
    pub async fn start(dir: &Path, program: &Path, lifetime: Lifetime) -> Result<Self> {
        let options = Options { audit: true, real_node: true, lifetime, ..Options::new(dir.join("testbed")) };
        let testbed = Testbed::start_empty(&options).await?;
        let host = testbed.cluster().host_address().context("a real node has this machine's address")?;
        let libvirtd = Libvirtd::start_at(host, &dir.join("libvirtd"), lifetime).await?;
        let (program, dir, archive) = (program.to_owned(), dir.to_owned(), dir.join("operator.tar"));
        let written = archive.clone();
        tokio::task::spawn_blocking(move || {
            let program = strip(&program, &dir)?;
            image::operator(&program, DEFAULT_IMAGE, &[].into())?.write(&written, Compression::None)
        })
        .await??;
        testbed.cluster().import_archive(&archive).await?;
        Ok(Self { testbed, libvirtd, uri: format!("test+tcp://{host}/default") })
    }
}
