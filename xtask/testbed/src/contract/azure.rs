//! Microsoft's fake servers with a state, behind a relay that can disturb requests.

use anyhow::Context as _;
use async_trait::async_trait;
use peerpod_operator::provider::{
    Cloud, Error, Provider, azure,
    contract::{Behavior, Cannot, Example, Kind, Left, Peer},
};
use peers::{
    Does,
    azure::{Azure as Server, Behavior as Behaves, OTHER_GROUP, OTHER_SUBSCRIPTION, Vm},
};
use tempfile::TempDir;

use super::{failed, hinder, name_of};
use crate::Settings;

pub(super) struct Azure {
    peer: Server,
    pub(super) settings: Settings,
    _dir: TempDir,
}

impl Azure {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let dir = tempfile::tempdir().context("making a folder")?;
        let peer = Server::start(dir.path()).await?;
        let settings = Settings::azure(&peer.url());
        Ok(Self { peer, settings, _dir: dir })
    }
}

/// The name of the disk with a user's data that is attached to this VM.
fn user_data(vm: &str) -> String {
    format!("data-of-{vm}")
}

/// The name of a resource.
fn name(id: &str) -> &str {
    id.rsplit('/').next().unwrap_or_default()
}

#[async_trait]
impl Peer for Azure {
    fn cloud(&self) -> &Cloud {
        &azure::CLOUD
    }

    fn open(&self) -> Result<Box<dyn Provider>, Error> {
        self.settings.open()
    }

    async fn make(&self, kind: Kind, pod: &str) -> Result<Example, Cannot> {
        let name = name_of(kind, pod);
        let (vm, data) = (Vm::named(&name), user_data(&name));
        let vm = match kind {
            // Only the VM's power is off.
            Kind::Running | Kind::Stopped | Kind::Foreign => vm,
            Kind::WithUserData => Vm { data_disk: Some(&data), ..vm },
            Kind::InAnotherScope => Vm { subscription: OTHER_SUBSCRIPTION, group: OTHER_GROUP, ..vm },
            Kind::Remains => Vm { detach: true, ..vm },
        };
        let id = self.peer.make(&vm).await.map_err(failed)?;
        if kind == Kind::Remains {
            self.peer.remove(&id).await.map_err(failed)?;
        }
        Ok(Example { id, name })
    }

    async fn left(&self, example: &Example) -> Result<Left, Cannot> {
        let all = self.peer.resources().await.map_err(failed)?;
        let named = all.iter().map(|id| name(id));
        Ok(Left {
            vm: all.contains(&example.id),
            belongings: named.clone().filter(|name| *name == format!("{}-disk", example.name)).count(),
            user_data: named.clone().any(|name| name == user_data(&example.name)),
        })
    }

    async fn remove(&self, example: &Example) -> Result<(), Cannot> {
        self.peer.remove(&example.id).await.map_err(failed)
    }

    async fn behave(&self, behavior: Behavior, example: &Example) -> Result<(), Cannot> {
        let relay = self.peer.relay();
        let behaves = match behavior {
            Behavior::Well => {
                relay.forget_rules();
                Behaves::Well
            }
            Behavior::Unauthorized => Behaves::Unauthorized,
            Behavior::DeletesLater => Behaves::DeletesLater,
            Behavior::HoldsBelongings => Behaves::Locked,
            Behavior::NotYetShown => Behaves::Hidden,
            Behavior::Throttled | Behavior::Hangs => {
                let body =
                    r#"{"error":{"code":"TooManyRequests","message":"The request is being throttled."}}"#;
                hinder(relay, behavior, "/subscriptions/", body);
                return Ok(());
            }
            Behavior::CutsListsOff => {
                let does = Does::Answer { status: 503, headers: Vec::new(), body: String::new() };
                relay.rule(|seen| seen.path.contains("/fake_page_"), does);
                return Ok(());
            }
        };
        self.peer.behave(&example.id, behaves).await.map_err(failed)
    }
}
