//! IBM Cloud's VPC, checked by IBM's own library, behind a relay that can disturb requests.

use anyhow::Context as _;
use async_trait::async_trait;
use peerpod_operator::provider::{
    Cloud, Error, Provider,
    contract::{Behavior, Cannot, Example, Kind, Left, Peer},
    ibmcloud,
};
use peers::{
    Does,
    ibm::{Ibm, Instance, REGION},
};
use tempfile::TempDir;

use super::{failed, ibm, name_of};
use crate::Settings;

/// VPC's API.
const API: ibm::Api = ibm::Api {
    path: "/vpc/",
    too_many: r#"{"errors":[{"code":"rate_limit_exceeded","message":"Too many requests"}]}"#,
    no_remains: "VPC deletes a VM and what is its own at once",
    cut_lists_off: |relay| {
        let does = Does::Answer { status: 503, headers: Vec::new(), body: String::new() };
        relay.rule(|seen| seen.path.contains("&start="), does);
    },
};

pub(super) struct IbmCloud {
    peer: Ibm,
    pub(super) settings: Settings,
    _dir: TempDir,
}

impl IbmCloud {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let dir = tempfile::tempdir().context("making a folder")?;
        // The operator has only the rights that its documentation asks for.
        let peer = Ibm::start(dir.path(), &ibmcloud::ACTIONS).await?;
        // Only credentials that can see pod VMs prove that a VM is absent.
        peer.make(&Instance::named("podvm-of-somebody-else-1a2b3c4d")).await?;
        peer.page_size(2).await?;
        let settings = Settings::ibmcloud(&peer, REGION);
        Ok(Self { peer, settings, _dir: dir })
    }
}

#[async_trait]
impl Peer for IbmCloud {
    fn cloud(&self) -> &Cloud {
        &ibmcloud::CLOUD
    }

    fn open(&self) -> Result<Box<dyn Provider>, Error> {
        self.settings.open()
    }

    async fn make(&self, kind: Kind, pod: &str) -> Result<Example, Cannot> {
        let name = name_of(kind, pod);
        let instance = Instance { tags: &["coco-pod-vm:a", "cluster:test"], ..Instance::named(&name) };
        let instance = match kind {
            Kind::Running | Kind::Foreign => instance,
            Kind::Stopped => Instance { stopped: true, ..instance },
            Kind::WithUserData => Instance { user_data: true, ..instance },
            Kind::Remains => return Err(Cannot::Here(API.no_remains)),
            Kind::InAnotherScope => {
                return Err(Cannot::Here("an instance's identifier says nothing of its region"));
            }
        };
        let id = self.peer.make(&instance).await.map_err(failed)?;
        Ok(Example { id, name })
    }

    async fn left(&self, example: &Example) -> Result<Left, Cannot> {
        ibm::left(&self.peer, example).await
    }

    async fn remove(&self, example: &Example) -> Result<(), Cannot> {
        self.peer.remove(&example.id).await.map_err(failed)
    }

    async fn behave(&self, behavior: Behavior, example: &Example) -> Result<(), Cannot> {
        ibm::behave(&self.peer, &API, behavior, example).await
    }
}
