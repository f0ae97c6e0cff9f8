//! vSphere: a simulator of vCenter by its own maker, for one test alone.
//!
//! The server in `xtask/peers/vsphere/` is the simulator of govmomi, the maker's library for Go, which cloud-api-adaptor uses as
//! well. It refuses a request that govmomi would not send, and what a user may not do.

use std::path::Path;

use anyhow::{Context as _, Result};
use cluster::tools::{self, Module};
use serde_json::{Value, json};

use crate::{HttpRelay, go_server::GoServer};

/// The data centre of the pod VMs.
pub const DATACENTER: &str = "DC0";
/// The folder of the pod VMs, below the data centre's folder for VMs.
pub const FOLDER: &str = "peerpods";
/// The path of that folder.
pub const PATH: &str = "/DC0/vm/peerpods";
/// The path of another one, in which the operator may do nothing.
pub const OTHER_PATH: &str = "/DC0/vm/others";
/// The user that may delete pod VMs.
pub const USER: &str = r"VSPHERE.LOCAL\peer <pods> & co";
/// That user's password.
pub const PASSWORD: &str = r#"s3cr3t <of> "the" & user"#;

const PROGRAM: &str = "vsphere";
const MODULE: Module =
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
    /// What makes it another one than most.
    pub special: Special,
}

/// What makes a VM another one than most.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behavior {
    /// As it should.
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

/// What is there of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// Whether it is there.
    pub vm: bool,
    /// The number of files of its own disks.
    pub own: u64,
    /// The number of a user's disks.
    pub data: u64,
}

/// What tells a vCenter from others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// Its UUID.
    pub id: String,
    /// How often somebody tried to log in.
    pub logins: u64,
    /// Where it is reached with TLS.
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
    /// Makes sure that the server is built, so that [`start`](Self::start) need not: a few minutes.
    pub async fn install() -> Result<()> {
        tools::program(&MODULE, PROGRAM).await.map(drop)
    }

    /// Starts a server with its log in `dir`, which it has to itself, and with [`USER`], who has these privileges in [`PATH`]. It is
    /// built first if need be, which takes minutes.
    pub async fn start(dir: &Path, privileges: &[&str]) -> Result<Self> {
        let vsphere = Self(GoServer::start(&MODULE, PROGRAM, dir).await?);
        for path in [PATH, OTHER_PATH] {
            let (parent, name) = path.rsplit_once('/').context("a path")?;
            vsphere.0.control.ask("folder", &json!({ "Parent": parent, "Name": name })).await?;
        }
        vsphere.user(USER, PASSWORD).await?;
        vsphere.grant(USER, PATH, privileges, true).await?;
        Ok(vsphere)
    }

    /// The relay by which the API is reached.
    pub fn relay(&self) -> &HttpRelay {
        &self.0.relay
    }

    /// Adds a user, or changes the password of one.
    pub async fn user(&self, name: &str, password: &str) -> Result<()> {
        self.0.control.ask("user", &json!({ "Name": name, "Password": password })).await.map(drop)
    }

    /// Gives a user these privileges in the folder with this path, and in what is in it if it is to `propagate`. None: takes them.
    pub async fn grant(&self, user: &str, path: &str, privileges: &[&str], propagate: bool) -> Result<()> {
        let wanted = json!({ "User": user, "Path": path, "Privileges": privileges, "Propagate": propagate });
        self.0.control.ask("grant", &wanted).await.map(drop)
    }

    /// Makes a VM, and gives its BIOS UUID.
    pub async fn make(&self, machine: &Machine<'_>) -> Result<String> {
        let Machine { name, folder, uuid, stopped, special } = machine;
        let wanted = json!({
            "Name": name, "Folder": folder, "UUID": uuid, "Stopped": stopped,
            "Template": *special == Special::Template,
            "UserData": *special == Special::UserDisk,
            "Snapshot": *special == Special::Snapshot,
        });
        let id = self.0.control.ask("machine", &wanted).await?;
        id.as_str().map(str::to_owned).context("a VM without a UUID")
    }

    /// Removes a VM at once, with what goes with it.
    pub async fn remove(&self, uuid: &str) -> Result<()> {
        self.0.control.ask("remove", &uuid.into()).await.map(drop)
    }

    /// From now on vCenter behaves so to this VM.
    pub async fn behave(&self, uuid: &str, behavior: Behavior) -> Result<()> {
        let behavior = match behavior {
            Behavior::Well => "",
            Behavior::Hidden => "hidden",
            Behavior::DeletesLater => "deletes-later",
            Behavior::Fails => "fails",
            Behavior::Forgets => "forgets",
        };
        self.0.control.ask("behave", &json!({ "UUID": uuid, "Behavior": behavior })).await.map(drop)
    }

    /// Sets the most objects on a page of a list.
    pub async fn page_size(&self, size: u32) -> Result<()> {
        self.0.control.ask("pages", &size.into()).await.map(drop)
    }

    /// Lets every session end that was used so far.
    pub async fn expire(&self) -> Result<()> {
        self.0.control.ask("expire", &Value::Null).await.map(drop)
    }

    /// What is there of a VM.
    pub async fn left(&self, uuid: &str, name: &str) -> Result<Left> {
        let left = self.0.control.ask("left", &json!({ "UUID": uuid, "Name": name })).await?;
        let count = |name: &str| left[name].as_u64().with_context(|| format!("no {name} in {left}"));
        let vm = left["vm"].as_bool().with_context(|| format!("no vm in {left}"))?;
        Ok(Left { vm, own: count("own")?, data: count("data")? })
    }

    /// What tells it from others.
    pub async fn about(&self) -> Result<About> {
        let about = self.0.control.ask("about", &Value::Null).await?;
        let text = |name: &str| {
            about[name].as_str().map(str::to_owned).with_context(|| format!("no {name} in {about}"))
        };
        let logins = about["logins"].as_u64().with_context(|| format!("no logins in {about}"))?;
        Ok(About {
            id: text("id")?,
            logins,
            address: text("address")?,
            sha1: text("sha1")?,
            sha256: text("sha256")?,
        })
    }
}
