//! Lives of Pods, and what has to become of their VMs.

use std::{collections::HashSet, time::Duration};

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use libvirt_client::DomainState;
use peerpod_operator::api::v1alpha1::{FINALIZER, PeerPod};
use peers::libvirt::{Host, PodVm};
use serde_json::json;
use testbed::{Caa, Pods, Vm, vm_name, wait};
use tokio::time::sleep;

use crate::support::next_second;

/// The most PeerPods of a Pod that name foreign VMs. The operator asks for four newer VMs of a Pod at most.
const MOST_FORGED: usize = 2;

const STEPS: [Step; 9] = [
    Step::Foreign,
    Step::Forge,
    Step::ShutOff,
    Step::Lose,
    Step::Hasty,
    Step::Stop,
    Step::Delete,
    Step::ForceDelete,
    Step::Finish,
];

/// What happens to a Pod that lives.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Another program makes a VM with a similar name.
    Foreign,
    /// The same, and a PeerPod of the Pod names it.
    Forge,
    /// The VM is shut off.
    ShutOff,
    /// The VM is deleted, and the Pod stays.
    Lose,
    /// A user deletes the PeerPod, and the Pod runs on.
    Hasty,
    /// cloud-api-adaptor does its job, and the Pod is deleted.
    Stop,
    /// The Pod is deleted, and cloud-api-adaptor does nothing.
    Delete,
    /// The same by force.
    ForceDelete,
    /// The Pod completes, and its PeerPods are deleted.
    Finish,
}

/// What all Pods share.
pub(super) struct World {
    pub(super) pods: Pods,
    pub(super) peerpods: Api<PeerPod>,
    pub(super) caa: Caa,
    pub(super) host: Host,
}

impl World {
    /// Fails unless the VM is in this state and has its volumes.
    async fn has(&self, PodVm { domain, root, cloudinit }: &PodVm, state: DomainState) -> Result<()> {
        let client = self.host.client();
        let now = client.domain_state(domain).await.with_context(|| format!("the VM {}", domain.name))?;
        ensure!(now == state, "the VM {} is {now:?} instead of {state:?}", domain.name);
        for volume in [root, cloudinit] {
            let found = client.volume_lookup_by_path(&volume.key).await;
            found.with_context(|| format!("the volume {}", volume.name))?;
        }
        Ok(())
    }
}

/// A Pod, and what belongs to it or seems to.
pub(super) struct Life {
    pod: String,
    vm: Vm,
    /// Until the Pod has ended or is deleted.
    pub(super) lives: bool,
    /// The state in which its VM stays; `None` if the VM is gone or has to go.
    state: Option<DomainState>,
    /// Whether its PeerPod was deleted while it ran.
    hasty: bool,
    /// The PeerPods of the VMs that its VM replaced. They go with their VMs.
    replaced: Vec<String>,
    /// They stay.
    foreign: Vec<PodVm>,
    /// Its PeerPods that name foreign VMs. The operator never releases them.
    pub(super) forged: Vec<String>,
}

impl Life {
    /// Whether it is certain what becomes of the VMs after this step.
    fn allows(&self, step: Step) -> bool {
        // If its VM were off or gone, it would depend on the time whether it replaced the others before.
        let (runs, alone) = (self.state == Some(DomainState::Running), self.replaced.is_empty());
        let certain = match step {
            Step::Foreign | Step::Delete | Step::ForceDelete | Step::Finish => true,
            Step::Forge => self.forged.len() < MOST_FORGED,
            Step::ShutOff => runs && alone,
            // Under a running Pod, the operator releases a deleted PeerPod only if it happens to see that its VM is absent.
            Step::Lose => runs && alone && !self.hasty,
            Step::Hasty => self.state.is_some() && alone && !self.hasty,
            Step::Stop => runs && !self.hasty,
        };
        self.lives && certain
    }

    async fn take(&mut self, step: Step, world: &World, random: &mut Rng) -> Result<()> {
        println!("{}: {step:?}", self.pod);
        let World { pods, peerpods, caa, host } = world;
        let delete = DeleteParams::background();
        match step {
            Step::Foreign => {
                let vm = self.similar(host, random).await?;
                self.foreign.push(vm);
            }
            Step::Forge => {
                let (vm, pod) = (self.similar(host, random).await?, pods.api().get(&self.pod).await?);
                let forged = caa.record(&pod, "libvirt", &vm.domain.uuid.to_string()).await?;
                self.foreign.push(vm);
                self.forged.push(forged.name_any());
            }
            Step::ShutOff => {
                host.client().domain_destroy(&self.vm.machine.domain).await?;
                self.state = Some(DomainState::ShutOff);
            }
            Step::Lose => {
                caa.delete_machine(&self.vm, host).await?;
                self.state = None;
            }
            Step::Hasty => {
                peerpods.delete(&self.vm.name(), &delete).await?;
                self.hasty = true;
            }
            Step::Stop => {
                caa.stop_vm(&self.vm, host).await?;
                pods.api().delete(&self.pod, &delete).await?;
            }
            Step::Delete => drop(pods.api().delete(&self.pod, &delete).await?),
            Step::ForceDelete => drop(pods.api().delete(&self.pod, &delete.grace_period(0)).await?),
            Step::Finish => {
                let completed = Patch::Merge(json!({ "status": { "phase": "Succeeded" } }));
                pods.api().patch_status(&self.pod, &PatchParams::default(), &completed).await?;
                for name in self.replaced.iter().chain(&self.forged).chain([&self.vm.name()]) {
                    wait::unless_gone(peerpods.delete(name, &delete).await)?;
                }
            }
        }
        if matches!(step, Step::Stop | Step::Delete | Step::ForceDelete | Step::Finish) {
            (self.lives, self.state) = (false, None);
        }
        Ok(())
    }

    /// Makes a VM that looks almost like one of this Pod.
    async fn similar(&self, host: &Host, random: &mut Rng) -> Result<PodVm> {
        let (own, number) = (&self.vm.machine.domain.name, self.foreign.len());
        let of_another_pod = vm_name(&format!("{}-{number}", self.pod));
        let names = [format!("{own}{number}"), format!("{own}-{number}"), of_another_pod];
        let name = random.choice(names).context("there are names")?;
        host.start_pod_vm(&name).await
    }

    /// The VMs that stay, and their states.
    pub(super) fn vms(&self) -> impl Iterator<Item = (&PodVm, DomainState)> {
        let own = self.state.map(|state| (&self.vm.machine, state));
        self.foreign.iter().map(|vm| (vm, DomainState::Running)).chain(own)
    }

    /// The PeerPods that stay.
    pub(super) fn peerpods(&self) -> impl Iterator<Item = String> {
        self.forged.iter().cloned().chain(self.lives.then(|| self.vm.name()))
    }
}

/// Pods to which something happens one after the other.
pub(super) struct Lane {
    pub(super) number: usize,
    pub(super) random: Rng,
    pub(super) lives: Vec<Life>,
}

impl Lane {
    /// Takes so many steps without waiting for the operators.
    pub(super) async fn play(&mut self, world: &World, steps: usize) -> Result<()> {
        for _ in 0..steps {
            self.check(world).await?;
            let step = self.random.choice(STEPS).context("there are steps")?;
            let starts = self.random.u8(..3) == 0;
            let fit: Vec<_> = self.lives.iter_mut().filter(|life| !starts && life.allows(step)).collect();
            match self.random.choice(fit) {
                Some(life) => life.take(step, world, &mut self.random).await?,
                None => self.start(world).await?,
            }
            sleep(Duration::from_millis(self.random.u64(..50))).await;
        }
        Ok(())
    }

    /// Fails unless everything is there that stays.
    pub(super) async fn check(&self, world: &World) -> Result<()> {
        let mut peerpods = world.peerpods.list_metadata(&ListParams::default()).await?.items;
        peerpods.retain(|peerpod| peerpod.finalizers().iter().any(|it| it == FINALIZER));
        let held: HashSet<_> = peerpods.iter().map(ResourceExt::name_any).collect();
        for life in &self.lives {
            for name in life.peerpods() {
                ensure!(held.contains(&name), "the PeerPod {name} was released");
            }
            for (vm, state) in life.vms() {
                world.has(vm, state).await?;
            }
        }
        Ok(())
    }

    /// A Pod starts, perhaps after attempts whose VMs cloud-api-adaptor left because it crashed.
    async fn start(&mut self, World { pods, caa, host, .. }: &World) -> Result<()> {
        // It ends as a generated name, which no earlier Pod had. So a newer VM replaces an older one at once.
        let name = format!("web-{}-{}-x7k2p", self.number, self.lives.len());
        let attempts = self.random.usize(..7).saturating_sub(3);
        println!("{name}: starts after {attempts} attempts");
        let mut pod = pods.run(&name).await?;
        let mut replaced = Vec::new();
        if attempts > 0 {
            pod = pods.sandbox_is_lost(&name).await?;
            for attempt in 0..attempts {
                let vm = caa.start_vm(&pod, host).await?;
                // The VM of a later attempt has to replace others first.
                match self.random.u8(..3) {
                    0 if attempt == 0 => host.client().domain_destroy(&vm.machine.domain).await?,
                    1 if attempt == 0 => caa.delete_machine(&vm, host).await?,
                    _ => {}
                }
                replaced.push(vm);
            }
            // Records of the same second replace a VM only if it runs.
            next_second(&replaced).await?;
        }
        let vm = caa.start_vm(&pod, host).await?;
        self.lives.push(Life {
            pod: name,
            vm,
            lives: true,
            state: Some(DomainState::Running),
            hasty: false,
            replaced: replaced.iter().map(Vm::name).collect(),
            foreign: Vec::new(),
            forged: Vec::new(),
        });
        Ok(())
    }
}
