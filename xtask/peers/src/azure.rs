//! Azure: Microsoft's own fake servers with a state behind them, for one test.
//!
//! The server in `xtask/peers/azure/` asks Microsoft's client library for paths and versions, and lets its fake servers
//! (`armcompute/fake`, `armresources/fake` and others) read each request and write each answer. The endpoint for tokens and the
//! metadata service are at the same address.

use std::path::Path;

use anyhow::Result;
use cluster::tools::Module;
use serde::Serialize;
use serde_json::json;

use crate::{HttpRelay, go_server::GoServer};

/// The tenant of the pod VMs' subscriptions.
pub const TENANT: &str = "11111111-1111-1111-1111-111111111111";
/// Another one.
pub const OTHER_TENANT: &str = "22222222-2222-2222-2222-222222222222";
/// The subscription of the pod VMs.
pub const SUBSCRIPTION: &str = "33333333-3333-3333-3333-333333333333";
/// Another one of the same tenant.
pub const OTHER_SUBSCRIPTION: &str = "44444444-4444-4444-4444-444444444444";
/// The resource group of the pod VMs.
pub const GROUP: &str = "Pods";
/// Another one.
pub const OTHER_GROUP: &str = "elsewhere";
/// The application that may delete pod VMs, and its secret.
pub const CLIENT: &str = "55555555-5555-5555-5555-555555555555";
/// Its secret.
pub const SECRET: &str = "s3cr3t~of the app";
/// The actions that an application needs to delete pod VMs.
pub const ACTIONS: [&str; 9] = [
    "Microsoft.Compute/virtualMachines/read",
    "Microsoft.Compute/virtualMachines/delete",
    "Microsoft.Compute/disks/read",
    "Microsoft.Compute/disks/delete",
    "Microsoft.Network/networkInterfaces/read",
    "Microsoft.Network/networkInterfaces/delete",
    "Microsoft.Network/publicIPAddresses/read",
    "Microsoft.Network/publicIPAddresses/delete",
    "Microsoft.Resources/subscriptions/resourceGroups/resources/read",
];
/// The action that an application needs to find out its rights, as `check` does.
pub const ASK_FOR_RIGHTS: &str = "Microsoft.Authorization/permissions/read";

pub(crate) const PROGRAM: &str = "azure";
pub(crate) const MODULE: Module =
    Module::new("azure", concat!(env!("CARGO_MANIFEST_DIR"), "/azure"), &[(PROGRAM, "peers/azure")]);

/// The server, behind a relay.
pub struct Azure(GoServer);

/// An application, or the managed identity of a machine.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Principal<'a> {
    /// Its tenant.
    pub tenant: &'a str,
    /// Its identifier.
    pub client: &'a str,
    /// Its secret, if it has one.
    pub secret: &'a str,
    /// Whether it is the identity of the machine that the metadata service runs on.
    pub managed: bool,
    /// The actions that it may call in its tenant.
    pub actions: &'a [&'a str],
}

/// A VM to be made.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Vm<'a> {
    /// Its subscription.
    pub subscription: &'a str,
    /// The subscription's tenant.
    pub tenant: &'a str,
    /// Its resource group.
    pub group: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Whether its interface has a public address.
    pub address: bool,
    /// The name of a user's disk that is attached to it.
    pub data_disk: Option<&'a str>,
    /// Whether its interface and its disk stay when it is deleted.
    pub detach: bool,
}

/// How the cloud behaves to one resource.
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
    /// The VM is deleted, and its disk stays in use.
    HoldsDisk,
    /// A lock forbids its deletion.
    Locked,
    /// It is not shown.
    Hidden,
    /// The list of its group does not show it.
    Unlisted,
}

impl<'a> Vm<'a> {
    /// One in [`SUBSCRIPTION`] and [`GROUP`], with a public address.
    pub fn named(name: &'a str) -> Self {
        Self {
            subscription: SUBSCRIPTION,
            tenant: TENANT,
            group: GROUP,
            name,
            address: true,
            data_disk: None,
            detach: false,
        }
    }
}

impl<'a> Principal<'a> {
    /// The application that may delete pod VMs, with these rights instead of all that it needs.
    pub fn operator(actions: &'a [&'a str]) -> Self {
        Self { tenant: TENANT, client: CLIENT, secret: SECRET, managed: false, actions }
    }
}

impl Azure {
    /// Starts a server with its log in `dir`, a folder of its own. It has both tenants, both subscriptions and both groups of each, and
    /// an application with [`ACTIONS`]. If the server is not built yet, this takes minutes.
    pub async fn start(dir: &Path) -> Result<Self> {
        let azure = Self(GoServer::start(&MODULE, PROGRAM, dir).await?);
        azure.0.control.tell("address", &azure.url()).await?;
        for (subscription, group) in [
            (SUBSCRIPTION, GROUP),
            (SUBSCRIPTION, OTHER_GROUP),
            (OTHER_SUBSCRIPTION, GROUP),
            (OTHER_SUBSCRIPTION, OTHER_GROUP),
        ] {
            azure.group(subscription, TENANT, group).await?;
        }
        let all: Vec<_> = ACTIONS.into_iter().chain([ASK_FOR_RIGHTS]).collect();
        azure.principal(&Principal::operator(&all)).await?;
        Ok(azure)
    }

    /// The relay that forwards every request.
    pub fn relay(&self) -> &HttpRelay {
        &self.0.relay
    }

    /// The URL of Resource Manager, of the endpoint for tokens and of the metadata service.
    pub fn url(&self) -> String {
        format!("http://{}", self.0.relay.address())
    }

    /// Adds or changes a principal.
    pub async fn principal(&self, principal: &Principal<'_>) -> Result<()> {
        self.0.control.tell("principal", principal).await
    }

    /// A token of a cluster for this principal, valid for so many seconds.
    pub async fn assertion(&self, client: &str, seconds: i32) -> Result<String> {
        self.0.control.ask("assertion", &json!({ "Client": client, "Seconds": seconds })).await
    }

    /// Expires all access tokens that were given out so far.
    pub async fn expire(&self) -> Result<()> {
        self.0.control.tell("expire", &()).await
    }

    /// Adds a resource group, and its subscription.
    pub async fn group(&self, subscription: &str, tenant: &str, group: &str) -> Result<()> {
        let wanted = json!({ "Subscription": subscription, "Tenant": tenant, "Group": group });
        self.0.control.tell("group", &wanted).await
    }

    /// Makes a VM with an interface and a disk. Returns its identifier.
    pub async fn make(&self, vm: &Vm<'_>) -> Result<String> {
        self.0.control.ask("vm", vm).await
    }

    /// Removes any resource at once. With a VM its interface and disk are removed, unless they stay.
    pub async fn remove(&self, id: &str) -> Result<()> {
        self.0.control.tell("remove", &id).await
    }

    /// Makes the cloud behave so to this resource from now on.
    pub async fn behave(&self, id: &str, behavior: Behavior) -> Result<()> {
        self.0.control.tell("behave", &json!({ "ID": id, "Behavior": behavior })).await
    }

    /// The identifiers of all resources.
    pub async fn resources(&self) -> Result<Vec<String>> {
        self.0.control.ask("resources", &()).await
    }
}
