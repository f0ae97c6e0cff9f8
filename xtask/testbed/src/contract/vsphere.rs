//! vCenter, played by its maker's simulator, behind a relay that can disturb requests.

use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;
use peerpod_operator::provider::{
    Accepted, Claim, Cloud, Error, Finding, InstanceId, OwnVm, Pages, Provider, Stage, Vm,
    contract::{Behavior, Cannot, Example, Kind, Left, Peer},
    vsphere,
};
use peers::{
    Does,
    vsphere::{Behavior as Behaves, Machine, PATH, USER, Vsphere as Server},
};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use super::{failed, hindrance, name_of};
use crate::Settings;

/// How long a VM may take until it is off, and how often to check.
const POWER_OFF: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

pub(super) struct Vsphere {
    peer: Server,
    pub(super) settings: Settings,
    _dir: TempDir,
}

/// Looks again after an accepted deletion, as the operator does. While the VM is neither being deleted nor gone, deletes it again,
/// because the first deletion only powers it off.
struct LooksAgain(Box<dyn Provider>);

impl Vsphere {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let dir = tempfile::tempdir().context("making a folder")?;
        // The operator has only the rights that its documentation asks for.
        let peer = Server::start(dir.path(), &vsphere::PRIVILEGES).await?;
        peer.page_size(2).await?;
        let settings = Settings::vsphere(&peer);
        Ok(Self { peer, settings, _dir: dir })
    }
}

#[async_trait]
impl Provider for LooksAgain {
    async fn describe(&self, id: &InstanceId, claim: &Claim) -> Result<Vm, Error> {
        self.0.describe(id, claim).await
    }

    async fn delete(&self, vm: &OwnVm) -> Result<Accepted, Error> {
        let powered_off = timeout(POWER_OFF, async {
            loop {
                let accepted = self.0.delete(vm).await?;
                match self.0.describe(&vm.vm().id, &Claim::default()).await {
                    Ok(Vm { stage: Stage::Present, .. }) => sleep(PAUSE).await,
                    _ => return Ok(accepted),
                }
            }
        });
        match powered_off.await {
            Ok(accepted) => accepted,
            Err(_) => self.0.delete(vm).await,
        }
    }

    async fn list(&self, pages: Pages<'_>) -> Result<(), Error> {
        self.0.list(pages).await
    }

    async fn identity(&self) -> Result<Option<String>, Error> {
        self.0.identity().await
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        self.0.examine().await
    }
}

#[async_trait]
impl Peer for Vsphere {
    fn cloud(&self) -> &Cloud {
        &vsphere::CLOUD
    }

    fn open(&self) -> Result<Box<dyn Provider>, Error> {
        Ok(Box::new(LooksAgain(self.settings.open()?)))
    }

    async fn make(&self, kind: Kind, pod: &str) -> Result<Example, Cannot> {
        let name = name_of(kind, pod);
        let machine = Machine::named(&name);
        let machine = match kind {
            Kind::Running | Kind::Foreign => machine,
            Kind::Stopped => Machine { stopped: true, ..machine },
            Kind::WithUserData => {
                return Err(Cannot::Here(
                    "a VM with a user's disk is not deleted: vCenter would delete the disk, too",
                ));
            }
            Kind::Remains => return Err(Cannot::Here("a VM goes with its disks")),
            Kind::InAnotherScope => {
                return Err(Cannot::Here("a VM's identifier says nothing of its vCenter"));
            }
        };
        let id = self.peer.make(&machine).await.map_err(failed)?;
        Ok(Example { id, name })
    }

    async fn left(&self, example: &Example) -> Result<Left, Cannot> {
        let left = self.peer.left(&example.id, &example.name).await.map_err(failed)?;
        Ok(Left { vm: left.vm, belongings: usize::try_from(left.own)?, user_data: left.data > 0 })
    }

    async fn remove(&self, example: &Example) -> Result<(), Cannot> {
        self.peer.remove(&example.id).await.map_err(failed)
    }

    async fn behave(&self, behavior: Behavior, example: &Example) -> Result<(), Cannot> {
        let (relay, id) = (self.peer.relay(), &example.id);
        match behavior {
            Behavior::Well => {
                relay.forget_rules();
                self.peer.behave(id, Behaves::Well).await.map_err(failed)?;
                self.peer.grant(USER, PATH, &vsphere::PRIVILEGES, true).await.map_err(failed)?;
            }
            Behavior::Unauthorized => self.peer.grant(USER, PATH, &[], true).await.map_err(failed)?,
            Behavior::DeletesLater => self.peer.behave(id, Behaves::DeletesLater).await.map_err(failed)?,
            Behavior::NotYetShown => self.peer.behave(id, Behaves::Hidden).await.map_err(failed)?,
            Behavior::HoldsBelongings => return Err(Cannot::Here("a VM goes with its disks")),
            Behavior::Throttled | Behavior::Hangs => {
                let of_login = ["RetrieveServiceContent", "Login", "currentSession"];
                let is_login = move |body: &str| of_login.iter().any(|it| body.contains(it));
                relay.rule(move |seen| !is_login(&seen.body), hindrance(behavior, ""));
            }
            Behavior::CutsListsOff => {
                relay.rule(|seen| seen.body.contains("ContinueRetrievePropertiesEx"), Does::CutOff);
            }
        }
        Ok(())
    }
}
