//! All clouds, with one operator for all of them.

use std::path::Path;

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use peerpod_operator::provider::{
    CLOUDS,
    contract::{Behavior, Cannot, Example, Kind, Left},
};
use testbed::{OperatorOptions, Testbed, contract::Played};

use super::PROGRAM;

/// A cloud under its name.
pub struct CloudPeer {
    pub name: &'static str,
    played: Played,
}

impl CloudPeer {
    /// Starts all clouds, with these further settings.
    pub async fn start_all(testbed: &Testbed, settings: &[(&str, &str)]) -> Result<Vec<Self>> {
        let all = CLOUDS.into_iter().map(async |cloud| {
            let mut played = Played::start(cloud.name(), Some(testbed)).await.context(cloud.name())?;
            let settings = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            played.settings.config_map.extend(settings);
            anyhow::Ok(Self { name: cloud.name(), played })
        });
        try_join_all(all).await
    }

    /// The options of an operator for all of them, the first by its ordinary settings.
    pub fn options(clouds: &[Self], dir: &Path) -> Result<OperatorOptions> {
        let (first, further) = clouds.split_first().context("there is no cloud")?;
        let mut options = OperatorOptions::new(PROGRAM, dir.join("operator"), first.played.settings.clone());
        for Self { name, played } in further {
            options.add_cloud(name, &played.settings)?;
        }
        Ok(options)
    }

    /// Makes a resource for the Pod of this name; `None` if the cloud has no such kind.
    pub async fn make(&self, kind: Kind, pod: &str) -> Result<Option<Example>> {
        self.possible(self.played.peer.make(kind, pod).await, &format!("making {kind:?} for {pod}"))
    }

    /// Makes a running pod VM.
    pub async fn make_vm(&self, pod: &str) -> Result<Example> {
        self.make(Kind::Running, pod).await?.context("every cloud has VMs that run")
    }

    /// What is left of it.
    pub async fn left(&self, example: &Example) -> Result<Left> {
        let left = self.played.peer.left(example).await;
        self.possible(left, "looking for a VM")?.context("every cloud shows its VMs")
    }

    /// Removes it without the operator.
    pub async fn remove(&self, example: &Example) -> Result<()> {
        let removed = self.played.peer.remove(example).await;
        self.possible(removed, "removing a VM")?.context("every cloud removes VMs")
    }

    /// Makes the cloud behave so from now on. Returns false if the cloud cannot.
    pub async fn behave(&self, behavior: Behavior, example: &Example) -> Result<bool> {
        let behaves = self.played.peer.behave(behavior, example).await;
        Ok(self.possible(behaves, &format!("{behavior:?}"))?.is_some())
    }

    fn possible<T>(&self, outcome: Result<T, Cannot>, what: &str) -> Result<Option<T>> {
        match outcome {
            Ok(done) => Ok(Some(done)),
            Err(Cannot::Here(_)) => Ok(None),
            Err(Cannot::Failed(error)) => Err(anyhow::anyhow!("{}: {what}: {error}", self.name)),
        }
    }
}
