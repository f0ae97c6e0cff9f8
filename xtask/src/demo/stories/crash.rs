//! cloud-api-adaptor dies.

use anyhow::Result;
use peers::libvirt::BASE_VOLUME;
use testbed::{Vm, vm_name};

use super::{Outcome, Scene, Story, seconds};

pub(super) const STORY: Story = Story {
    title: "cloud-api-adaptor dies",
    about: "A Pod is deleted, and cloud-api-adaptor has crashed. The operator has only the PeerPod. \
            It must delete the VM and its own two volumes, and nothing else. The VM also has a volume \
            with a user's data.",
    play: |scene| Box::pin(play(scene)),
};

async fn play(scene: &mut Scene<'_>) -> Result<Outcome> {
    let (stage, host) = (scene.stage, scene.stage.libvirtd.host());
    let pod = scene.pod("orders").await?;
    let data = host.volume("orders-data.qcow2", "qcow2", "").await?;
    let machine = host.start_pod_vm_with(&vm_name("orders"), &[&data]).await?;
    let peerpod = stage.caa.record(&pod, "libvirt", &machine.domain.uuid.to_string()).await?;
    let vm = Vm { machine, peerpod };
    scene.started(&vm).await?;
    let volumes = scene.volumes().await?;

    // From here on there is no cloud-api-adaptor.
    let deleted = scene.delete_pod("orders").await?;
    scene.remove_pod(&pod).await?;
    let machine_gone = scene.domain_until(&vm.machine.domain.name, "Undefined").await?;
    let released = scene.released_by(":peerpod-operator", &vm.name()).await?;
    scene.timeline.settle().await?;

    let left = scene.domain_state(&vm.machine.domain.name).await?;
    scene.check("The VM is gone (virsh list --all).", &left.as_str(), &"gone")?;
    let own = [&vm.machine.root.name, &vm.machine.cloudinit.name];
    let others: Vec<_> = volumes.into_iter().filter(|volume| !own.contains(&volume)).collect();
    let what = format!(
        "So are its own two volumes; {BASE_VOLUME} and {} are still there (virsh vol-list).",
        data.name
    );
    scene.check(&what, &scene.volumes().await?, &others)?;
    scene.check(
        "It cost the API server one write: the patch that released the PeerPod (audit log).",
        &scene.operator_writes(),
        &vec!["patch peerpods".to_owned()],
    )?;
    Ok(Outcome { machine: seconds(deleted, machine_gone), release: seconds(deleted, released) })
}
