//! Machines that exist already. They restart and return to their pool, and no other Pod's allocation is lost.

mod allocations;
mod check;
mod claims;
mod contract;
mod restart;

use std::{
    cell::OnceCell,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Result, bail, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, api::DeleteParams};
use peerpod_operator::{
    NAMESPACE, install,
    provider::{Claim, ErrorClass, InstanceId, Provider, byom::CLOUD, ownership},
};
use peers::sshd::{self, Sshd};
use testbed::{
    BringYourOwn, Operator, OperatorOptions, Settings, Testbed,
    byom_pool::{POOL, machine},
    wait::{self, DEADLINE},
};

use crate::support::PROGRAM;

/// How long the operator must have seen a machine as absent until it releases the PeerPod.
const LOOK_AFTER: Duration = Duration::from_secs(30);

/// How long the release of a PeerPod may take after its machine has returned.
const RELEASED: Duration = DEADLINE.saturating_add(LOOK_AFTER);

/// The answer to the first look at a machine that is absent.
const ABSENT_FOR_NOW: ErrorClass = ErrorClass::Unsettled { check_again_after: LOOK_AFTER };

/// The folder that the machine serves by SFTP, within that of a test.
const ROOT: &str = "machine";

/// A machine, and a pool on the cluster.
struct Stand {
    sshd: Sshd,
    /// The folder that the machine serves by SFTP.
    root: PathBuf,
    pool: BringYourOwn,
}

impl Stand {
    /// Starts one machine, and adds to the pool so many addresses where no machine listens.
    async fn start(testbed: &Testbed, dir: &Path, further: u8) -> Result<Self> {
        let options = sshd::Options { sftp: Some(dir.join(ROOT)), ..sshd::Options::default() };
        Self::start_as(testbed, dir, further, options).await
    }

    /// The same, with a machine whose SFTP answers this late.
    async fn start_late(testbed: &Testbed, dir: &Path, late: Duration) -> Result<Self> {
        let (root, late) = (dir.join(ROOT), late.as_secs());
        let subsystem =
            format!("Subsystem sftp sleep {late}; exec /usr/lib/openssh/sftp-server -d {}", root.display());
        let options = sshd::Options { configuration: subsystem, ..sshd::Options::default() };
        Self::start_as(testbed, dir, 0, options).await
    }

    async fn start_as(testbed: &Testbed, dir: &Path, further: u8, options: sshd::Options) -> Result<Self> {
        let root = dir.join(ROOT);
        fs::create_dir_all(root.join("cidata"))?;
        let options = sshd::Options { port: Some(22), ..options };
        let sshd = Sshd::start(&dir.join("sshd"), &options).await?;
        let objects: Api<ConfigMap> = Api::namespaced(testbed.client(), NAMESPACE);
        if objects.get_opt(POOL).await?.is_some() {
            objects.delete(POOL, &DeleteParams::default()).await?;
        }
        let pool = BringYourOwn::of(testbed.client(), NAMESPACE);
        let machines = (1..=further).map(machine).chain([sshd.address().to_string()]);
        pool.create(&machines.collect::<Vec<_>>()).await?;
        let rights = install::cloud_rights(&CLOUD, &install::Options::default())?;
        testbed.apply("rights", &rights).await?;
        Ok(Self { sshd, root, pool })
    }

    fn address(&self) -> String {
        self.sshd.address().to_string()
    }

    fn settings(&self) -> Settings {
        Settings::byom(&self.sshd.key("ed25519"))
    }

    /// Gives the machine to a Pod.
    async fn give(&self, pod: &str) -> Result<()> {
        self.give_since(pod, Timestamp::now()).await
    }

    /// Gives the machine to a Pod as if at that time.
    async fn give_since(&self, pod: &str, since: Timestamp) -> Result<()> {
        self.pool.give(&format!("{pod}-0123456789abcdef"), &self.address(), pod, since).await
    }

    /// Waits until no Pod has a machine. Fails unless this one was told to restart.
    async fn returned(&self, deadline: Duration) -> Result<()> {
        let address = self.address();
        wait::eventually("the machine is back in the pool", deadline, async || {
            let content = self.pool.content().await?;
            ensure!(content.allocations == 0 && content.available.contains(&address), "{content:?}");
            Ok(())
        })
        .await?;
        ensure!(self.told()?.as_deref() == Some("reboot"), "the machine was not told to restart");
        Ok(())
    }

    /// The message that the machine got since the last call.
    fn told(&self) -> Result<Option<String>> {
        let path = self.root.join("cidata/reboot");
        if !path.exists() {
            return Ok(None);
        }
        let text = fs::read_to_string(&path)?;
        fs::remove_file(path)?;
        Ok(Some(text))
    }
}

/// The claim of a PeerPod of this Pod that was made just now.
fn claim(pod: &str) -> Claim {
    let now = Timestamp::now();
    Claim { pod: Some(pod.to_owned()), recorded: now, created: now, deleted: Some(now), contested: false }
}

/// Deletes as the operator does, until the pool no longer gives the machine to the Pod.
async fn reap(provider: &dyn Provider, address: &str, pod: &str) -> Result<()> {
    let (id, claim) = (InstanceId::of(&CLOUD, address)?, claim(pod));
    for _ in 0..100 {
        match provider.describe(&id, &claim).await {
            Err(gone) if [ABSENT_FOR_NOW, ErrorClass::NotFound].contains(&gone.class) => return Ok(()),
            Err(error) => bail!("{}", error.message.for_log()),
            Ok(vm) => {
                let own = ownership::verify(vm, pod, CLOUD.name_limit)?;
                match provider.delete(&own).await {
                    Err(error) if error.class != ErrorClass::Transient => {
                        bail!("{}", error.message.for_log())
                    }
                    _ => {}
                }
            }
        }
    }
    bail!("{pod} has {address} still")
}

/// Starts a pool in `stand`, and an operator for it.
async fn with_operator(testbed: &Testbed, dir: &Path, stand: &OnceCell<Stand>) -> Result<Operator> {
    let started = Stand::start(testbed, dir, 1).await?;
    let settings = started.settings();
    let _ = stand.set(started);
    Operator::start(testbed, &OperatorOptions::new(PROGRAM, dir.join("operator"), settings)).await
}
