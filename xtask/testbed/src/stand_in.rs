//! A stand-in for cloud-api-adaptor's image, which is too big for tests and needs Kata Containers.

use std::{fs, net::Ipv4Addr};

use anyhow::{Context as _, Result};
use cluster::{
    Cluster,
    tools::{self, Module},
};
use image::{Config, Files, Image};
use peers::Control;

/// The name of an image that acts on a node like cloud-api-adaptor, with its rights. Its log says that it is a stand-in.
pub const NAME: &str = "cloud-api-adaptor-stand-in";
/// Its tag.
pub const TAG: &str = "2";

/// The path of the program that the DaemonSet runs.
const PATH: &str = "/usr/local/bin/entrypoint.sh";

const PROGRAM: &str = "cloud-api-adaptor";
const MODULE: Module = Module::new(
    NAME,
    concat!(env!("CARGO_MANIFEST_DIR"), "/stand-in"),
    &[(PROGRAM, "testbed/cloud-api-adaptor")],
);

/// The port for the calls that Kata's shim would make.
const PORT: u16 = 8001;

/// Builds the program, which takes a while the first time.
pub async fn install() -> Result<()> {
    tools::program(&MODULE, PROGRAM).await.map(drop)
}

/// Builds the image, and imports it into a cluster's real node.
pub async fn import(cluster: &Cluster) -> Result<()> {
    let program = tools::program(&MODULE, PROGRAM).await?;
    let mut files = Files::new();
    files.program(PATH, fs::read(&program).with_context(|| format!("reading {}", program.display()))?);
    let config = Config { entrypoint: vec![PATH.to_owned()], user: "0:0".to_owned(), ..Config::default() };
    cluster.import(&Image { name: format!("{NAME}:{TAG}"), files, config }).await
}

/// The stand-in that runs on a node.
#[derive(Debug)]
pub struct StandIn(Control);

impl StandIn {
    /// The stand-in on the node with this address.
    pub fn at(node: Ipv4Addr) -> Self {
        Self(Control::new(format!("http://{node}:{PORT}")))
    }

    /// A Pod's sandbox starts: makes its VM, which has no address yet, so no PeerPod records it. Returns the VM's name.
    pub async fn make(&self, namespace: &str, pod: &str) -> Result<String> {
        self.0.ask(&format!("make/{namespace}/{pod}"), &()).await
    }

    /// The VM has an address: records it.
    pub async fn record(&self, namespace: &str, pod: &str, vm: &str) -> Result<()> {
        self.0.tell(&format!("record/{namespace}/{pod}/{vm}"), &()).await
    }

    /// The sandbox ends: deletes its VM and releases the PeerPod. Fails if the stand-in has restarted meanwhile.
    pub async fn stop(&self, namespace: &str, pod: &str, vm: &str) -> Result<()> {
        self.0.tell(&format!("stop/{namespace}/{pod}/{vm}"), &()).await
    }
}
