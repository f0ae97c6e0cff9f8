//! IBM Power Virtual Server, checked by IBM's own library, behind a relay that can disturb requests.

use anyhow::Context as _;
use async_trait::async_trait;
use peerpod_operator::provider::{
    Cloud, Error, Provider,
    contract::{Behavior, Cannot, Example, Kind, Left, Peer},
    ibmcloud_powervs,
};
use peers::{
    Does,
    ibm::{Ibm, Server, WORKSPACE},
};
use tempfile::TempDir;

use super::{failed, ibm, name_of};
use crate::Settings;

/// The API of Power Virtual Server.
const API: ibm::Api = ibm::Api {
    path: "/pcloud/",
    too_many: r#"{"error":"too many requests"}"#,
    no_remains: "a server goes with what is its own at once",
    cut_lists_off: |relay| relay.rule(|seen| seen.path.ends_with("/pvm-instances"), Does::CutOff),
};

pub(super) struct PowerVs {
    peer: Ibm,
    pub(super) settings: Settings,
    _dir: TempDir,
}

impl PowerVs {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let dir = tempfile::tempdir().context("making a folder")?;
        // The operator has only the rights that its documentation asks for.
        let peer = Ibm::start(dir.path(), &ibmcloud_powervs::ACTIONS).await?;
        let settings = Settings::powervs(&peer, WORKSPACE);
        Ok(Self { peer, settings, _dir: dir })
    }
}

#[async_trait]
impl Peer for PowerVs {
    fn cloud(&self) -> &Cloud {
        &ibmcloud_powervs::CLOUD
    }

    fn open(&self) -> Result<Box<dyn Provider>, Error> {
        self.settings.open()
    }

    async fn make(&self, kind: Kind, pod: &str) -> Result<Example, Cannot> {
        let name = name_of(kind, pod);
        let server = Server::named(&name);
        let server = match kind {
            Kind::Running | Kind::Foreign => server,
            Kind::Stopped => Server { status: "SHUTOFF", ..server },
            Kind::WithUserData => Server { user_data: true, ..server },
            Kind::Remains => return Err(Cannot::Here(API.no_remains)),
            Kind::InAnotherScope => {
                return Err(Cannot::Here("a server's identifier says nothing of its workspace"));
            }
        };
        let id = self.peer.make_server(&server).await.map_err(failed)?;
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
