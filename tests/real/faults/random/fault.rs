//! Faults that pass: of the cloud, of the API server and of the operators.

use std::{
    cell::RefCell,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use cluster::{Cluster, Component};
use fastrand::Rng;
use peers::libvirt::{Libvirtd, Relay};
use testbed::{Operator, Settings};
use tokio::time::sleep;

/// A killed leader is followed only 15 s later, so the operators are killed less often than the others fail.
const FAULTS: [Fault; 7] = [
    Fault::CloudHangs,
    Fault::CloudHangs,
    Fault::CloudCut,
    Fault::CloudCut,
    Fault::ApiServerHangs,
    Fault::ApiServerHangs,
    Fault::OperatorKilled,
];

#[derive(Clone, Copy, Debug)]
enum Fault {
    CloudHangs,
    CloudCut,
    ApiServerHangs,
    OperatorKilled,
}

/// The operators' connections to libvirtd. While they are cut, libvirtd is restarting as the operators see it, and its VMs run on. (The
/// test driver's VMs would not outlive a real restart.)
pub(super) struct Line {
    dir: PathBuf,
    relay: RefCell<Option<Relay>>,
    pub(super) settings: Settings,
}

impl Line {
    pub(super) fn open(dir: &Path, libvirtd: &Libvirtd) -> Result<Self> {
        let relay = Relay::start(libvirtd.host(), dir, Duration::ZERO)?;
        let settings = Settings::libvirt(&relay.uri().to_string());
        Ok(Self { dir: dir.to_owned(), relay: RefCell::new(Some(relay)), settings })
    }

    fn cut(&self) {
        drop(self.relay.take());
    }

    fn reopen(&self, libvirtd: &Libvirtd) -> Result<()> {
        let relay = Relay::start(libvirtd.host(), &self.dir, Duration::ZERO)?;
        *self.relay.borrow_mut() = Some(relay);
        Ok(())
    }
}

/// What can fail.
pub(super) struct Faults<'a> {
    pub(super) random: Rng,
    pub(super) cluster: &'a Cluster,
    pub(super) libvirtd: &'a Libvirtd,
    pub(super) line: &'a Line,
    pub(super) replicas: [&'a mut Operator; 2],
}

impl Faults<'_> {
    /// Lets so many faults happen, one after the other. Nothing of them is left at the end.
    pub(super) async fn play(&mut self, count: usize) -> Result<()> {
        for _ in 0..count {
            sleep(Duration::from_millis(self.random.u64(..500))).await;
            let fault = self.random.choice(FAULTS).context("there are faults")?;
            println!("{fault:?}");
            let lasts = Duration::from_millis(self.random.u64(100..1500));
            match fault {
                Fault::CloudHangs => {
                    self.libvirtd.pause()?;
                    sleep(lasts).await;
                    self.libvirtd.resume()?;
                }
                Fault::CloudCut => {
                    self.line.cut();
                    sleep(lasts).await;
                    self.line.reopen(self.libvirtd)?;
                }
                Fault::ApiServerHangs => {
                    self.cluster.pause(Component::ApiServer)?;
                    sleep(lasts).await;
                    self.cluster.resume(Component::ApiServer)?;
                }
                Fault::OperatorKilled => {
                    let replica = &mut *self.replicas[self.random.usize(..2)];
                    ensure!(replica.process().is_running(), "an operator ended by itself");
                    replica.kill().await?;
                    sleep(lasts).await;
                    replica.start_again()?;
                }
            }
        }
        Ok(())
    }
}
