//! A PeerPod is deleted under a running Pod.

use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;

use super::{Outcome, Scene, Story, seconds};
use crate::demo::fact::{Fact, PodChange};

/// How long to observe that the VM lives.
const LOOK: Duration = Duration::from_secs(2);

pub(super) const STORY: Story = Story {
    title: "a PeerPod is deleted under a running Pod",
    about: "A user deletes the PeerPod while its Pod still runs. The operator must keep the VM until \
            the Pod has ended, and delete it then.",
    play: |scene| Box::pin(play(scene)),
};

async fn play(scene: &mut Scene<'_>) -> Result<Outcome> {
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
    let ended_while_held = scene.timeline.facts().any(|fact| is_end_of(fact, &domain));

    let deleted = scene.delete_pod("cart").await?;
    let state_while_ending = scene.domain_state(&domain).await?;
    // The demo's watch may report the end later than the operator's.
    let through = Timestamp::now();
    stage.kubelet.end(&pod).await?;
    scene.pod_until("cart", "has ended", |change| matches!(change, PodChange::Through { .. })).await?;
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
        "The VM ran for the {} that the Pod ran on, and while the Pod was ending (virsh domstate: running).",
        seconds(held, deleted)
    );
    let seen = (state_while_held.as_str(), ended_while_held, state_while_ending.as_str());
    scene.check(&what, &seen, &("running", false, "running"))?;
    let what = format!(
        "The operator deleted it {} after the Pod had ended, not before.",
        seconds(through, machine_gone)
    );
    scene.check(&what, &(machine_gone >= through), &true)?;
    Ok(Outcome { machine: seconds(deleted, machine_gone), release: seconds(deleted, released) })
}

fn is_end_of(fact: &Fact, domain: &str) -> bool {
    let Fact::Domain { name, event } = fact else { return false };
    name == domain && ["Stopped", "Undefined"].iter().any(|end| event.starts_with(end))
}
