//! Alibaba Cloud: a server for one test, checked by Alibaba Cloud's own libraries.
//!
//! There is no public stand-in of Alibaba Cloud's services. The server in `xtask/peers/alibaba/` makes each call again with the Go
//! libraries that cloud-api-adaptor uses, and refuses a request that differs, even if only in its signature. The libraries parse each
//! answer, too. Each region has an address of its own, with all services.

use std::path::Path;

use anyhow::{Context as _, Result};
use cluster::tools::Module;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{HttpRelay, go_server::GoServer};

/// The account of the pod VMs.
pub const ACCOUNT: &str = "1234567890123456";
/// Another one.
pub const OTHER_ACCOUNT: &str = "6543210987654321";
/// The region of the pod VMs.
pub const REGION: &str = "cn-beijing";
/// Another one.
pub const OTHER_REGION: &str = "eu-central-1";
/// The identifier of the access key that may delete pod VMs.
pub const KEY: &str = "LTAI5tOperatorOperator01";
/// That access key.
pub const SECRET: &str = "Secret0f/the+operator=1";

pub(crate) const PROGRAM: &str = "alibaba";
pub(crate) const MODULE: Module =
    Module::new("alibaba", concat!(env!("CARGO_MANIFEST_DIR"), "/alibaba"), &[(PROGRAM, "peers/alibaba")]);

/// The server, behind a relay for each region.
pub struct Alibaba {
    server: GoServer,
    other: HttpRelay,
}

/// The owner of [`KEY`].
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
    /// The account.
    pub account: &'a str,
    /// The actions that it may call.
    pub actions: &'a [&'a str],
    /// Whether the cloud returns empty lists if a right is missing.
    pub quiet: bool,
}

/// A VM to be made.
#[derive(Clone, Copy, Debug)]
pub struct Instance<'a> {
    /// Its account.
    pub account: &'a str,
    /// Its region.
    pub region: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its state, and what else belongs to it.
    pub features: &'a [Feature],
}

/// A state or a belonging of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// It is off.
    Stopped,
    /// It has an interface and an address for it, as cloud-api-adaptor makes them.
    External,
    /// A user's disk is attached to it.
    UserData,
    /// It is locked for security reasons.
    Locked,
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
    /// Its belongings cannot be deleted.
    HoldsBelongings,
}

/// What is left of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Left {
    /// Whether the VM exists.
    pub vm: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// The number of its further interfaces.
    pub nics: u64,
    /// The number of its elastic addresses.
    pub addresses: u64,
    /// The number of disks that are deleted with it.
    pub system: u64,
    /// The number of a user's disks.
    pub data: u64,
}

impl<'a> Instance<'a> {
    /// One in [`ACCOUNT`] and [`REGION`] that runs.
    pub fn named(name: &'a str) -> Self {
        Self { account: ACCOUNT, region: REGION, name, features: &[] }
    }
}

impl<'a> Owner<'a> {
    /// One of [`ACCOUNT`] with these rights.
    pub fn operator(actions: &'a [&'a str]) -> Self {
        Self { account: ACCOUNT, actions, quiet: false }
    }
}

/// The actions that a RAM policy of one statement allows.
pub fn actions(policy: &str) -> Result<Vec<String>> {
    let policy: Value = serde_json::from_str(policy)?;
    let actions = policy["Statement"][0]["Action"].as_array().context("a policy without actions")?;
    Ok(actions.iter().filter_map(Value::as_str).map(str::to_owned).collect())
}

impl Alibaba {
    /// Starts a server with its log in `dir`, a folder of its own. The owner of [`KEY`] may do what this policy allows. If the server
    /// is not built yet, this takes minutes.
    pub async fn start(dir: &Path, policy: &str) -> Result<Self> {
        let server = GoServer::start(&MODULE, PROGRAM, dir).await?;
        let other = HttpRelay::start(server.relay.address()).await?;
        let cloud = Self { server, other };
        for (relay, region) in [(&cloud.server.relay, REGION), (&cloud.other, OTHER_REGION)] {
            let endpoint = json!({ "Host": relay.address(), "Region": region });
            cloud.server.control.tell("endpoint", &endpoint).await?;
        }
        let actions = actions(policy)?;
        let actions: Vec<_> = actions.iter().map(String::as_str).collect();
        cloud.owner(&Owner::operator(&actions)).await?;
        Ok(cloud)
    }

    /// The relay that forwards every request.
    pub fn relay(&self) -> &HttpRelay {
        &self.server.relay
    }

    /// The address of all services in this region.
    pub fn endpoint(&self, region: &str) -> String {
        let relay = if region == OTHER_REGION { &self.other } else { &self.server.relay };
        format!("http://{}", relay.address())
    }

    /// Changes the owner of [`KEY`].
    pub async fn owner(&self, owner: &Owner<'_>) -> Result<()> {
        let Owner { account, actions, quiet } = owner;
        let key = json!({
            "ID": KEY, "Secret": SECRET, "Account": account, "Actions": actions, "Quiet": quiet,
        });
        self.server.control.tell("key", &key).await
    }

    /// Adds a role with these rights in [`ACCOUNT`]. A caller gets it with this token of this identity provider.
    pub async fn role(&self, role: &str, provider: &str, token: &str, actions: &[String]) -> Result<()> {
        let role = json!({
            "Role": role, "Provider": provider, "Subject": token, "Account": ACCOUNT, "Actions": actions,
        });
        self.server.control.tell("role", &role).await
    }

    /// Expires all credentials of roles that were given out so far.
    pub async fn expire(&self) -> Result<()> {
        self.server.control.tell("expire", &()).await
    }

    /// Makes a VM. Returns its identifier.
    pub async fn make(&self, instance: &Instance<'_>) -> Result<String> {
        let has = |feature| instance.features.contains(&feature);
        let wanted = json!({
            "Account": instance.account, "Region": instance.region, "Name": instance.name,
            "Stopped": has(Feature::Stopped), "External": has(Feature::External),
            "UserData": has(Feature::UserData), "Locked": has(Feature::Locked),
        });
        self.server.control.ask("instance", &wanted).await
    }

    /// Changes description and charge type of a VM's address and, if `user` is not empty, the interface that uses it.
    pub async fn address(&self, id: &str, description: &str, charge: &str, user: &str) -> Result<()> {
        let wanted = json!({ "Instance": id, "Description": description, "Charge": charge, "Nic": user });
        self.server.control.tell("address", &wanted).await
    }

    /// Names a VM's address as the operator does before it deletes the VM.
    pub async fn name_address(&self, id: &str) -> Result<()> {
        self.server.control.tell("name", &id).await
    }

    /// Keeps the further interface of a VM when the VM is deleted.
    pub async fn keep_interface(&self, id: &str) -> Result<()> {
        self.server.control.tell("keep", &id).await
    }

    /// Removes a VM at once, with its system disks and, if asked for, its addresses and interfaces.
    pub async fn remove(&self, id: &str, belongings: bool) -> Result<()> {
        self.server.control.tell("remove", &json!({ "ID": id, "Belongings": belongings })).await
    }

    /// Makes the cloud behave so to this VM from now on.
    pub async fn behave(&self, id: &str, behavior: Behavior) -> Result<()> {
        self.server.control.tell("behave", &json!({ "ID": id, "Behavior": behavior })).await
    }

    /// Sets the most things on a page of a list.
    pub async fn page_size(&self, size: u32) -> Result<()> {
        self.server.control.tell("pages", &size).await
    }

    /// What is left of a VM.
    pub async fn left(&self, id: &str) -> Result<Left> {
        self.server.control.ask("left", &id).await
    }
}
