//! IBM Cloud: a server for one test, checked by IBM's own libraries.
//!
//! There is no public stand-in of IBM's cloud. The server in `xtask/peers/ibm/` makes each call again with IBM's libraries for Go,
//! which cloud-api-adaptor uses as well, and refuses a request that differs. The libraries parse each answer, too. The endpoint for
//! tokens, the VPC API of all regions, the API of Power Virtual Server and Global Search are at the same address.

use std::path::Path;

use anyhow::Result;
use cluster::tools::Module;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{HttpRelay, go_server::GoServer};

/// The account of the pod VMs.
pub const ACCOUNT: &str = "4329073d16d2f3663f74bfa955259139";
/// Another one.
pub const OTHER_ACCOUNT: &str = "93d40f24fc25232b876cdc3dfa2a445b";
/// The region of the pod VMs.
pub const REGION: &str = "eu-de";
/// Another one.
pub const OTHER_REGION: &str = "us-south";
/// The resource group of the pod VMs.
pub const GROUP: &str = "fee82deba12e4c0fb69c3b09d1f12345";
/// Another one.
pub const OTHER_GROUP: &str = "0be5ad401ae913d8ff665d92680664ed";
/// The workspace of Power Virtual Server with the pod VMs.
pub const WORKSPACE: &str = "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11";
/// Another one of the same account.
pub const OTHER_WORKSPACE: &str = "2fd5e2f0-7c2e-4b5a-8f0e-5d8d0f6c1b22";
/// The zone of the workspaces.
pub const ZONE: &str = "dal12";
/// The API key that may delete pod VMs.
pub const KEY: &str = "ApiKey+of/the_operator-1";

pub(crate) const PROGRAM: &str = "ibm";
pub(crate) const MODULE: Module =
    Module::new("ibm", concat!(env!("CARGO_MANIFEST_DIR"), "/ibm"), &[(PROGRAM, "peers/ibm")]);

/// The server, behind a relay.
pub struct Ibm(GoServer);

/// A caller that can get tokens: by an API key, or by a trusted profile with the token of a Pod.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Principal<'a> {
    /// The API key; empty for a trusted profile.
    pub key: &'a str,
    /// The trusted profile.
    pub profile: &'a str,
    /// The token of a Pod that the profile trusts.
    pub subject: &'a str,
    /// The account.
    pub account: &'a str,
    /// The actions that it may call.
    pub actions: &'a [&'a str],
}

/// A VM of VPC to be made.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Instance<'a> {
    /// Its account.
    pub account: &'a str,
    /// Its region.
    pub region: &'a str,
    /// Its resource group.
    pub group: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Whether it is off.
    pub stopped: bool,
    /// Whether a user's volume is attached to it.
    pub user_data: bool,
    /// Its tags, as Global Search shows them.
    pub tags: &'a [&'a str],
    /// Whether it was made a day ago.
    pub old: bool,
}

/// A VM of Power Virtual Server to be made.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Server<'a> {
    /// Its workspace.
    pub workspace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its status, such as ACTIVE.
    pub status: &'a str,
    /// Whether a user's volume is attached to it.
    pub user_data: bool,
}

/// How the cloud behaves to one VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Behavior {
    /// As it should.
    #[serde(rename = "")]
    Well,
    /// The caller lacks the rights on it.
    Unauthorized,
    /// Its deletion does not end.
    DeletesLater,
    /// It is not shown.
    Hidden,
}

/// What is left of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Left {
    /// Whether the VM exists.
    pub vm: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// The number of volumes that are deleted with it.
    pub boot: u64,
    /// The number of a user's volumes.
    pub data: u64,
}

impl<'a> Instance<'a> {
    /// One in [`ACCOUNT`], [`REGION`] and [`GROUP`].
    pub fn named(name: &'a str) -> Self {
        Self {
            account: ACCOUNT,
            region: REGION,
            group: GROUP,
            name,
            stopped: false,
            user_data: false,
            tags: &[],
            old: false,
        }
    }
}

impl<'a> Server<'a> {
    /// One in [`WORKSPACE`] that runs.
    pub fn named(name: &'a str) -> Self {
        Self { workspace: WORKSPACE, name, status: "ACTIVE", user_data: false }
    }
}

impl<'a> Principal<'a> {
    /// The owner of [`KEY`] with these rights.
    pub fn operator(actions: &'a [&'a str]) -> Self {
        Self { key: KEY, account: ACCOUNT, actions, ..Self::default() }
    }
}

impl Ibm {
    /// Starts a server with its log in `dir`, a folder of its own. The owner of [`KEY`] has these rights. If the server is not built
    /// yet, this takes minutes.
    pub async fn start(dir: &Path, actions: &[&str]) -> Result<Self> {
        let ibm = Self(GoServer::start(&MODULE, PROGRAM, dir).await?);
        ibm.principal(&Principal::operator(actions)).await?;
        for workspace in [WORKSPACE, OTHER_WORKSPACE] {
            let wanted = json!({ "ID": workspace, "Account": ACCOUNT, "Zone": ZONE });
            ibm.0.control.tell("workspace", &wanted).await?;
        }
        Ok(ibm)
    }

    /// The relay that forwards every request.
    pub fn relay(&self) -> &HttpRelay {
        &self.0.relay
    }

    /// The URL of the endpoint for tokens, as cloud-api-adaptor spells it.
    pub fn iam(&self) -> String {
        format!("http://{}/identity/token", self.0.relay.address())
    }

    /// The URL of a region's VPC API.
    pub fn vpc(&self, region: &str) -> String {
        format!("http://{}/vpc/{region}/v1", self.0.relay.address())
    }

    /// The URL of the API of Power Virtual Server, and of Global Search.
    pub fn url(&self) -> String {
        format!("http://{}", self.0.relay.address())
    }

    /// Adds or changes a principal.
    pub async fn principal(&self, principal: &Principal<'_>) -> Result<()> {
        self.0.control.tell("principal", principal).await
    }

    /// Expires all access tokens that were given out so far.
    pub async fn expire(&self) -> Result<()> {
        self.0.control.tell("expire", &()).await
    }

    /// Makes a VM of VPC. Returns its identifier.
    pub async fn make(&self, instance: &Instance<'_>) -> Result<String> {
        self.0.control.ask("machine", instance).await
    }

    /// Makes a VM of Power Virtual Server. Returns its identifier.
    pub async fn make_server(&self, server: &Server<'_>) -> Result<String> {
        self.0.control.ask("machine", server).await
    }

    /// Removes a VM at once, with its boot volumes.
    pub async fn remove(&self, id: &str) -> Result<()> {
        self.0.control.tell("remove", &id).await
    }

    /// Makes the cloud behave so to this VM from now on.
    pub async fn behave(&self, id: &str, behavior: Behavior) -> Result<()> {
        self.0.control.tell("behave", &json!({ "ID": id, "Behavior": behavior })).await
    }

    /// Sets the most VMs on a page of a list or a search.
    pub async fn page_size(&self, size: u32) -> Result<()> {
        self.0.control.tell("pages", &size).await
    }

    /// What is left of a VM.
    pub async fn left(&self, id: &str) -> Result<Left> {
        self.0.control.ask("left", &id).await
    }
}
