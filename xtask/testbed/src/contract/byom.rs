//! A pool of machines on a real API server, behind a client that can disturb requests. The machines themselves do not exist.

use std::{
    future::pending,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Context as _;
use async_trait::async_trait;
use hyper::{Request, Response};
use kube::{Client, client::Body};
use peerpod_operator::{
    NAMESPACE, install,
    provider::{
        Cloud, Error, Provider, byom,
        contract::{Behavior, Cannot, Example, Kind, Left, Peer},
    },
};
use tempfile::TempDir;
use tower::{BoxError, service_fn};

use super::failed;
use crate::{
    BringYourOwn, Options, Settings, Testbed,
    byom_pool::machine,
    wait::{self, DEADLINE},
};

/// The number of machines.
const MACHINES: u8 = 40;

pub(super) struct Byom {
    pool: BringYourOwn,
    pub(super) settings: Settings,
    /// The operator's client.
    client: Client,
    fault: Fault,
    /// The cluster, if it is the pool's own.
    _testbed: Option<Testbed>,
    _dir: TempDir,
}

type Fault = Arc<Mutex<Option<Does>>>;

#[derive(Clone, Copy)]
enum Does {
    Answer(u16),
    Hang,
}

impl Byom {
    /// A pool in a cluster of its own.
    pub(super) async fn start() -> anyhow::Result<Self> {
        let dir = tempfile::tempdir().context("making a folder")?;
        let testbed = Testbed::start(&Options::new(dir.path().join("testbed"))).await?;
        let pool = Self::start_in(&testbed).await?;
        Ok(Self { _testbed: Some(testbed), ..pool })
    }

    /// A pool in this cluster.
    pub(super) async fn start_in(testbed: &Testbed) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir().context("making a folder")?;
        let rights = install::cloud_rights(&byom::CLOUD, &install::Options::default())?;
        testbed.apply("rights", &rights).await?;
        let pool = BringYourOwn::of(testbed.client(), NAMESPACE);
        pool.create(&(1..=MACHINES).map(machine).collect::<Vec<_>>()).await?;
        let fault = Fault::default();
        let client = testbed.client_of(install::NAME).await?;
        let may = BringYourOwn::of(client.clone(), NAMESPACE);
        let answer = async || may.content().await.map(drop);
        wait::eventually("the operator may read the pool", DEADLINE, answer).await?;
        let client = hindered(client, Arc::clone(&fault));
        let settings = Settings::byom(&dir.path().join("id_rsa"));
        Ok(Self { pool, settings, client, fault, _testbed: None, _dir: dir })
    }

    fn does(&self, fault: Option<Does>) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }
}

/// A client that disturbs requests while there is a fault.
fn hindered(client: Client, fault: Fault) -> Client {
    let service = service_fn(move |request: Request<Body>| {
        let (client, fault) = (client.clone(), *fault.lock().unwrap_or_else(PoisonError::into_inner));
        async move {
            match fault {
                None => Ok::<_, BoxError>(client.send(request).await?),
                Some(Does::Hang) => pending().await,
                Some(Does::Answer(code)) => Ok(Response::builder().status(code).body(Body::empty())?),
            }
        }
    });
    Client::new(service, NAMESPACE)
}

#[async_trait]
impl Peer for Byom {
    fn cloud(&self) -> &Cloud {
        &byom::CLOUD
    }

    fn open(&self) -> Result<Box<dyn Provider>, Error> {
        self.settings.open_in(self.client.clone(), None)
    }

    async fn make(&self, kind: Kind, pod: &str) -> Result<Example, Cannot> {
        let pod = match kind {
            Kind::Running => pod.to_owned(),
            Kind::Foreign => format!("database-{pod}"),
            Kind::Stopped => return Err(Cannot::Here("whether a machine is on is nothing to the pool")),
            Kind::WithUserData => return Err(Cannot::Here("a machine is the user's, and stays")),
            Kind::Remains => return Err(Cannot::Here("one write of the pool ends an allocation")),
            Kind::InAnotherScope => return Err(Cannot::Here("an address says nothing of its pool")),
        };
        let id = self.pool.allocate(&pod).await.map_err(failed)?;
        Ok(Example { name: pod, id })
    }

    async fn left(&self, example: &Example) -> Result<Left, Cannot> {
        let content = self.pool.content().await.map_err(failed)?;
        let vm = content.allocated.get(&example.id) == Some(&example.name);
        Ok(Left { vm, ..Left::default() })
    }

    async fn remove(&self, example: &Example) -> Result<(), Cannot> {
        self.pool.end(&example.id).await.map_err(failed)
    }

    async fn behave(&self, behavior: Behavior, _: &Example) -> Result<(), Cannot> {
        self.does(match behavior {
            Behavior::Well => None,
            Behavior::Unauthorized => Some(Does::Answer(403)),
            Behavior::Throttled => Some(Does::Answer(429)),
            Behavior::CutsListsOff => Some(Does::Answer(503)),
            Behavior::Hangs => Some(Does::Hang),
            Behavior::DeletesLater => return Err(Cannot::Here("one write of the pool ends an allocation")),
            Behavior::HoldsBelongings => return Err(Cannot::Here("nothing belongs to an allocation")),
            Behavior::NotYetShown => return Err(Cannot::Here("the pool shows an allocation at once")),
        });
        Ok(())
    }
}
