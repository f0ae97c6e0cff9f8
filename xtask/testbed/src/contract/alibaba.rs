//! Alibaba Cloud, checked by its own libraries, behind a relay that can disturb requests.

use anyhow::Context as _;
use async_trait::async_trait;
use peerpod_operator::provider::{
    Cloud, Error, Provider, alibabacloud,
    contract::{Behavior, Cannot, Example, Kind, Left, Peer},
};
use peers::{
    Does,
    alibaba::{Alibaba, Behavior as Behaves, Feature, Instance, REGION},
};
use tempfile::TempDir;

use super::{failed, hinder, name_of};
use crate::Settings;

const TOO_MANY: &str =
    r#"{"Code":"Throttling.User","Message":"Request was denied due to user flow control."}"#;

pub(super) struct AlibabaCloud {
    peer: Alibaba,
    pub(super) settings: Settings,
    _dir: TempDir,
}

impl AlibabaCloud {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let dir = tempfile::tempdir().context("making a folder")?;
        // The operator has only the rights that its documentation asks for.
        let peer = Alibaba::start(dir.path(), alibabacloud::POLICY).await?;
        peer.page_size(2).await?;
        let settings = Settings::alibabacloud(&peer, REGION);
        Ok(Self { peer, settings, _dir: dir })
    }
}

#[async_trait]
impl Peer for AlibabaCloud {
    fn cloud(&self) -> &Cloud {
        &alibabacloud::CLOUD
    }

    fn open(&self) -> Result<Box<dyn Provider>, Error> {
        self.settings.open()
    }

    async fn make(&self, kind: Kind, pod: &str) -> Result<Example, Cannot> {
        let name = name_of(kind, pod);
        let features: &[_] = match kind {
            Kind::Running | Kind::Remains => &[Feature::External],
            Kind::Foreign => &[],
            Kind::Stopped => &[Feature::Stopped, Feature::External],
            Kind::WithUserData => &[Feature::UserData],
            Kind::InAnotherScope => {
                return Err(Cannot::Here("an instance's identifier says nothing of its region"));
            }
        };
        let instance = Instance { features, ..Instance::named(&name) };
        let id = self.peer.make(&instance).await.map_err(failed)?;
        if kind == Kind::Remains {
            self.peer.name_address(&id).await.map_err(failed)?;
            self.peer.remove(&id, false).await.map_err(failed)?;
        }
        Ok(Example { id, name })
    }

    async fn left(&self, example: &Example) -> Result<Left, Cannot> {
        let left = self.peer.left(&example.id).await.map_err(failed)?;
        let belongings = usize::try_from(left.nics + left.addresses + left.system)?;
        Ok(Left { vm: left.vm, belongings, user_data: left.data > 0 })
    }

    async fn remove(&self, example: &Example) -> Result<(), Cannot> {
        self.peer.remove(&example.id, true).await.map_err(failed)
    }

    async fn behave(&self, behavior: Behavior, example: &Example) -> Result<(), Cannot> {
        let behaves = match behavior {
            Behavior::Well => {
                self.peer.relay().forget_rules();
                // A VM whose deletion did not end is now removed with everything that belongs to it.
                if self.peer.left(&example.id).await.map_err(failed)?.deleting {
                    self.remove(example).await?;
                }
                Behaves::Well
            }
            Behavior::Unauthorized => Behaves::Unauthorized,
            Behavior::DeletesLater => Behaves::DeletesLater,
            Behavior::NotYetShown => Behaves::Hidden,
            Behavior::HoldsBelongings => Behaves::HoldsBelongings,
            Behavior::Throttled | Behavior::Hangs => {
                // The provider remembers whose its credentials are.
                hinder(self.peer.relay(), behavior, "/?", TOO_MANY);
                return Ok(());
            }
            // By then the instances have been listed.
            Behavior::CutsListsOff => {
                self.peer.relay().rule(|seen| seen.path.contains("Status=Available"), Does::CutOff);
                return Ok(());
            }
        };
        self.peer.behave(&example.id, behaves).await.map_err(failed)
    }
}
