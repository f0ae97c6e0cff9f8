//! Two clusters that share an account.

use std::{cell::OnceCell, path::Path};

use anyhow::{Context as _, Result, anyhow, ensure};
use kube::ResourceExt as _;
use peerpod_operator::provider::contract::{Example, Kind};
use peers::libvirt::Libvirtd;
use testbed::{
    Operator, OperatorOptions, Testbed,
    contract::Played,
    wait::{self, DEADLINE},
};

use super::{swept, uid_of_cluster};
use crate::support::{PROGRAM, alone_with_another};

/// This cluster's operator, which deletes VMs with this tag.
async fn sweeper(testbed: &Testbed, dir: &Path, aws: &Played, tag: &str) -> Result<Operator> {
    let mut settings = aws.settings.clone();
    let uid = uid_of_cluster(testbed).await?;
    for (key, value) in [("SWEEP_CLUSTER", &*uid), ("SWEEP_TAG", tag)] {
        settings.config_map.insert(key.to_owned(), value.to_owned());
    }
    let options = OperatorOptions::new(PROGRAM, dir.join("operator"), settings);
    let arguments = ["--leader-elect=false", "--sweep=delete", "--sweep-interval=1s", "--sweep-grace=3s"];
    let arguments = arguments.map(str::to_owned).to_vec();
    Operator::start(testbed, &OperatorOptions { arguments, ..options }).await
}

async fn make(aws: &Played, pod: &str) -> Result<Example> {
    aws.peer.make(Kind::Running, pod).await.map_err(|cannot| anyhow!("{cannot}"))
}

async fn is_there(aws: &Played, vm: &Example) -> Result<bool> {
    Ok(aws.peer.left(vm).await.map_err(|cannot| anyhow!("{cannot}"))?.vm)
}

async fn deletions(operator: &Operator) -> Result<f64> {
    Ok(operator.metrics().await?.sum("peerpod_operator_sweep_deletions_total", &[]))
}

#[test]
fn two_clusters_in_one_account_never_touch_each_others_vms() -> Result<()> {
    let aws = OnceCell::new();
    let start = async |testbed: &Testbed, dir: &Path, _: &Libvirtd| {
        let played = Played::start("aws", None).await?;
        // The tag of all the account's VMs.
        let operator = sweeper(testbed, dir, &played, "cluster=test").await;
        ensure!(aws.set(played).is_ok());
        operator
    };
    alone_with_another(start, async |alone, other| {
        let (scene, aws) = (alone.scene(), aws.get().context("it was started")?);
        let dir = tempfile::tempdir()?;
        let other = sweeper(other, dir.path(), aws, "cluster=other").await?;
        let pod = scene.pods.run("web").await?;
        let tracked = make(aws, "web").await?;
        let peerpod = scene.caa.record(&pod, "aws", &tracked.id).await?.name_any();
        let stray = make(aws, "crashed").await?;
        wait::eventually("the stray VM is gone", DEADLINE, async || {
            ensure!(!is_there(aws, &stray).await?, "it is there");
            Ok(())
        })
        .await?;
        swept(&other).await?;
        let seen = other.sweep().await?.clouds.into_iter().next().context("no cloud is listed")?;
        // Addresses have no tag, so they prove nothing.
        let is_theirs = seen.untracked.iter().any(|it| it.kind == "vm" || it.proof.is_some());
        ensure!(seen.vms > 0 && !is_theirs, "the other cluster sees {seen:?}");
        ensure!(is_there(aws, &tracked).await?, "the VM of a Pod is gone");
        scene.peerpods.get(&peerpod).await?;
        let (own, others) = (deletions(&alone.operator).await?, deletions(&other).await?);
        ensure!((own - 1.0).abs() < 0.5 && others < 0.5, "{own} and {others} deletions");
        Ok(())
    })
}
