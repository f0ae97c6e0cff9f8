//! A thousand PeerPods of one tenant that can never be released. They must not use up the quota of their cloud, nor keep the VMs of
//! others waiting.

use std::{
    cell::{Cell, OnceCell},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, future::try_join, stream};
use kube::{
    ResourceExt as _,
    api::{DeleteParams, ListParams},
};
use peers::{
    Does, HttpRelay, Seen,
    gcp::{ComputeEngine, Instance, PERMISSIONS},
    libvirt::Libvirtd,
};
use serde_json::json;
use testbed::{
    Operator, OperatorOptions, Settings, Testbed, vm_name,
    wait::{self, DEADLINE},
};
use tokio::time::sleep;

use crate::support::{PROGRAM, Scene, alone_with};

/// PeerPods of one namespace that are stuck.
const COUNT: usize = 1000;

/// PeerPods made at the same time.
const CONCURRENCY: usize = 32;

/// The time that Compute Engine takes for an answer: all slots are taken while the crowd is looked at.
const LATENCY: Duration = Duration::from_millis(200);

/// An upper bound for one deletion on busy processors. A deletion that waited for the crowd would take minutes.
const SOON: Duration = Duration::from_secs(45);

/// The operator leaves a VM alone for this long after Compute Engine has accepted its deletion.
const DELETION: Duration = Duration::from_secs(45);

/// A project that the operator's credentials may not see.
const HIDDEN: &str = "nobodys-project";

const REFUSED: &str =
    r#"{"error":{"code":403,"message":"Required permission","errors":[{"reason":"forbidden"}]}}"#;

/// A slow Compute Engine that refuses requests for the hidden project.
struct Cloud {
    peer: ComputeEngine,
    /// Delays each request.
    slow: HttpRelay,
}

impl Cloud {
    async fn start(dir: &Path) -> Result<Self> {
        let peer = ComputeEngine::start(&dir.join("gcp")).await?;
        let no = Does::Answer { status: 403, headers: Vec::new(), body: REFUSED.to_owned() };
        peer.relay().rule(|seen| seen.path.contains(HIDDEN), no);
        let slow = HttpRelay::start(peer.address()).await?;
        slow.rule(is_for_vms, Does::Delay(LATENCY));
        Ok(Self { peer, slow })
    }

    /// Settings with the key of this service account, which may delete VMs.
    async fn settings(&self, account: &str) -> Result<Settings> {
        let key = self.peer.account(account, &PERMISSIONS, self.slow.address()).await?;
        Ok(Settings::gcp(self.slow.address(), Some(key)))
    }

    /// The number of requests for VMs so far.
    fn requests(&self) -> usize {
        self.slow.seen().iter().filter(|seen| is_for_vms(seen)).count()
    }
}

fn is_for_vms(seen: &Seen) -> bool {
    seen.path.starts_with("/compute/")
}

/// Makes the PeerPods of the crowd and deletes them, then waits until all are stuck.
async fn stick(crowd: &Scene<'_>) -> Result<()> {
    let made = stream::iter(0..COUNT).map(async |number| {
        let id = format!("projects/{HIDDEN}/zones/us-central1-a/instances/podvm-crowd-{number:08x}");
        let owner = json!({
            "apiVersion": "v1", "kind": "Pod", "name": "crowd", "uid": format!("no-pod-{number}"), "controller": true,
        });
        let metadata = json!({
            "name": name(number), "namespace": crowd.namespace, "finalizers": ["peer.pod/finalizer"],
            "ownerReferences": [owner],
        });
        let peerpod = json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPod", "metadata": metadata,
            "spec": { "cloudProvider": "gcp", "instanceID": id },
        });
        crowd.caa.create(peerpod).await.map(drop)
    });
    made.buffer_unordered(CONCURRENCY).try_for_each(|()| async { Ok(()) }).await?;
    let (delete, all) = (DeleteParams::background(), ListParams::default());
    wait::eventually("the crowd is being deleted", 2 * DEADLINE, async || {
        crowd.peerpods.delete_collection(&delete, &all).await?;
        Ok(())
    })
    .await?;
    wait::eventually("all of the crowd are stuck", 2 * DEADLINE, async || {
        let metrics = crowd.operator.metrics().await?;
        let stuck = metrics.sum("peerpod_operator_peerpods_held", &[("reason", "Unauthorized")]);
        let all = f64::from(u32::try_from(COUNT)?);
        ensure!(stuck > all - 0.5, "{stuck} of {all} are stuck");
        Ok(())
    })
    .await
}

fn name(number: usize) -> String {
    format!("crowd-{number}")
}

/// Has VMs of other Pods deleted until `work` is done. Fails if a deletion takes too long.
async fn while_others_are_deleted(
    scene: &Scene<'_>,
    cloud: &Cloud,
    work: impl Future<Output = Result<()>>,
) -> Result<()> {
    let done = Cell::new(false);
    let work = async { work.await.inspect(|()| done.set(true)) };
    let others = async {
        let mut deleted = Vec::new();
        while !done.get() {
            let pod = format!("other-{}", deleted.len());
            let (owner, vm) = (scene.pods.run(&pod).await?, vm_name(&pod));
            cloud.peer.make(&Instance::running(&vm)).await?;
            let peerpod = scene.caa.record(&owner, "gcp", &vm).await?.name_any();
            let start = Instant::now();
            scene.pods.delete(&pod).await?;
            wait::eventually("the VM is deleted", SOON, async || {
                ensure!(!cloud.peer.state(&Instance::running(&vm)).await?.instance, "{vm} is there");
                Ok(())
            })
            .await?;
            println!("{pod}: deleted after {:.1?}", start.elapsed());
            deleted.push((peerpod, Instant::now() + DELETION + SOON));
        }
        for (peerpod, deadline) in deleted {
            // A watch of an object that is gone needs a moment, too.
            let left = deadline.saturating_duration_since(Instant::now()).max(LATENCY * 10);
            wait::gone(&scene.peerpods, &peerpod, left).await?;
        }
        Ok(())
    };
    try_join(work, others).await.map(drop)
}

#[test]
fn a_crowd_that_is_stuck_leaves_slots_and_quota_to_others() -> Result<()> {
    let cloud = OnceCell::new();
    let start = async |testbed: &Testbed, dir: &Path, _: &Libvirtd| {
        let started = Cloud::start(dir).await?;
        let settings = started.settings("operator@peer-pods").await?;
        let mut options = OperatorOptions::new(PROGRAM, dir.join("operator"), settings);
        options.arguments.push("--leader-elect=false".to_owned());
        ensure!(cloud.set(started).is_ok());
        Operator::start(testbed, &options).await
    };
    alone_with(start, async |alone| {
        let cloud = cloud.get().context("it was started")?;
        {
            let scene = alone.scene();
            let crowd = scene.elsewhere().await?;
            Box::pin(while_others_are_deleted(&scene, cloud, stick(&crowd))).await?;

            let (before, start) = (cloud.requests(), Instant::now());
            sleep(Duration::from_secs(30)).await;
            let requests = u32::try_from(cloud.requests() - before)?;
            let rate = f64::from(requests) / start.elapsed().as_secs_f64();
            println!("{rate:.1} requests a second for {COUNT} that are stuck");
            ensure!(rate < 15.0, "{rate} requests a second");

            // Its next look without a change is minutes away.
            let last = name(COUNT - 1);
            crowd.abandon(&last).await?;
            crowd.released(&last).await?;
        }
        let before = cloud.requests();
        alone.operator.mount(&cloud.settings("another@peer-pods").await?)?;
        wait::eventually("all are looked at after a change of the settings", DEADLINE, async || {
            let looks = cloud.requests() - before;
            ensure!(looks >= COUNT - 1, "{looks} requests");
            Ok(())
        })
        .await
    })
}
