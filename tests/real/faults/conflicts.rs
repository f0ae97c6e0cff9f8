//! Somebody else keeps changing what the operator writes to.

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

/// A finalizer of somebody else's. None can be added to what is being deleted; but the order can be changed.
const OTHER: &str = "example.com/busy";
/// How often all PeerPods change between what the operator reads and what it writes.
const ROUNDS: u32 = 3;

impl Hundred {
    /// Gives every PeerPod that has our finalizer these; takes what is somebody else's from the others, so that they go.
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
                    // The operator was there first.
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
        for _ in 0..ROUNDS {
            // Each change brings another look, which the cloud holds up. What was read after the first change is
            // outdated by the second one when the cloud has answered.
            alone.libvirtd.pause()?;
            let changed = async {
                machines.put(alone, [OTHER, FINALIZER]).await?;
                machines.put(alone, [FINALIZER, OTHER]).await
            };
            let changed = changed.await;
            alone.libvirtd.resume()?;
            changed?;
        }
        // Whoever else held them lets go.
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
