//! Another program keeps changing the objects that the operator writes to.

use anyhow::{Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use kube::{
    ResourceExt as _,
    api::{Patch, PatchParams},
};
use peerpod_operator::api::v1alpha1::FINALIZER;
use serde_json::json;
use testbed::{
    Request,
    wait::{self, DEADLINE},
};

use super::{CONCURRENCY, Hundred, is_release};
use crate::support::{Alone, alone};

/// Another program's finalizer. A finalizer cannot be added to an object that is being deleted, but the order can be changed.
const OTHER: &str = "example.com/busy";
/// How often all PeerPods change between the operator's read and its write.
const ROUNDS: u32 = 3;

impl Hundred {
    /// Sets these finalizers on every PeerPod that has the operator's. Removes the other program's from the rest, so that they are deleted.
    async fn put(&self, alone: &Alone<'_>, finalizers: [&str; 2]) -> Result<()> {
        let api = alone.scene().peerpods;
        let changes = self.left(alone).await?.into_iter().map(|peerpod| {
            let ours = peerpod.finalizers().iter().any(|it| it == FINALIZER);
            let finalizers = if ours { finalizers.to_vec() } else { Vec::new() };
            let patch = json!({
                "metadata": { "finalizers": finalizers, "resourceVersion": peerpod.resource_version() },
            });
            let api = &api;
            async move {
                match api.patch(&peerpod.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await {
                    // The operator changed or released the PeerPod first.
                    Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
                    written => written.map(drop),
                }
            }
        });
        stream::iter(changes).buffer_unordered(CONCURRENCY).try_collect::<()>().await?;
        Ok(())
    }
}

#[test]
fn peerpods_that_change_between_read_and_write() -> Result<()> {
    alone(async |alone| {
        let machines = Hundred::start(alone).await?;
        machines.put(alone, [FINALIZER, OTHER]).await?;
        machines.until_the_middle(alone).await?;
        let struck = Timestamp::now();
        for round in 0..ROUNDS {
            // The operator looks again after each change. The cloud holds that look up. When the cloud answers, the second change has
            // outdated what the operator read after the first one. Looks that began before the first change are outdated only if the
            // order stays changed, and a slow operator has no others.
            alone.libvirtd.pause()?;
            let changed = async {
                machines.put(alone, [OTHER, FINALIZER]).await?;
                if round == 1 { Ok(()) } else { machines.put(alone, [FINALIZER, OTHER]).await }
            };
            let changed = changed.await;
            alone.libvirtd.resume()?;
            changed?;
        }
        // The other program releases its PeerPods.
        wait::eventually("all PeerPods are released", DEADLINE, async || {
            machines.put(alone, [FINALIZER, OTHER]).await?;
            ensure!(machines.left(alone).await?.is_empty());
            Ok(())
        })
        .await?;
        machines.reaped(alone).await?;
        let cost = machines.cost(alone, &[&alone.operator], struck).await?;
        let is_conflict = |request: &&Request| is_release(request) && request.code == 422;
        let conflicts = cost.requests.iter().filter(is_conflict).count();
        ensure!(conflicts > 0, "no write met a conflict");
        cost.within(ROUNDS + 3)
    })
}
