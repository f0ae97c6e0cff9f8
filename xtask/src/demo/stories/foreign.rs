//! A PeerPod points at a VM that is no pod VM.

use std::fs;

use anyhow::{Context as _, Result};
use peerpod_operator::api::v1alpha1::{RELEASE_ABANDON, RELEASE_ANNOTATION};
use testbed::peerpod_object;

use super::{Outcome, Scene, Story, seconds};
use crate::demo::fact::Fact;

const DATABASE: &str = "customer-database";
/// The condition's reason.
const REASON: &str = "NotThisPodsVM";

pub(super) const STORY: Story = Story {
    title: "a PeerPod names a VM that is not a pod VM",
    about: "A user who may create PeerPods can write any VM's identifier into one. Here the VM is a \
            database. The operator must not touch it and must say why. The administrator then \
            releases the PeerPod with an annotation.",
    play: |scene| Box::pin(play(scene)),
};

async fn play(scene: &mut Scene<'_>) -> Result<Outcome> {
    let host = scene.stage.libvirtd.host();
    let deletions = scene.deletions().await?;
    let disk = host.volume("customer-database.qcow2", "qcow2", "").await?;
    let database = host.start_domain(DATABASE, "The customers' database", &[&disk]).await?;
    scene.domain_until(DATABASE, "Started").await?;
    let volumes = scene.volumes().await?;
    let pod = scene.pod("billing").await?;
    let object = peerpod_object(&pod, "libvirt", &database.uuid.to_string());
    let peerpod = object["metadata"]["name"].as_str().context("a PeerPod without name")?.to_owned();
    let file = scene.stage.dir.join("billing-peerpod.json");
    fs::write(&file, object.to_string()).with_context(|| format!("writing {}", file.display()))?;
    scene.kubectl(&["create", "-f", &file.display().to_string()]).await?;

    let deleted = scene.delete_pod("billing").await?;
    scene.remove_pod(&pod).await?;
    scene.held_until(&peerpod, REASON).await?;
    let is_warning = |fact: &_| matches!(fact, Fact::Event { warning: true, reason, .. } if reason == REASON);
    scene.timeline.until(&format!("a Warning event with the reason {REASON}"), is_warning).await?;
    let printed = scene.show(&["get", "peerpods"]).await?;
    let state_while_refused = scene.domain_state(DATABASE).await?;

    scene
        .kubectl(&["annotate", "peerpod", &peerpod, &format!("{RELEASE_ANNOTATION}={RELEASE_ABANDON}")])
        .await?;
    let released = scene.released_by(":peerpod-operator", &peerpod).await?;
    scene.timeline.settle().await?;

    scene.check(
        &format!("kubectl showed why the PeerPod stayed: {REASON}."),
        &printed.contains(REASON),
        &true,
    )?;
    let deletions = scene.deletions().await? - deletions;
    scene.check("The operator asked libvirt to delete nothing (its metrics).", &deletions, &0.0)?;
    let states = (state_while_refused.as_str(), scene.domain_state(DATABASE).await?);
    scene.check(
        "The database runs, before and after the administrator's annotation (virsh domstate).",
        &states,
        &("running", "running".to_owned()),
    )?;
    scene.check("Its disk is still there (virsh vol-list).", &scene.volumes().await?, &volumes)?;
    Ok(Outcome {
        machine: "never: refused".to_owned(),
        release: format!("{} (by annotation)", seconds(deleted, released)),
    })
}
