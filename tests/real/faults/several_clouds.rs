//! One operator for several clouds.

use std::{
    cell::OnceCell,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use peers::{
    Does,
    gcp::{ComputeEngine, Instance, PERMISSIONS},
    libvirt::Libvirtd,
};
use testbed::{
    Operator, OperatorOptions, Settings, Testbed, vm_name,
    wait::{self, DEADLINE},
};

use crate::support::{PROGRAM, alone_with};

/// Less than a call to a dead cloud takes, and than the pause that the throttled one asks for.
const SOON: Duration = Duration::from_secs(18);

/// The options of an operator whose second cloud is this libvirt.
fn beside_libvirt(first: Settings, dir: &Path, libvirtd: &Libvirtd) -> Result<OperatorOptions> {
    let further = Settings::libvirt(&libvirtd.host().uri().to_string());
    let mut options = OperatorOptions::new(PROGRAM, dir.join("operator"), first);
    options.add_cloud("libvirt", &further)?;
    Ok(options)
}

#[test]
fn a_further_cloud_uses_its_own_settings_although_the_first_ones_are_wrong() -> Result<()> {
    let start = async |testbed: &Testbed, dir: &Path, libvirtd: &Libvirtd| {
        let mut first = Settings::default();
        first.config_map.insert("CLOUD_PROVIDER".into(), "nonsense".into());
        let options = beside_libvirt(first, dir, libvirtd)?;
        Operator::start(testbed, &options).await
    };
    alone_with(start, async |alone| {
        let scene = alone.scene();
        let vm = scene.pod_with_vm("web").await?;
        scene.pods.delete("web").await?;
        scene.reaped(&vm).await?;

        let metrics = alone.operator.metrics().await?;
        for (settings, valid) in [("default", 0.0), ("libvirt", 1.0)] {
            let told = metrics.sum("peerpod_operator_settings_valid", &[("settings", settings)]);
            ensure!((told - valid).abs() < 0.5, "settings_valid of {settings} is {told}");
        }
        wait::eventually("the problem of the first settings is shown", DEADLINE, async || {
            let (status, text) = alone.operator.health("/readyz").await?;
            ensure!(status == 200 && text.contains("settings: "), "{status}: {text}");
            Ok(())
        })
        .await
    })
}

#[test]
fn a_cloud_that_throttles_and_one_that_is_dead_delay_no_deletion_on_another() -> Result<()> {
    const TOO_MANY: &str =
        r#"{"error":{"code":403,"message":"Quota exceeded","errors":[{"reason":"rateLimitExceeded"}]}}"#;
    let cloud = OnceCell::new();
    let start = async |testbed: &Testbed, dir: &Path, libvirtd: &Libvirtd| {
        let peer = ComputeEngine::start(&dir.join("gcp")).await?;
        let key = peer.account("operator@peer-pods", &PERMISSIONS, peer.address()).await?;
        let options = beside_libvirt(Settings::gcp(peer.address(), Some(key)), dir, libvirtd)?;
        let _ = cloud.set(peer);
        Operator::start(testbed, &options).await
    };
    alone_with(start, async |alone| {
        let (scene, peer) = (alone.scene(), cloud.get().context("the cloud was started")?);
        let relay = peer.relay();
        let throttled = Does::Answer {
            status: 403,
            headers: vec![("retry-after", "20".to_owned())],
            body: TOO_MANY.to_owned(),
        };
        let mut waiting = Vec::new();
        for (pod, trouble) in [("dead", Does::Hang), ("throttled", throttled)] {
            let (owner, name) = (scene.pods.run(pod).await?, vm_name(pod));
            peer.make(&Instance::running(&name)).await?;
            let peerpod = scene.caa.record(&owner, "gcp", &name).await?.name_any();
            relay.forget_rules();
            relay.rule(|seen| seen.path.starts_with("/compute/"), trouble);
            scene.pods.delete(pod).await?;
            wait::eventually("the operator asks Compute Engine for it", DEADLINE, async || {
                ensure!(relay.seen().iter().any(|seen| seen.path.contains(&name)), "no request came");
                Ok(())
            })
            .await?;

            let beside = scene.pod_with_vm("beside").await?;
            let start = Instant::now();
            scene.pods.delete("beside").await?;
            scene.reaped(&beside).await?;
            ensure!(start.elapsed() < SOON, "it took {:?}", start.elapsed());
            ensure!(peer.state(&Instance::running(&name)).await?.instance, "{name} is gone");
            ensure!(scene.peerpods.get_opt(&peerpod).await?.is_some(), "{peerpod} is released");
            waiting.push((peerpod, name));
        }
        relay.forget_rules();
        for (peerpod, name) in waiting {
            // A deletion takes Compute Engine some time.
            wait::gone(&scene.peerpods, &peerpod, 2 * DEADLINE).await?;
            let state = peer.state(&Instance::running(&name)).await?;
            ensure!(!state.instance && !state.disk, "{name}: {state:?}");
        }

        let (owner, name) = (scene.pods.run("normal").await?, vm_name("normal"));
        peer.make(&Instance::running(&name)).await?;
        let before = relay.seen().len();
        let peerpod = scene.caa.record(&owner, "gcp", &name).await?.name_any();
        scene.pods.delete("normal").await?;
        wait::gone(&scene.peerpods, &peerpod, 2 * DEADLINE).await?;
        let requests: Vec<_> = relay.seen()[before..].iter().map(|seen| seen.method.clone()).collect();
        ensure!(requests.len() <= 4, "a normal deletion takes {requests:?}");
        Ok(())
    })
}
