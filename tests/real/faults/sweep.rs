//! One operator sweeps every cloud.

use std::{cell::OnceCell, path::Path};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use kube::ResourceExt as _;
use peerpod_operator::{
    api::v1alpha1::PeerPod,
    provider::contract::{Behavior, Example, Kind},
    sweep::CloudSnapshot,
};
use peers::libvirt::Libvirtd;
use testbed::{
    Operator, OperatorOptions, Testbed,
    wait::{self, DEADLINE},
};

use crate::{
    support::{Scene, alone_with, clouds::CloudPeer, condition},
    sweep::{swept, swept_at, uid_of_cluster},
};

/// The clouds whose addresses and interfaces name their VM. At other clouds a person must delete the remains.
const REMAINS_GO: [&str; 2] = ["aws", "alibabacloud"];

/// The clouds whose lists do not say whether a VM runs.
const NO_POWER: [&str; 2] = ["azure", "byom"];

/// Something at one of the clouds.
struct At<'a> {
    cloud: &'a CloudPeer,
    pod: String,
    example: Example,
}

impl<'a> At<'a> {
    /// Makes a resource for a Pod that does not exist; `None` if the cloud has no such kind.
    async fn make(cloud: &'a CloudPeer, kind: Kind, pod: &str) -> Result<Option<Self>> {
        let pod = format!("{}-{pod}", cloud.name);
        let made = cloud.make(kind, &pod).await?;
        Ok(made.map(|example| Self { cloud, pod, example }))
    }

    /// A pod VM for a Pod that does not exist.
    async fn vm(cloud: &'a CloudPeer, pod: &str) -> Result<Self> {
        Self::make(cloud, Kind::Running, pod).await?.context("every cloud has VMs that run")
    }

    /// Makes a VM for a running Pod, and a PeerPod that records it; `None` if the cloud has no such kind. The Pod comes first: the
    /// sweep spares VMs that a Pod may run on.
    async fn recorded(
        scene: &Scene<'_>,
        cloud: &'a CloudPeer,
        kind: Kind,
        pod: &str,
    ) -> Result<Option<(Self, PeerPod)>> {
        let owner = scene.pods.run(&format!("{}-{pod}", cloud.name)).await?;
        let Some(vm) = Self::make(cloud, kind, pod).await? else { return Ok(None) };
        let peerpod = scene.caa.record(&owner, cloud.name, &vm.example.id).await?;
        Ok(Some((vm, peerpod)))
    }

    /// The same with a running VM.
    async fn tracked(scene: &Scene<'_>, cloud: &'a CloudPeer, pod: &str) -> Result<(Self, PeerPod)> {
        Self::recorded(scene, cloud, Kind::Running, pod).await?.context("every cloud has VMs that run")
    }

    async fn goes(&self) -> Result<()> {
        wait::eventually(&format!("all of {} is gone", self.pod), 2 * DEADLINE, async || {
            let left = self.cloud.left(&self.example).await?;
            ensure!(!left.vm && left.belongings == 0, "there is {left:?}");
            Ok(())
        })
        .await
    }

    async fn stays(&self) -> Result<()> {
        let left = self.cloud.left(&self.example).await?;
        ensure!(left.vm, "{} is gone", self.pod);
        Ok(())
    }
}

/// A cloud with VMs of all kinds: some must be deleted, some must stay, and some are lost.
struct Swept<'a> {
    cloud: &'a CloudPeer,
    strays: Vec<At<'a>>,
    bystanders: Vec<At<'a>>,
    remains: Option<(At<'a>, usize)>,
    tracked: String,
    gone: String,
    stopped: Option<String>,
}

impl<'a> Swept<'a> {
    async fn fill(scene: &Scene<'_>, cloud: &'a CloudPeer) -> Result<Self> {
        let (web, tracked) = At::tracked(scene, cloud, "web").await?;
        scene.pods.run(&format!("{}-unrecorded", cloud.name)).await?;
        let unrecorded = At::vm(cloud, "unrecorded").await?;
        let mut bystanders = vec![web, unrecorded];
        // In byom's pool every allocation is a pod VM.
        if cloud.name != "byom" {
            bystanders.extend(At::make(cloud, Kind::Foreign, "foreign").await?);
        }

        let (lost, gone) = At::tracked(scene, cloud, "gone").await?;
        let stopped = At::recorded(scene, cloud, Kind::Stopped, "stopped").await?;
        let stopped = stopped.filter(|_| !NO_POWER.contains(&cloud.name));

        // cloud-api-adaptor ended before it wrote a PeerPod, and a user removed a PeerPod while its VM was there.
        let crashed = At::vm(cloud, "crashed").await?;
        let (removed, peerpod) = At::tracked(scene, cloud, "removed").await?;
        scene.caa.release(&peerpod).await?;
        scene.pods.delete(&removed.pod).await?;
        let remains = match At::make(cloud, Kind::Remains, "old").await? {
            Some(old) => {
                let left = cloud.left(&old.example).await?.belongings;
                Some((old, left))
            }
            None => None,
        };
        // This comes last: byom gives a free machine to the next Pod, and a PeerPod would then record a stray's machine.
        cloud.remove(&lost.example).await?;
        let strays = vec![crashed, removed];
        let (tracked, gone) = (tracked.name_any(), gone.name_any());
        let stopped = stopped.map(|(_, peerpod)| peerpod.name_any());
        Ok(Self { cloud, strays, bystanders, remains, tracked, gone, stopped })
    }

    /// Waits until the strays are deleted and the lost VMs are reported.
    async fn settles(&self, scene: &Scene<'_>) -> Result<()> {
        for stray in &self.strays {
            stray.goes().await?;
        }
        if let Some((old, _)) = self.remains.as_ref().filter(|_| REMAINS_GO.contains(&self.cloud.name)) {
            old.goes().await?;
        }
        scene.held(&self.gone, "VMGone").await?;
        if let Some(stopped) = &self.stopped {
            scene.held(stopped, "VMStopped").await?;
        }
        Ok(())
    }

    async fn spares_others(&self, scene: &Scene<'_>, operator: &Operator) -> Result<()> {
        for bystander in &self.bystanders {
            bystander.stays().await?;
        }
        let found = self.shown(operator).await?.untracked;
        let vms: Vec<_> =
            found.iter().filter(|it| it.kind == "vm").map(|it| (&*it.name, &*it.verdict)).collect();
        let spared = self.bystanders[1].example.name.as_str();
        // An allocation of byom does not contain the name of a VM.
        ensure!(
            vms.len() == 1 && vms[0].1 == "spared" && (vms[0].0 == spared || self.cloud.name == "byom"),
            "{} instead of {spared}: {found:#?}",
            self.cloud.name
        );
        if let Some((old, before)) = self.remains.as_ref().filter(|_| !REMAINS_GO.contains(&self.cloud.name))
        {
            let left = self.cloud.left(&old.example).await?.belongings;
            ensure!(left == *before, "{left} of {before} things are left of {}", old.pod);
        }
        let tracked = scene.peerpods.get(&self.tracked).await?;
        ensure!(condition(&tracked).is_none(), "{:?}", tracked.status);
        Ok(())
    }

    /// The operator's last look at the cloud.
    async fn shown(&self, operator: &Operator) -> Result<CloudSnapshot> {
        // The operator serves only a few requests at once.
        let snapshot =
            wait::eventually("the operator is asked", DEADLINE, async || operator.sweep().await).await?;
        let found = snapshot.clouds.into_iter().find(|it| it.cloud == self.cloud.name);
        found.with_context(|| format!("{} is not shown", self.cloud.name))
    }

    /// Lists end with an error. The operator concludes nothing until they are complete again.
    async fn endures_half_lists(&self, scene: &Scene<'_>, operator: &Operator) -> Result<()> {
        let web = &self.bystanders[0];
        // The pool of byom is in the cluster, so its fault would be a fault of all clouds. A cut-off list of
        // libvirt would show by the time.
        if ["byom", "libvirt"].contains(&self.cloud.name)
            || !self.cloud.behave(Behavior::CutsListsOff, &web.example).await?
        {
            return Ok(());
        }
        wait::eventually(&format!("{} does not list everything", self.cloud.name), DEADLINE, async || {
            self.shown(operator).await?.problem.context("it does").map(drop)
        })
        .await?;
        let late = At::vm(self.cloud, "late").await?;
        let before = self.shown(operator).await?.listed;
        swept_at(operator, |cloud| cloud == "libvirt").await?;
        ensure!(self.shown(operator).await?.listed == before, "half a list of {} counts", self.cloud.name);
        late.stays().await?;
        self.spares_others(scene, operator).await?;
        self.cloud.behave(Behavior::Well, &web.example).await?;
        late.goes().await
    }
}

#[test]
fn every_cloud_deletes_strays_reports_lost_vms_and_ignores_partial_lists() -> Result<()> {
    let clouds = OnceCell::new();
    let start = async |testbed: &Testbed, dir: &Path, _: &Libvirtd| {
        let uid = uid_of_cluster(testbed).await?;
        let all =
            CloudPeer::start_all(testbed, &[("SWEEP_CLUSTER", &uid), ("SWEEP_EXCLUSIVE", "true")]).await?;
        let mut options: OperatorOptions = CloudPeer::options(&all, dir)?;
        let sweep = ["--sweep=delete", "--sweep-interval=2s", "--sweep-grace=3s", "--sweep-max=100"];
        options.arguments.extend(sweep.map(str::to_owned));
        let operator = Operator::start(testbed, &options).await;
        ensure!(clouds.set(all).is_ok());
        operator
    };
    alone_with(start, async |alone| {
        let (scene, clouds) = (alone.scene(), clouds.get().context("they were started")?);
        let all = try_join_all(clouds.iter().map(|cloud| Swept::fill(&scene, cloud))).await?;
        try_join_all(all.iter().map(|it| it.settles(&scene))).await?;
        swept(&alone.operator).await?;
        try_join_all(all.iter().map(|it| it.spares_others(&scene, &alone.operator))).await?;
        try_join_all(all.iter().map(|it| it.endures_half_lists(&scene, &alone.operator))).await.map(drop)
    })
}
