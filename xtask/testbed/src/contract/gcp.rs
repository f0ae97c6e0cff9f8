//! A Compute Engine on Google's own types, behind a relay that can disturb requests.

use anyhow::Context as _;
use async_trait::async_trait;
use peerpod_operator::provider::{
    Cloud, Error, Provider,
    contract::{Behavior, Cannot, Example, Kind, Left, Peer},
    gcp,
};
use peers::{
    Does,
    gcp::{Behavior as Behaves, ComputeEngine, Instance, OTHER_PROJECT, OTHER_ZONE, PERMISSIONS},
};
use tempfile::TempDir;

use super::{failed, name_of};
use crate::Settings;

pub(super) struct Gcp {
    peer: ComputeEngine,
    pub(super) settings: Settings,
    _dir: TempDir,
}

impl Gcp {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let dir = tempfile::tempdir().context("making a folder")?;
        let peer = ComputeEngine::start(dir.path()).await?;
        let account = peer.account("operator@peer-pods", &PERMISSIONS, peer.address()).await?;
        let settings = Settings::gcp(peer.address(), Some(account));
        Ok(Self { peer, settings, _dir: dir })
    }

    fn answer(&self, needle: &'static str, status: u16, headers: Vec<(&'static str, String)>, body: &str) {
        let does = Does::Answer { status, headers, body: body.to_owned() };
        self.peer.relay().rule(move |seen| seen.path.contains(needle), does);
    }
}

/// The instance of an example, by its recorded name or its recorded path.
fn instance(example: &Example) -> Instance<'_> {
    let running = Instance::running(&example.name);
    if example.id == example.name {
        return running;
    }
    Instance { project: OTHER_PROJECT, zone: OTHER_ZONE, ..running }
}

#[async_trait]
impl Peer for Gcp {
    fn cloud(&self) -> &Cloud {
        &gcp::CLOUD
    }

    fn open(&self) -> Result<Box<dyn Provider>, Error> {
        self.settings.open()
    }

    async fn make(&self, kind: Kind, pod: &str) -> Result<Example, Cannot> {
        let name = name_of(kind, pod);
        let running = Instance::running(&name);
        let instance = match kind {
            Kind::Running | Kind::Foreign => running,
            Kind::Stopped => Instance { status: "TERMINATED", ..running },
            Kind::WithUserData => Instance { user_disk: true, ..running },
            Kind::InAnotherScope => Instance { project: OTHER_PROJECT, zone: OTHER_ZONE, ..running },
            Kind::Remains => {
                return Err(Cannot::Here("Compute Engine deletes a VM and its own disks in one operation"));
            }
        };
        self.peer.make(&instance).await.map_err(failed)?;
        let id = if kind == Kind::InAnotherScope { instance.path() } else { name.clone() };
        Ok(Example { id, name })
    }

    async fn left(&self, example: &Example) -> Result<Left, Cannot> {
        let state = self.peer.state(&instance(example)).await.map_err(failed)?;
        Ok(Left { vm: state.instance, belongings: state.disk.into(), user_data: state.user_disk })
    }

    async fn remove(&self, example: &Example) -> Result<(), Cannot> {
        self.peer.remove(&instance(example)).await.map_err(failed)
    }

    async fn behave(&self, behavior: Behavior, example: &Example) -> Result<(), Cannot> {
        const API: &str = "/compute/v1/";
        const REFUSED: &str =
            r#"{"error":{"code":403,"message":"Required permission","errors":[{"reason":"forbidden"}]}}"#;
        const TOO_MANY: &str =
            r#"{"error":{"code":403,"message":"Quota exceeded","errors":[{"reason":"rateLimitExceeded"}]}}"#;
        let mut behaves = Behaves::default();
        match behavior {
            Behavior::Well => self.peer.relay().forget_rules(),
            Behavior::Unauthorized => self.answer(API, 403, Vec::new(), REFUSED),
            Behavior::Throttled => self.answer(API, 403, vec![("retry-after", "1".to_owned())], TOO_MANY),
            Behavior::Hangs => self.peer.relay().rule(|seen| seen.path.contains(API), Does::Hang),
            Behavior::DeletesLater => behaves.hold_operations = true,
            Behavior::NotYetShown => behaves.hidden = Some(&example.name),
            Behavior::CutsListsOff => {
                behaves.page_size = Some(1);
                self.answer("pageToken", 503, Vec::new(), "");
            }
            Behavior::HoldsBelongings => {
                return Err(Cannot::Here("Compute Engine deletes a VM and its own disks in one operation"));
            }
        }
        self.peer.behave(&behaves).await.map_err(failed)
    }
}
