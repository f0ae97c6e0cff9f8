//! Docker's API by podman, behind a relay that can disturb requests.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use anyhow::Context as _;
use async_trait::async_trait;
use peerpod_operator::provider::{
    Cloud, Error, Provider,
    contract::{Behavior, Cannot, Example, Kind, Left, Peer},
    docker,
};
use peers::{
    Does, HttpRelay, Seen,
    docker::{Container, Podman},
};
use tempfile::TempDir;

use super::{failed, name_of};
use crate::Settings;

pub(super) struct Docker {
    podman: Podman,
    relay: HttpRelay,
    pub(super) settings: Settings,
    /// The volumes of all containers, by the containers' names.
    volumes: Mutex<HashMap<String, Vec<String>>>,
    /// A container whose removal was accepted but not done.
    later: Mutex<Option<String>>,
    _dir: TempDir,
}

impl Docker {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let dir = tempfile::tempdir().context("making a folder")?;
        let podman = Podman::start(dir.path()).await?;
        let relay = HttpRelay::start(podman.address()).await?;
        let settings = Settings::docker(relay.address());
        let (volumes, later) = (Mutex::default(), Mutex::default());
        Ok(Self { podman, relay, settings, volumes, later, _dir: dir })
    }

    fn answer(&self, when: impl Fn(&Seen) -> bool + Send + Sync + 'static, status: u16, body: &str) {
        self.relay.rule(when, Does::Answer { status, headers: Vec::new(), body: body.to_owned() });
    }
}

fn volume(container: &str) -> String {
    format!("data-of-{container}")
}

#[async_trait]
impl Peer for Docker {
    fn cloud(&self) -> &Cloud {
        &docker::CLOUD
    }

    fn open(&self) -> Result<Box<dyn Provider>, Error> {
        self.settings.open()
    }

    async fn make(&self, kind: Kind, pod: &str) -> Result<Example, Cannot> {
        let name = name_of(kind, pod);
        let data = volume(&name);
        let running = Container { name: &name, running: true, volume: None, cluster_uid: None };
        let container = match kind {
            Kind::Running | Kind::Foreign => running,
            Kind::Stopped => Container { running: false, ..running },
            Kind::WithUserData => Container { volume: Some(&data), ..running },
            Kind::Remains => return Err(Cannot::Here("Docker removes a container and its volumes together")),
            Kind::InAnotherScope => {
                return Err(Cannot::Here("a container's identifier says nothing of its daemon"));
            }
        };
        let id = self.podman.make(&container).await.map_err(failed)?;
        let volumes = self.podman.volumes_of(&name).map_err(failed)?;
        self.volumes.lock().map_err(|_| "a test panicked")?.insert(name.clone(), volumes);
        Ok(Example { id, name })
    }

    async fn left(&self, example: &Example) -> Result<Left, Cannot> {
        let vm = self.podman.has_container(&example.name).map_err(failed)?;
        let all = self.volumes.lock().map_err(|_| "a test panicked")?.get(&example.name).cloned();
        let mut left = Left { vm, ..Left::default() };
        for name in all.unwrap_or_default() {
            let is_there = self.podman.has_volume(&name).map_err(failed)?;
            if name == volume(&example.name) {
                left.user_data = is_there;
            } else {
                left.belongings += usize::from(is_there);
            }
        }
        Ok(left)
    }

    async fn remove(&self, example: &Example) -> Result<(), Cannot> {
        self.podman.remove(&example.name).map_err(failed)
    }

    async fn behave(&self, behavior: Behavior, example: &Example) -> Result<(), Cannot> {
        match behavior {
            Behavior::Well => {
                self.relay.forget_rules();
                let later = self.later.lock().map_err(|_| "a test panicked")?.take();
                if let Some(container) = later {
                    self.podman.remove(&container).map_err(failed)?;
                }
            }
            Behavior::Unauthorized => {
                self.answer(|_| true, 403, r#"{"message":"authorization denied by plugin"}"#);
            }
            Behavior::Throttled => self.answer(|_| true, 429, "{}"),
            Behavior::Hangs => self.relay.rule(|_| true, Does::Hang),
            Behavior::CutsListsOff => {
                self.relay.rule(|seen| seen.path.contains("containers/json"), Does::CutOff);
            }
            Behavior::DeletesLater => {
                *self.later.lock().map_err(|_| "a test panicked")? = Some(example.name.clone());
                let removing = Arc::new(AtomicBool::new(false));
                let begun = Arc::clone(&removing);
                let removes = move |seen: &Seen| {
                    begun.fetch_or(seen.method == "DELETE", Relaxed);
                    seen.method == "DELETE"
                };
                self.answer(removes, 409, r#"{"message":"removal of container x is already in progress"}"#);
                let Example { id, name } = example;
                let shown = format!(
                    r#"{{"Id":"{id}","Name":"/{name}","Created":"","State":{{"Status":"removing"}},"Config":{{}}}}"#
                );
                self.answer(move |_| removing.load(Relaxed), 200, &shown);
            }
            Behavior::HoldsBelongings => {
                return Err(Cannot::Here("Docker removes a container and its volumes together"));
            }
            Behavior::NotYetShown => return Err(Cannot::Here("Docker shows a container at once")),
        }
        Ok(())
    }
}
