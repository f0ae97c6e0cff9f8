//! Alibaba Cloud ECS: answers that never count as absence, refusals, remains, and the operator's credentials.

mod addresses;
mod check;
mod deletion;
mod doubt;
mod identity;

use anyhow::Result;
use peerpod_operator::provider::{
    Claim, Error, ErrorClass, InstanceId, Provider, Stage,
    alibabacloud::{CLOUD, POLICY},
    ownership,
};
use peers::{
    Does,
    alibaba::{Alibaba, Left, REGION},
};
use tempfile::TempDir;
use testbed::Settings;

struct Cloud {
    dir: TempDir,
    peer: Alibaba,
}

impl Cloud {
    async fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let peer = Alibaba::start(dir.path(), POLICY).await?;
        Ok(Self { dir, peer })
    }

    fn settings(&self) -> Settings {
        Settings::alibabacloud(&self.peer, REGION)
    }

    /// A new provider without any cached state.
    fn open(&self) -> Result<Box<dyn Provider>> {
        Ok(self.settings().open()?)
    }

    async fn describe(&self, id: &str) -> Result<Result<Stage, Error>> {
        let described = self.open()?.describe(&InstanceId::of(&CLOUD, id)?, &Claim::default()).await;
        Ok(described.map(|vm| vm.stage))
    }

    /// What is left of a VM of the Pod `web` after a complete deletion.
    async fn delete(&self, id: &str) -> Result<Left> {
        let provider = self.open()?;
        for _ in 0..20 {
            let described = provider.describe(&InstanceId::of(&CLOUD, id)?, &Claim::default()).await;
            match described {
                Err(gone) if gone.class == ErrorClass::NotFound => return self.peer.left(id).await,
                Ok(vm) if vm.stage == Stage::Leaving => {}
                described => {
                    provider.delete(&ownership::verify(described?, "web", CLOUD.name_limit)?).await?;
                }
            }
        }
        anyhow::bail!("{id} is still there: {:?}", self.peer.left(id).await?)
    }

    /// How many requests came so far, without those for the operator's identity.
    fn requests(&self) -> usize {
        self.peer.relay().seen().iter().filter(|seen| seen.path.contains('?')).count()
    }

    /// Answers requests whose queries contain this.
    fn answer(&self, is_for: &'static str, status: u16, body: &str) {
        let does = Does::Answer { status, headers: Vec::new(), body: body.to_owned() };
        self.peer.relay().rule(move |seen| seen.path.contains(is_for), does);
    }
}
