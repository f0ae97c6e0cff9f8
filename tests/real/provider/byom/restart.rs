//! Machines that restart and return to their pool.

use std::{
    cell::OnceCell,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use kube::ResourceExt as _;
use peerpod_operator::{
    api::v1alpha1::PeerPod,
    provider::{InstanceId, byom::CLOUD, ownership},
};
use testbed::{
    Operator, OperatorOptions, Testbed,
    byom_pool::machine,
    wait::{self, DEADLINE},
};

use super::{RELEASED, Stand, claim, reap, with_operator};
use crate::support::{PROGRAM, alone_with, without_operator};

#[test]
fn a_machine_restarts_and_returns_to_the_pool_with_its_pod_and_is_no_earlier_pods() -> Result<()> {
    let stand = OnceCell::new();
    let start = async |testbed: &Testbed, dir: &Path, _: &_| with_operator(testbed, dir, &stand).await;
    alone_with(start, async |alone| {
        let (scene, stand) = (alone.scene(), stand.get().context("it was started")?);
        let before = scene.testbed.audit()?.of_operator()?.len();
        let address = stand.address();
        let (web, since) = (scene.pods.run("web").await?, Timestamp::now());
        stand.give_since("web", since).await?;
        let recorded = scene.caa.record(&web, "byom", &address).await?.name_any();
        scene.pods.delete("web").await?;
        stand.returned(DEADLINE).await?;
        // cloud-api-adaptor writes the pool as it read it before.
        stand.give_since("web", since).await?;
        stand.returned(RELEASED).await?;
        wait::gone(&scene.peerpods, &recorded, RELEASED).await?;

        // The PeerPod of the Pod that had the machine before, and that of the Pod that has it now.
        let (old, next) = (scene.pods.run("old").await?, scene.pods.run("next").await?);
        stand.give("next").await?;
        let stale = scene.caa.record(&old, "byom", &address).await?.name_any();
        scene.caa.record(&next, "byom", &address).await?;
        scene.pods.delete("old").await?;
        wait::gone(&scene.peerpods, &stale, RELEASED).await?;
        ensure!(stand.told()?.is_none(), "the machine of another Pod was told to restart");
        ensure!(stand.pool.content().await?.allocated[&address] == "next");
        scene.pods.delete("next").await?;
        stand.returned(DEADLINE).await?;

        let requests = scene.testbed.audit()?.of_operator()?.split_off(before);
        let refused: Vec<_> = requests.iter().filter(|request| request.code == 403).collect();
        ensure!(refused.is_empty(), "{refused:?}");
        Ok(())
    })
}

#[test]
fn a_machine_is_left_to_cloud_api_adaptor_while_that_may_return_it_by_its_address() -> Result<()> {
    let stand = OnceCell::new();
    let start = async |testbed: &Testbed, dir: &Path, _: &_| {
        let started = Stand::start(testbed, dir, 1).await?;
        let mut settings = started.settings();
        settings.config_map.insert("PROXY_TIMEOUT".to_owned(), "8s".to_owned());
        let _ = stand.set(started);
        Operator::start(testbed, &OperatorOptions::new(PROGRAM, dir.join("operator"), settings)).await
    };
    alone_with(start, async |alone| {
        let (scene, stand) = (alone.scene(), stand.get().context("it was started")?);
        let address = stand.address();
        let web = scene.pods.run("web").await?;
        stand.give("web").await?;
        let recorded = scene.caa.record(&web, "byom", &address).await?.name_any();
        scene.pods.delete("web").await?;
        let is_left = |peerpod: &PeerPod| {
            let mut conditions = peerpod.status.iter().flat_map(|status| &status.conditions);
            conditions
                .any(|it| it.reason == "WaitingForPod" && it.message.contains("may still return it itself"))
        };
        let what = "the machine is left to cloud-api-adaptor";
        wait::present(&scene.peerpods, &recorded, what, DEADLINE, is_left).await?;
        ensure!(stand.told()?.is_none(), "the machine was told to restart too early");
        ensure!(stand.pool.content().await?.allocated[&address] == "web");
        // cloud-api-adaptor returns the machine late, and gives it to another Pod.
        stand.pool.end(&address).await?;
        stand.give("next").await?;
        wait::gone(&scene.peerpods, &recorded, RELEASED).await?;
        ensure!(stand.told()?.is_none(), "the machine of another Pod was told to restart");
        ensure!(stand.pool.content().await?.allocated[&address] == "next");
        Ok(())
    })
}

#[test]
fn a_machine_that_cannot_be_restarted_returns_to_the_pool_soon() -> Result<()> {
    without_operator(async |testbed| {
        let dir = tempfile::tempdir()?;
        let stand = Stand::start(testbed, dir.path(), 1).await?;
        let trusted = dir.path().join("trusted");
        fs::create_dir(&trusted)?;
        let mut settings = stand.settings();
        settings.config_map.insert("SSH_HOST_KEY_ALLOWLIST_DIR".to_owned(), trusted.display().to_string());
        settings.config_map.insert("SSH_TIMEOUT".to_owned(), "8".to_owned());
        let provider = settings.open_in(testbed.client(), None)?;
        let tell = async |pod: &str, address: &str| -> Result<Option<String>> {
            stand.pool.give(&format!("{pod}-0123456789abcdef"), address, pod, Timestamp::now()).await?;
            let start = Instant::now();
            reap(&*provider, address, pod).await?;
            ensure!(start.elapsed() < Duration::from_secs(30), "{pod}: {:?}", start.elapsed());
            stand.told()
        };
        let here = stand.address();
        ensure!(tell("no-keys", &here).await?.is_none(), "a host was trusted without a key");
        fs::write(
            trusted.join("mine.pub"),
            fs::read_to_string(stand.sshd.key("rsa").with_extension("pub"))?,
        )?;
        ensure!(tell("wrong-key", &here).await?.is_none(), "a host with another key was trusted");
        // The type of key that sshd would not choose by itself.
        fs::write(trusted.join("host.pub"), stand.sshd.host_key("rsa")?)?;
        ensure!(tell("right-key", &here).await?.is_some(), "a host with a trusted key was not told");
        ensure!(tell("nobody", &machine(1)).await?.is_none());
        // Another Pod gets the machine between the proof and the deletion.
        stand.give("early").await?;
        let vm = provider.describe(&InstanceId::of(&CLOUD, &here)?, &claim("early")).await?;
        let own = ownership::verify(vm, "early", CLOUD.name_limit)?;
        stand.give("late").await?;
        provider.delete(&own).await?;
        ensure!(stand.told()?.is_none(), "the machine of another Pod was told to restart");
        ensure!(stand.pool.content().await?.allocated[&here] == "late");
        stand.sshd.pause()?;
        ensure!(tell("hangs", &here).await?.is_none());
        let content = stand.pool.content().await?;
        ensure!(content.allocations == 0 && content.available.len() == 2, "{content:?}");
        Ok(())
    })
}

#[test]
fn a_machine_that_takes_longer_than_the_sftp_library_allows_is_told_to_restart() -> Result<()> {
    without_operator(async |testbed| {
        let dir = tempfile::tempdir()?;
        // By its default, the library ends a request after 10 s.
        let stand = Stand::start_late(testbed, dir.path(), Duration::from_secs(12)).await?;
        let provider = stand.settings().open_in(testbed.client(), None)?;
        let address = stand.address();
        stand.give("early").await?;
        let vm = provider.describe(&InstanceId::of(&CLOUD, &address)?, &claim("early")).await?;
        let own = ownership::verify(vm, "early", CLOUD.name_limit)?;
        let given = async {
            wait::eventually("the operator logs in", DEADLINE, async || {
                ensure!(stand.sshd.sessions()? > 0);
                Ok(())
            })
            .await?;
            stand.give("late").await
        };
        let (deleted, given) = tokio::join!(provider.delete(&own), given);
        given?;
        deleted?;
        ensure!(stand.told()?.is_none(), "the machine of another Pod was told to restart");
        ensure!(stand.pool.content().await?.allocated[&address] == "late");

        stand.give("slow").await?;
        reap(&*provider, &address, "slow").await?;
        ensure!(stand.told()?.as_deref() == Some("reboot"), "it was not told");
        Ok(())
    })
}
