//! vSphere: answers that never count as absence, refusals, and the steps of a deletion.

mod check;
mod deletion;
mod doubt;
mod session;

use anyhow::{Context as _, Result};
use peerpod_operator::provider::{
    Claim, Error, ErrorClass, InstanceId, OwnVm, Provider, Stage,
    vsphere::{CLOUD, PRIVILEGES},
};
use peers::{Does, vsphere::Vsphere};
use tempfile::TempDir;
use testbed::Settings;

/// What the request of a login contains that reads properties, too.
const OF_LOGIN: &str = "currentSession";

struct Stand {
    dir: TempDir,
    peer: Vsphere,
}

impl Stand {
    async fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let peer = Vsphere::start(dir.path(), &PRIVILEGES).await?;
        Ok(Self { dir, peer })
    }

    fn settings(&self) -> Settings {
        Settings::vsphere(&self.peer)
    }

    /// Settings with this key in the Secret, if it is one of the Secret's keys, or else in the ConfigMap.
    fn with(&self, key: &str, value: &str) -> Settings {
        let mut settings = self.settings();
        let is_secret = ["GOVC_USERNAME", "GOVC_PASSWORD", "GOVC_THUMBPRINT"].contains(&key);
        let data = if is_secret { &mut settings.secret } else { &mut settings.config_map };
        data.insert(key.to_owned(), value.to_owned());
        settings
    }

    async fn describe(&self, id: &str) -> Result<Result<Stage, Error>> {
        describe(&*self.settings().open()?, id).await
    }

    /// Fails unless the description of the VM is an error of this class with this text. The VM may be neither described nor absent.
    async fn doubted(&self, id: &str, class: ErrorClass, says: &str) -> Result<()> {
        match self.describe(id).await? {
            Err(error) if error.class == class && error.to_string().contains(says) => {}
            described => anyhow::bail!("{says}: {described:?}"),
        }
        self.peer.relay().forget_rules();
        Ok(())
    }

    /// The methods that the provider has called so far.
    fn methods(&self) -> Vec<String> {
        let bodies = self.peer.relay().seen().into_iter().map(|seen| seen.body);
        bodies.filter_map(|body| Some(body.split("<Body><").nth(1)?.split(' ').next()?.to_owned())).collect()
    }

    /// Answers calls of this method in a session.
    fn answer(&self, method: &'static str, status: u16, body: &str) {
        let does = Does::Answer { status, headers: Vec::new(), body: body.to_owned() };
        let method = format!("<Body><{method} ");
        self.peer
            .relay()
            .rule(move |seen| seen.body.contains(&method) && !seen.body.contains(OF_LOGIN), does);
    }
}

async fn describe(provider: &dyn Provider, id: &str) -> Result<Result<Stage, Error>> {
    let described = provider.describe(&InstanceId::of(&CLOUD, id)?, &Claim::default()).await;
    Ok(described.map(|vm| vm.stage))
}

async fn refused(provider: &dyn Provider, own: &OwnVm) -> Result<Error> {
    provider.delete(own).await.err().context("it was deleted")
}
