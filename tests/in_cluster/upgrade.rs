//! A new version takes over while there is much to do.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams},
};
use peerpod_operator::{NAMESPACE, api::v1alpha1::PeerPod, install::NAME};
use testbed::{
    Pods, Vm,
    wait::{self, DEADLINE},
};

use crate::support::alone;

const DELETIONS: usize = 200;

/// How many Pods are made at the same time.
const CONCURRENCY: usize = 20;

#[test]
fn an_upgrade_amid_200_deletions_loses_nothing_and_releases_nothing_twice() -> Result<()> {
    alone(async |installation| {
        let namespace = installation.testbed.namespace("upgrade").await?;
        let names: Vec<_> = (0..DELETIONS).map(|number| format!("web-{number}")).collect();
        let made = names.iter().map(|name| installation.pod_with_vm(&namespace, name));
        let vms: Vec<Vm> = stream::iter(made).buffer_unordered(CONCURRENCY).try_collect().await?;
        let kept = installation.testbed.namespace("kept").await?;
        let survivor = installation.pod_with_vm(&kept, "web").await?;

        let pods = Pods::new(installation.testbed.client(), &namespace);
        let peerpods: Api<PeerPod> = Api::namespaced(installation.testbed.client(), &namespace);
        for name in names.iter().take(DELETIONS / 2) {
            pods.api().delete(name, &DeleteParams::default()).await?;
        }
        wait::eventually("the operator is amid its work", DEADLINE, async || {
            let left = peerpods.list_metadata(&ListParams::default()).await?.items.len();
            ensure!(left < DELETIONS, "all are there");
            Ok(())
        })
        .await?;
        // A cloud that does not answer for a while leaves work for the next leader, even if the first one is fast.
        installation.libvirtd.pause()?;
        pods.api().delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        let first = installation.holder().await?;
        let deployment = format!("deployment/{NAME}");
        let upgrade = ["rollout", "restart", &deployment, "--namespace", NAMESPACE];
        installation.testbed.cluster().kubectl(&upgrade).await?;
        wait::eventually("another operator leads", 2 * DEADLINE, async || {
            let now = installation.holder().await?;
            ensure!(now.is_some() && now != first, "{now:?} leads");
            Ok(())
        })
        .await?;
        let left = peerpods.list(&ListParams::default()).await?.items.len();
        ensure!(left >= DELETIONS / 2, "{left} PeerPods were left");
        installation.libvirtd.resume()?;
        installation.operators().available().await?;
        for vm in &vms {
            wait::gone(&peerpods, &vm.name(), DEADLINE).await?;
        }
        let domains = installation.host().virsh().domains().await?;
        let left: Vec<_> =
            vms.iter().map(|vm| &vm.machine.domain.name).filter(|it| domains.contains(*it)).collect();
        ensure!(left.is_empty(), "{left:?} are there");
        ensure!(domains.contains(&survivor.machine.domain.name), "a running Pod's machine is gone");

        let audit = installation.testbed.audit()?;
        let mut releases = BTreeMap::<String, usize>::new();
        for request in audit.of_operator()? {
            let accepted = request.verb == "patch" && request.resource == "peerpods" && request.code == 200;
            if accepted && request.namespace == namespace {
                *releases.entry(request.name).or_default() += 1;
            }
        }
        let once: BTreeMap<_, _> = vms.iter().map(|vm| (vm.peerpod.name_any(), 1)).collect();
        assert_eq!(releases, once);
        Ok(())
    })
}
