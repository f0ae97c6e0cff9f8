//! A PeerPod is deleted under a running Pod.

use std::time::Duration;

use anyhow::Result;

use super::{Outcome, Scene, seconds};
use crate::demo::fact::{Fact, PodChange};

/// How long the VM is looked at that must live.
const LOOK: Duration = Duration::from_secs(2);

pub(super) async fn play(scene: &mut Scene<'_>) -> Result<Outcome> {
    let (stage, host) = (scene.stage, scene.stage.libvirtd.host());
    let pod = scene.pod("cart").await?;
    let vm = stage.caa.start_vm(&pod, host).await?;
    scene.started(&vm).await?;
    let (peerpod, domain) = (vm.name(), vm.machine.domain.name.clone());

    scene.kubectl(&["delete", "peerpod", &peerpod, "--wait=false"]).await?;
    let held = scene.held_until(&peerpod, "WaitingForPod").await?;
    let printed = scene.show(&["get", "peerpods"]).await?;
    scene.timeline.listen_for(LOOK).await?;
    let state_while_held = scene.domain_state(&domain).await?;
    let events_while_held = scene.timeline.facts().filter(|fact| is_end_of(fact, &domain)).count();

    let deleted = scene.delete_pod("cart").await?;
    let state_while_ending = scene.domain_state(&domain).await?;
    stage.kubelet.end(&pod).await?;
    let through =
        scene.pod_until("cart", "is through", |change| matches!(change, PodChange::Through { .. })).await?;
    let machine_gone = scene.domain_until(&domain, "Undefined").await?;
    scene.remove_pod(&pod).await?;
    let released = scene.released_by(":peerpod-operator", &peerpod).await?;
    scene.timeline.settle().await?;

    scene.check(
        "kubectl showed why the PeerPod stays: WaitingForPod.",
        &printed.contains("WaitingForPod"),
        &true,
    )?;
    let what = format!(
        "The VM lived for the {} that the Pod went on running, and while it was ending (virsh domstate: running).",
        seconds(held, deleted)
    );
    let seen = (state_while_held.as_str(), events_while_held, state_while_ending.as_str());
    scene.check(&what, &seen, &("running", 0, "running"))?;
    let what = format!("It went {} after the Pod was through, not before.", seconds(through, machine_gone));
    scene.check(&what, &(machine_gone >= through), &true)?;
    Ok(Outcome { machine: seconds(deleted, machine_gone), release: seconds(deleted, released) })
}

fn is_end_of(fact: &Fact, domain: &str) -> bool {
    matches!(fact, Fact::Domain { name, event } if name == domain && !event.starts_with("Started") && !event.starts_with("Defined"))
}
