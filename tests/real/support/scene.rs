//! A test's own namespace, and what the operator does there.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::{api::core::v1::Event, apimachinery::pkg::apis::meta::v1::Condition};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use peerpod_operator::api::v1alpha1::{PeerPod, RELEASE_ABANDON, RELEASE_ANNOTATION};
use peers::libvirt::{Host, POOL};
use serde_json::json;
use testbed::{
    Caa, Operator, Pods, Request, Testbed, Vm,
    wait::{self, DEADLINE},
};

use super::condition;

/// A test's own namespace and its surroundings.
pub struct Scene<'a> {
    pub testbed: &'a Testbed,
    pub operator: &'a Operator,
    pub host: &'a Host,
    pub caa: &'a Caa,
    pub namespace: String,
    pub pods: Pods,
    pub peerpods: Api<PeerPod>,
}

impl<'a> Scene<'a> {
    pub(super) fn new(
        testbed: &'a Testbed,
        operator: &'a Operator,
        host: &'a Host,
        caa: &'a Caa,
        namespace: String,
    ) -> Self {
        let pods = Pods::new(testbed.client(), &namespace);
        let peerpods = Api::namespaced(testbed.client(), &namespace);
        Self { testbed, operator, host, caa, namespace, pods, peerpods }
    }

    /// The same in another namespace.
    pub async fn elsewhere(&self) -> Result<Self> {
        let namespace = self.testbed.namespace("test").await?;
        Ok(Self::new(self.testbed, self.operator, self.host, self.caa, namespace))
    }

    /// A running Pod with its machine.
    pub async fn pod_with_vm(&self, name: &str) -> Result<Vm> {
        let pod = self.pods.run(name).await?;
        self.caa.start_vm(&pod, self.host).await
    }

    /// kubectl in this namespace.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let mut all = vec!["--namespace", &self.namespace];
        all.extend(arguments);
        self.testbed.cluster().kubectl(&all).await
    }

    /// Waits until a PeerPod is being deleted.
    pub async fn going(&self, peerpod: &str) -> Result<()> {
        let going = |peerpod: &PeerPod| peerpod.metadata.deletion_timestamp.is_some();
        wait::present(&self.peerpods, peerpod, "it is being deleted", DEADLINE, going).await.map(drop)
    }

    /// Gives the machine of a PeerPod up, as an administrator would.
    pub async fn abandon(&self, peerpod: &str) -> Result<()> {
        let annotations = json!({ RELEASE_ANNOTATION: RELEASE_ABANDON });
        let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
        self.peerpods.patch(peerpod, &PatchParams::default(), &patch).await.map(drop)?;
        Ok(())
    }

    /// Waits until a PeerPod is gone.
    pub async fn released(&self, peerpod: &str) -> Result<()> {
        wait::gone(&self.peerpods, peerpod, DEADLINE).await
    }

    /// Waits until a PeerPod reports why the operator does not release it. Returns the condition that is True.
    pub async fn held(&self, peerpod: &str, reason: &str) -> Result<Condition> {
        let what = format!("the PeerPod {peerpod} is held because of {reason}");
        let holds = |peerpod: &PeerPod| condition(peerpod).is_some_and(|it| it.reason == reason);
        let held = wait::present(&self.peerpods, peerpod, &what, DEADLINE, holds).await?;
        condition(&held).context("the condition was there")
    }

    /// Waits for an event about a PeerPod. Fails if it, or the status, contains one of these texts.
    pub async fn shows_none_of(&self, peerpod: &str, private: &[&str]) -> Result<()> {
        let status = format!("{:?}", self.peerpods.get(peerpod).await?.status);
        let events: Api<Event> = Api::namespaced(self.testbed.client(), &self.namespace);
        let about = ListParams::default().fields(&format!("involvedObject.name={peerpod}"));
        // The operator writes the status first.
        let events = wait::eventually(&format!("an event about {peerpod}"), DEADLINE, async || {
            let events = events.list(&about).await?.items;
            let messages: Vec<_> = events.into_iter().filter_map(|it| it.message).collect();
            ensure!(!messages.is_empty(), "there is no event about {peerpod}");
            Ok(messages.join(" "))
        })
        .await?;
        for private in private {
            ensure!(!status.contains(private), "the status shows {private}: {status}");
            ensure!(!events.contains(private), "an event shows {private}: {events}");
        }
        Ok(())
    }

    /// Fails unless the domain runs and both volumes of the machine exist, as virsh sees them.
    pub async fn lives(&self, vm: &Vm) -> Result<()> {
        let state = self.host.virsh().run(&["domstate", &vm.machine.domain.name]).await?;
        ensure!(state.trim() == "running", "the domain {} is {state}", vm.machine.domain.name);
        let volumes = self.host.virsh().volumes(POOL).await?;
        for volume in [&vm.machine.root, &vm.machine.cloudinit] {
            ensure!(volumes.contains(&volume.name), "the volume {} is gone", volume.name);
        }
        Ok(())
    }

    /// Waits until the operator has released the PeerPod of this VM. Fails if the VM or a volume of it is left.
    pub async fn reaped(&self, vm: &Vm) -> Result<()> {
        self.released(&vm.name()).await?;
        self.vanished(vm).await
    }

    /// Fails if virsh sees the domain or a volume of the machine.
    pub async fn vanished(&self, vm: &Vm) -> Result<()> {
        let (domains, volumes) = (self.host.virsh().domains().await?, self.host.virsh().volumes(POOL).await?);
        ensure!(!domains.contains(&vm.machine.domain.name), "the domain {} is there", vm.machine.domain.name);
        for volume in [&vm.machine.root, &vm.machine.cloudinit] {
            ensure!(!volumes.contains(&volume.name), "the volume {} is there", volume.name);
        }
        Ok(())
    }

    /// Waits until the operator has done all earlier work: it then has reaped one more machine.
    pub async fn operator_catches_up(&self) -> Result<()> {
        let elsewhere = self.elsewhere().await?;
        let vm = elsewhere.pod_with_vm("catch-up").await?;
        elsewhere.pods.delete("catch-up").await?;
        elsewhere.released(&vm.name()).await
    }

    /// All writes of the operator in this namespace so far, also refused ones.
    pub fn writes(&self) -> Result<Vec<Request>> {
        let mut requests = self.testbed.audit()?.of_operator()?;
        requests.retain(|request| request.is_write() && request.namespace == self.namespace);
        Ok(requests)
    }
}
