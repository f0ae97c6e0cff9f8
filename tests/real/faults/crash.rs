//! The operator is killed at the worst moment.

use std::{cell::OnceCell, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use peers::libvirt::{Libvirtd, Relay};
use serde_json::json;
use testbed::{
    Operator, OperatorOptions, Settings, Testbed,
    wait::{self, DEADLINE},
};

use crate::{
    peerpod::deletion::{STORAGE_VOL_DELETE, dropped::call_of},
    support::{Alone, PROGRAM, alone, alone_with},
};

/// Whether the operator may patch PeerPods: Kubernetes' own answer. It needs that to release finalizers.
async fn may_patch(alone: &Alone<'_>) -> Result<bool> {
    let operator = "system:serviceaccount:confidential-containers-system:peerpod-operator";
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": operator,
            "resourceAttributes": {
                "group": "confidentialcontainers.org",
                "resource": "peerpods",
                "verb": "patch",
                "namespace": alone.namespace,
            },
        },
    });
    let review = serde_json::from_value(review)?;
    let reviews: kube::Api<k8s_openapi::api::authorization::v1::SubjectAccessReview> =
        kube::Api::all(alone.testbed.client());
    let answer = reviews.create(&kube::api::PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

async fn until_patch_is(allowed: bool, alone: &Alone<'_>) -> Result<()> {
    wait::eventually("the operator's right has changed", DEADLINE, async || {
        ensure!(may_patch(alone).await? == allowed);
        Ok(())
    })
    .await
}

#[test]
fn an_operator_killed_between_deletion_and_release_finishes_after_its_restart() -> Result<()> {
    alone(async |alone| {
        let vm = alone.scene().pod_with_vm("web").await?;
        // Without the right to patch, the operator can do everything up to the release, but not the release.
        alone
            .testbed
            .cluster()
            .kubectl(&["patch", "clusterrole", "peerpod-operator", "--type=json", "--patch", WITHOUT_PATCH])
            .await?;
        until_patch_is(false, alone).await?;
        alone.scene().pods.delete("web").await?;
        wait::eventually("the machine is gone", DEADLINE, async || alone.scene().vanished(&vm).await).await?;
        alone.operator.kill().await?;
        let left = alone.scene().peerpods.get(&vm.name()).await?;
        ensure!(!left.finalizers().is_empty(), "the finalizer was released without the right to");

        alone.testbed.install_objects().await?;
        until_patch_is(true, alone).await?;
        alone.operator.start_again()?;
        alone.operator.ready().await?;
        alone.scene().released(&vm.name()).await
    })
}

/// Removes all verbs of the first rule except those for reading.
const WITHOUT_PATCH: &str =
    r#"[{"op": "replace", "path": "/rules/0/verbs", "value": ["get", "list", "watch"]}]"#;

#[test]
fn an_operator_killed_while_the_cloud_deletes_finishes_after_its_restart() -> Result<()> {
    let relay = OnceCell::new();
    let start = async |testbed: &Testbed, dir: &Path, libvirtd: &Libvirtd| {
        let started = Relay::start(libvirtd.host(), dir, Duration::ZERO)?;
        let settings = Settings::libvirt(&started.uri().to_string());
        let _ = relay.set(started);
        Operator::start(testbed, &OperatorOptions::new(PROGRAM, dir.join("operator"), settings)).await
    };
    alone_with(start, async |alone| {
        let relay = relay.get().context("it was started")?;
        let vms = [alone.scene().pod_with_vm("a").await?, alone.scene().pod_with_vm("b").await?];
        relay.lose([call_of(STORAGE_VOL_DELETE)]);
        for pod in ["a", "b"] {
            alone.scene().pods.delete(pod).await?;
        }
        for vm in &vms {
            let name = &vm.machine.domain.name;
            wait::eventually("the operator has turned the VM off", DEADLINE, async || {
                let state = alone.libvirtd.host().virsh().run(&["domstate", name]).await?;
                ensure!(state.trim() == "shut off", "{name} is {state}");
                Ok(())
            })
            .await?;
        }
        alone.operator.kill().await?;
        relay.lose_none();
        alone.operator.start_again()?;
        alone.operator.ready().await?;
        for vm in &vms {
            alone.scene().reaped(vm).await?;
        }
        Ok(())
    })
}

#[test]
fn machines_left_while_no_operator_ran_are_reaped_at_its_start() -> Result<()> {
    alone(async |alone| {
        let vm = alone.scene().pod_with_vm("web").await?;
        alone.operator.kill().await?;
        alone.scene().pods.delete("web").await?;
        alone.scene().going(&vm.name()).await?;
        alone.scene().lives(&vm).await?;
        alone.operator.start_again()?;
        alone.scene().reaped(&vm).await
    })
}
