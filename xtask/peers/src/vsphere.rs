//! vSphere: its maker's simulator of vCenter, for one test.
//!
//! The server in `xtask/peers/vsphere/` is the simulator of govmomi, the maker's library for Go, which cloud-api-adaptor uses as well.
//! It refuses requests that govmomi would not send, and those that the user lacks the rights for.

use std::path::Path;

use anyhow::{Context as _, Result};
use cluster::tools::Module;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{HttpRelay, go_server::GoServer};

/// The data centre of the pod VMs.
pub const DATACENTER: &str = "DC0";
/// The folder of the pod VMs, below the data centre's folder for VMs.
pub const FOLDER: &str = "peerpods";
/// The path of that folder.
pub const PATH: &str = "/DC0/vm/peerpods";
/// The path of another folder, where the operator has no rights.
pub const OTHER_PATH: &str = "/DC0/vm/others";
/// The user that may delete pod VMs.
pub const USER: &str = r"VSPHERE.LOCAL\peer <pods> & co";
/// That user's password.
pub const PASSWORD: &str = r#"s3cr3t <of> "the" & user"#;

pub(crate) const PROGRAM: &str = "vsphere";
pub(crate) const MODULE: Module =
    Module::new("vsphere", concat!(env!("CARGO_MANIFEST_DIR"), "/vsphere"), &[(PROGRAM, "peers/vsphere")]);

/// The server, behind a relay.
pub struct Vsphere(GoServer);

/// A VM to be made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Machine<'a> {
    /// Its name.
    pub name: &'a str,
    /// The path of its folder.
    pub folder: &'a str,
    /// Its BIOS UUID; empty for a new one.
    pub uuid: &'a str,
    /// Whether it is off.
    pub stopped: bool,
    /// A property that most VMs do not have.
    pub special: Special,
}

/// A property that most VMs do not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Special {
    /// Nothing.
    #[default]
    Nothing,
    /// It is a template.
    Template,
    /// A user's disk is attached to it.
    UserDisk,
    /// It has a snapshot.
    Snapshot,
}

/// How vCenter behaves to one VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Behavior {
    /// As it should.
    #[serde(rename = "")]
    Well,
    /// No search shows it.
    Hidden,
    /// Its deletion does not end.
    DeletesLater,
    /// Its deletion fails.
    Fails,
    /// vCenter does not know its UUID any more.
    Forgets,
}

/// What is left of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Left {
    /// Whether the VM exists.
    pub vm: bool,
    /// The number of files of its own disks.
    pub own: u64,
    /// The number of a user's disks.
    pub data: u64,
}

/// The identity of a vCenter.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct About {
    /// Its UUID.
    pub id: String,
    /// The number of attempts to log in.
    pub logins: u64,
    /// Its address with TLS.
    pub address: String,
    /// The SHA-1 thumbprint of its certificate, which no authority signed.
    pub sha1: String,
    /// The SHA-256 one.
    pub sha256: String,
}

impl<'a> Machine<'a> {
    /// One in [`PATH`] that runs.
    pub fn named(name: &'a str) -> Self {
        Self { name, folder: PATH, ..Self::default() }
    }
}

impl Vsphere {
    /// Starts a server with its log in `dir`, a folder of its own. [`USER`] has these privileges in [`PATH`]. If the server is not
    /// built yet, this takes minutes.
    pub async fn start(dir: &Path, privileges: &[&str]) -> Result<Self> {
        let vsphere = Self(GoServer::start(&MODULE, PROGRAM, dir).await?);
        for path in [PATH, OTHER_PATH] {
            let (parent, name) = path.rsplit_once('/').context("a path")?;
            vsphere.0.control.tell("folder", &json!({ "Parent": parent, "Name": name })).await?;
        }
        vsphere.user(USER, PASSWORD).await?;
        vsphere.grant(USER, PATH, privileges, true).await?;
        Ok(vsphere)
    }

    /// The relay that forwards every request to the API.
    pub fn relay(&self) -> &HttpRelay {
        &self.0.relay
    }

    /// Adds a user, or changes a user's password.
    pub async fn user(&self, name: &str, password: &str) -> Result<()> {
        self.0.control.tell("user", &json!({ "Name": name, "Password": password })).await
    }

    /// Gives a user these privileges in the folder with this path and, with `propagate`, in everything below it.
    /// An empty list removes them.
    pub async fn grant(&self, user: &str, path: &str, privileges: &[&str], propagate: bool) -> Result<()> {
        let wanted = json!({ "User": user, "Path": path, "Privileges": privileges, "Propagate": propagate });
        self.0.control.tell("grant", &wanted).await
    }

    /// Makes a VM. Returns its BIOS UUID.
    pub async fn make(&self, machine: &Machine<'_>) -> Result<String> {
        let Machine { name, folder, uuid, stopped, special } = machine;
        let wanted = json!({
            "Name": name, "Folder": folder, "UUID": uuid, "Stopped": stopped,
            "Template": *special == Special::Template,
            "UserData": *special == Special::UserDisk,
            "Snapshot": *special == Special::Snapshot,
        });
        self.0.control.ask("machine", &wanted).await
    }

    /// Removes a VM at once, with its own disks.
    pub async fn remove(&self, uuid: &str) -> Result<()> {
        self.0.control.tell("remove", &uuid).await
    }

    /// Makes vCenter behave so to this VM from now on.
    pub async fn behave(&self, uuid: &str, behavior: Behavior) -> Result<()> {
        self.0.control.tell("behave", &json!({ "UUID": uuid, "Behavior": behavior })).await
    }

    /// Sets the most objects on a page of a list.
    pub async fn page_size(&self, size: u32) -> Result<()> {
        self.0.control.tell("pages", &size).await
    }

    /// Ends all sessions that were used so far.
    pub async fn expire(&self) -> Result<()> {
        self.0.control.tell("expire", &()).await
    }

    /// What is left of a VM.
    pub async fn left(&self, uuid: &str, name: &str) -> Result<Left> {
        self.0.control.ask("left", &json!({ "UUID": uuid, "Name": name })).await
    }

    /// The identity of this vCenter.
    pub async fn about(&self) -> Result<About> {
        self.0.control.ask("about", &()).await
    }
}
