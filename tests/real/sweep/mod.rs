//! The sweep: VMs and volumes that no PeerPod tracks, and PeerPods whose VM is gone or off.

mod by_hand;
mod clusters;
mod lost;
mod untracked;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use testbed::{
    Operator, OperatorOptions, Settings, Testbed,
    wait::{self, DEADLINE},
};

use crate::support::{Alone, PROGRAM, alone_with};

/// The age from which the sweep deletes untracked VMs in these tests.
const GRACE: Duration = Duration::from_secs(3);

/// Runs a test with an operator that sweeps every second, with these further settings and arguments.
fn sweeping(
    settings: &[(&str, &str)],
    arguments: &[&str],
    test: impl AsyncFnOnce(&mut Alone) -> Result<()>,
) -> Result<()> {
    let start = async |testbed: &Testbed, dir: &std::path::Path, libvirtd: &peers::libvirt::Libvirtd| {
        let mut all = Settings::libvirt(&libvirtd.host().uri().to_string());
        let uid = uid_of_cluster(testbed).await?;
        all.config_map.insert("SWEEP_CLUSTER".to_owned(), uid);
        all.config_map.extend(settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        let options = OperatorOptions::new(PROGRAM, dir.join("operator"), all);
        let own = ["--leader-elect=false", "--sweep-interval=1s", "--sweep-grace=3s"];
        let arguments = own.iter().chain(arguments).map(ToString::to_string).collect();
        Operator::start(testbed, &OperatorOptions { arguments, ..options }).await
    };
    alone_with(start, test)
}

/// The identity of the cluster.
pub async fn uid_of_cluster(testbed: &Testbed) -> Result<String> {
    let namespaces: Api<Namespace> = Api::all(testbed.client());
    namespaces.get("kube-system").await?.metadata.uid.context("every namespace has a UID")
}

/// The number of these resources in the newest listing.
async fn untracked(operator: &Operator, kind: &str, verdict: &str) -> Result<f64> {
    let labels = [("kind", kind), ("verdict", verdict)];
    Ok(operator.metrics().await?.sum("peerpod_operator_untracked_resources", &labels))
}

/// Waits until everything that exists now has been listed at least twice, over more than the grace.
pub async fn swept(operator: &Operator) -> Result<()> {
    swept_at(operator, |_| true).await
}

/// The same for these clouds.
pub async fn swept_at(operator: &Operator, counts: impl Fn(&str) -> bool) -> Result<()> {
    let enough = Timestamp::now() + 2 * GRACE;
    wait::eventually("the sweep has seen everything for long enough", DEADLINE, async || {
        let snapshot = operator.sweep().await?;
        let oldest = snapshot.clouds.iter().filter(|it| counts(&it.cloud)).map(|it| it.listed).min();
        ensure!(oldest.flatten().is_some_and(|it| it > enough), "the oldest listing is of {oldest:?}");
        Ok(())
    })
    .await
}
