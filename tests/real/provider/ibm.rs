//! Helpers of the tests of IBM's two clouds.

use std::path::Path;

use anyhow::Result;
use peerpod_operator::provider::{Claim, Cloud, Error, InstanceId, Provider, Stage};
use peers::{Does, ibm::Ibm};
use tempfile::TempDir;
use testbed::Settings;

/// A cloud, and settings for it.
pub struct Stand {
    dir: TempDir,
    pub peer: Ibm,
    cloud: &'static Cloud,
    /// The start of the paths of its API.
    api: &'static str,
    settings: Settings,
}

impl Stand {
    pub async fn start(
        cloud: &'static Cloud,
        actions: &[&str],
        api: &'static str,
        settings: impl FnOnce(&Ibm) -> Settings,
    ) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let peer = Ibm::start(dir.path(), actions).await?;
        Ok(Self { settings: settings(&peer), dir, peer, cloud, api })
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn settings(&self) -> Settings {
        self.settings.clone()
    }

    /// A new provider without any cached state.
    pub fn open(&self) -> Result<Box<dyn Provider>> {
        Ok(self.settings.open()?)
    }

    pub async fn describe(&self, id: &str) -> Result<Result<Stage, Error>> {
        let described = self.open()?.describe(&InstanceId::of(self.cloud, id)?, &Claim::default()).await;
        Ok(described.map(|vm| vm.stage))
    }

    /// The requests to the API that came so far.
    pub fn requests(&self) -> Vec<String> {
        let seen = self.peer.relay().seen().into_iter().filter(|seen| seen.path.starts_with(self.api));
        seen.map(|seen| seen.method).collect()
    }

    /// Answers requests whose paths contain this.
    pub fn answer(&self, is_for: &'static str, status: u16, body: &str) {
        let does = Does::Answer { status, headers: Vec::new(), body: body.to_owned() };
        self.peer.relay().rule(move |seen| seen.path.contains(is_for), does);
    }
}
