//! Google Compute Engine: a server on Google's own types, for one test.
//!
//! There is no Compute Engine to run locally. The server in `xtask/peers/gcp/` has paths, parameters and messages of Google's client
//! library (`cloud.google.com/go/compute`). That library's types decode each request and encode each answer, and the server refuses
//! what they do not know. The same server gives access tokens to service accounts and for workload identity federation, and is the
//! metadata server.

use std::{net::SocketAddr, path::Path};

use anyhow::Result;
use cluster::tools::Module;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{HttpRelay, go_server::GoServer};

/// The project of the pod VMs.
pub const PROJECT: &str = "peer-pods";
/// Another one.
pub const OTHER_PROJECT: &str = "elsewhere-1";
/// A zone of either.
pub const ZONE: &str = "europe-west4-a";
/// A zone in another region.
pub const OTHER_ZONE: &str = "us-central1-a";
/// The permissions that a service account needs to delete pod VMs.
pub const PERMISSIONS: [&str; 3] =
    ["compute.instances.delete", "compute.instances.get", "compute.instances.list"];
/// The service account of the machine that the metadata server belongs to.
pub const NODE_ACCOUNT: &str = "node@peer-pods.iam.gserviceaccount.com";

pub(crate) const PROGRAM: &str = "compute-engine";
pub(crate) const MODULE: Module =
    Module::new("gcp", concat!(env!("CARGO_MANIFEST_DIR"), "/gcp"), &[(PROGRAM, "peers/gcp")]);

/// The server, behind a relay.
pub struct ComputeEngine(GoServer);

/// An instance to be made.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Instance<'a> {
    /// Its project.
    pub project: &'a str,
    /// Its zone.
    pub zone: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its status, such as RUNNING.
    pub status: &'a str,
    /// Whether a disk is attached to it that stays when it is deleted.
    pub user_disk: bool,
    /// Whether it is protected against deletion.
    pub protected: bool,
}

/// What is left of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct State {
    /// The instance itself.
    pub instance: bool,
    /// Its own disk.
    pub disk: bool,
    /// The disk that stays.
    pub user_disk: bool,
}

/// How the server behaves. Instances and zones are given by name.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Behavior<'a> {
    /// Operations do not end.
    pub hold_operations: bool,
    /// Instances of this name are not shown.
    pub hidden: Option<&'a str>,
    /// This zone does not answer, and lists say so.
    pub unreachable: Option<&'a str>,
    /// This zone does not answer, and lists name it apart from the zones that they have.
    pub skipped: Option<&'a str>,
    /// The number of instances on a page of a list. It includes instances that the list's filter then omits.
    pub page_size: Option<u32>,
    /// The API is off in this project.
    pub disabled: Option<&'a str>,
    /// The code of a warning in a complete list.
    pub warning: Option<&'a str>,
}

impl<'a> Instance<'a> {
    /// A running instance in [`PROJECT`] and [`ZONE`].
    pub fn running(name: &'a str) -> Self {
        Self { project: PROJECT, zone: ZONE, name, status: "RUNNING", user_disk: false, protected: false }
    }

    /// Its full path.
    pub fn path(&self) -> String {
        format!("projects/{}/zones/{}/instances/{}", self.project, self.zone, self.name)
    }
}

impl ComputeEngine {
    /// Starts a server with its log in `dir`, a folder of its own. Builds it first if needed.
    pub async fn start(dir: &Path) -> Result<Self> {
        Ok(Self(GoServer::start(&MODULE, PROGRAM, dir).await?))
    }

    /// The relay that forwards every request.
    pub fn relay(&self) -> &HttpRelay {
        &self.0.relay
    }

    /// The relay's address.
    pub fn address(&self) -> SocketAddr {
        self.0.relay.address()
    }

    /// Makes a service account with these permissions, or changes them. Returns the JSON document of its key, for use at `through`:
    /// this server, or a further relay before it.
    pub async fn account(&self, email: &str, permissions: &[&str], through: SocketAddr) -> Result<String> {
        let token_uri = format!("http://{through}/token");
        let wanted = json!({ "Email": email, "Permissions": permissions, "TokenURI": token_uri });
        Ok(self.0.control.ask::<Value>("account", &wanted).await?.to_string())
    }

    /// Makes a provider of a workload identity pool with this audience. Returns the token of a Pod with this subject.
    pub async fn pool(&self, audience: &str, subject: &str) -> Result<String> {
        self.0.control.ask("pool", &json!({ "Audience": audience, "Subject": subject })).await
    }

    /// Makes an instance with a disk of its own.
    pub async fn make(&self, instance: &Instance<'_>) -> Result<()> {
        self.0.control.tell("instance", instance).await
    }

    /// Removes an instance with its own disk at once.
    pub async fn remove(&self, instance: &Instance<'_>) -> Result<()> {
        self.0.control.tell("remove", instance).await
    }

    /// What is left of an instance.
    pub async fn state(&self, instance: &Instance<'_>) -> Result<State> {
        self.0.control.ask("left", instance).await
    }

    /// Makes the server behave so from now on.
    pub async fn behave(&self, behavior: &Behavior<'_>) -> Result<()> {
        self.0.control.tell("behave", behavior).await
    }
}
