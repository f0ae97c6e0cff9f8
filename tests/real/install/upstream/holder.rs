//! A program that holds a Lease as cloud-api-adaptor's reaper does: with Go's own leader election, and without releasing it when it ends.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use cluster::process::{Lifetime, Process};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::Api;
use peerpod_operator::{NAMESPACE, names::PEERPOD_CTRL_LEASE};
use serde_json::json;
use testbed::{
    Testbed,
    wait::{self, DEADLINE},
};

/// A scheduler that schedules nothing. It only holds the lease.
pub struct Holder {
    process: Process,
    leases: Api<Lease>,
}

impl Holder {
    /// Starts it, and waits until it holds the lease.
    pub async fn start(testbed: &Testbed, dir: &Path) -> Result<Self> {
        let configuration = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": { "kubeconfig": testbed.cluster().kubeconfig() },
            "leaderElection": {
                "leaderElect": true,
                "resourceLock": "leases",
                "resourceName": PEERPOD_CTRL_LEASE,
                "resourceNamespace": NAMESPACE,
                // The reaper's own values.
                "leaseDuration": "15s", "renewDeadline": "10s", "retryPeriod": "2s",
            },
            "profiles": [{ "schedulerName": "nobody" }],
        });
        fs::create_dir_all(dir)?;
        let file = dir.join("scheduler.json");
        fs::write(&file, configuration.to_string())?;
        let mut command = Command::new(&testbed.cluster().tools().scheduler);
        command.arg("--config").arg(file).arg("--secure-port=0");
        let process = Process::start("holder", &command, dir, Lifetime::Owned)?;
        let holder = Self { process, leases: Api::namespaced(testbed.client(), NAMESPACE) };
        let held = |lease: &Lease| spec(lease).holder_identity.is_some();
        wait::present(&holder.leases, PEERPOD_CTRL_LEASE, "it holds the lease", DEADLINE, held)
            .await
            .with_context(|| holder.process.log_tail())?;
        Ok(holder)
    }

    /// Waits until it has renewed its lease. Fails if it has lost it.
    pub async fn renews(&self) -> Result<()> {
        let before = self.leases.get(PEERPOD_CTRL_LEASE).await?;
        let renewed = |lease: &Lease| spec(lease).renew_time != spec(&before).renew_time;
        let after =
            wait::present(&self.leases, PEERPOD_CTRL_LEASE, "the lease is renewed", DEADLINE, renewed)
                .await?;
        let holders = [&before, &after].map(|lease| spec(lease).holder_identity);
        ensure!(holders[0] == holders[1], "{holders:?} held the lease");
        Ok(())
    }

    /// Kills the program. Its lease lasts until it expires.
    pub async fn kill(self) -> Result<()> {
        self.process.kill().await
    }
}

fn spec(lease: &Lease) -> LeaseSpec {
    lease.spec.clone().unwrap_or_default()
}
