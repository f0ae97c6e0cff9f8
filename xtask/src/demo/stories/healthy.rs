//! cloud-api-adaptor does its job.

use anyhow::Result;

use super::{Outcome, Scene, Story, seconds};

pub(super) const STORY: Story = Story {
    title: "cloud-api-adaptor does its job",
    about: "A Pod is deleted, and cloud-api-adaptor deletes its VM. Nothing is left, so the operator \
            must do nothing.",
    play: |scene| Box::pin(play(scene)),
};

async fn play(scene: &mut Scene<'_>) -> Result<Outcome> {
    let (stage, host) = (scene.stage, scene.stage.libvirtd.host());
    let volumes = scene.volumes().await?;
    let deletions = scene.deletions().await?;
    let pod = scene.pod("web").await?;
    let vm = stage.caa.start_vm(&pod, host).await?;
    scene.started(&vm).await?;

    let deleted = scene.delete_pod("web").await?;
    stage.caa.stop_vm(&vm, host).await?;
    let machine_gone = scene.domain_until(&vm.machine.domain.name, "Undefined").await?;
    scene.remove_pod(&pod).await?;
    let released = scene.released_by(":cloud-api-adaptor", &vm.name()).await?;
    scene.operator_knows(0.0).await?;
    scene.timeline.settle().await?;

    let after = scene.volumes().await?;
    scene.check(
        "The VM and its volumes are gone (virsh vol-list is as it was before the Pod).",
        &after,
        &volumes,
    )?;
    scene.check(
        "The operator wrote nothing: the API server's audit log has no write by it.",
        &scene.operator_writes(),
        &Vec::new(),
    )?;
    let deletions = scene.deletions().await? - deletions;
    scene.check(
        "It asked libvirt to delete nothing: its metric provider_calls_total{call=\"delete\"} has not \
         changed.",
        &deletions,
        &0.0,
    )?;
    Ok(Outcome {
        machine: format!("{} (cloud-api-adaptor)", seconds(deleted, machine_gone)),
        release: format!("{} (cloud-api-adaptor)", seconds(deleted, released)),
    })
}
