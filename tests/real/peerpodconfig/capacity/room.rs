//! Nodes keep room for the peer pods that run.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testbed::{Pods, Testbed};

use super::{Stage, VM};
use crate::support::without_operator;

/// How old a count of Pods may be when the operator writes because of it.
const AGE_OF_COUNTS: Duration = Duration::from_secs(5);

/// A Pod that asks for VMs. It is bound to this node, or waits for a scheduler.
fn peer_pod(name: &str, node: Option<&str>, vms: u32) -> Result<Pod> {
    let request = BTreeMap::from([(VM, vms.to_string())]);
    let resources = json!({ "requests": request, "limits": request });
    Ok(serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": {
            "nodeName": node,
            "schedulerName": "nobody",
            "tolerations": [{ "operator": "Exists" }],
            "containers": [{ "name": "main", "image": "any", "resources": resources }],
        },
    }))?)
}

/// Binds a Pod to a node, as a scheduler does.
async fn bind(pods: &Api<Pod>, name: &str, node: &str) -> Result<()> {
    let binding = json!({ "metadata": { "name": name }, "target": { "kind": "Node", "name": node } });
    let _: Value = pods.create_subresource("binding", name, &PostParams::default(), &binding).await?;
    Ok(())
}

#[test]
fn peer_pods_that_run_keep_their_room() -> Result<()> {
    without_operator(async |testbed| {
        let namespace = testbed.namespace("capacity").await?;
        let pods: Api<Pod> = Api::namespaced(testbed.client(), &namespace);
        let mut stage = Stage::new(testbed).await?;
        // More nodes than the operator lists Pods for one by one.
        let names: Vec<_> = (0..20).map(|number| format!("many-{number:02}")).collect();
        for name in &names {
            stage.join(name).await?;
        }
        stage.want(&[json!({ "limit": 80 })])?;
        for name in &names {
            stage.advertises(name, Some("4")).await?;
        }
        assert_eq!(stage.written(names.len()).await?, names);
        for (node, count) in [("many-00", 3), ("many-01", 2)] {
            for number in 0..count {
                let name = format!("{node}-{number}");
                pods.create(&PostParams::default(), &peer_pod(&name, None, 1)?).await?;
                bind(&pods, &name, node).await?;
            }
        }
        // Any user who may create Pods may name any node and any number. No kubelet accepted this one.
        pods.create(&PostParams::default(), &peer_pod("huge", Some("many-02"), 1_000_000)?).await?;
        let ended = Patch::Merge(json!({ "status": { "phase": "Succeeded" } }));
        pods.patch_status("many-01-0", &PatchParams::default(), &ended).await?;
        stage.want(&[json!({ "limit": 22 })])?;
        stage.advertises("many-00", Some("3")).await?;
        for name in &names[1..] {
            stage.advertises(name, Some("1")).await?;
        }
        assert_eq!(stage.written(names.len()).await?, names);
        // Few nodes change, so the operator asks for the Pods of each one. The node that was reset has room for its running Pods again.
        stage.reset("many-00", Some("0")).await?;
        stage.advertises("many-00", Some("3")).await?;
        // All its peer pods are deleted. The next pass balances the shares, because of a timer or because of another write.
        for number in 0..3 {
            pods.delete(&format!("many-00-{number}"), &DeleteParams::default().grace_period(0)).await?;
        }
        tokio::time::sleep(AGE_OF_COUNTS).await;
        stage.want(&[json!({ "limit": "21" })])?;
        for (name, vms) in [("many-00", "2"), ("many-01", "1"), ("many-02", "1"), ("many-19", "1")] {
            stage.advertises(name, Some(vms)).await?;
        }
        Pods::new(testbed.client(), &namespace).clear().await?;
        for name in &names {
            stage.leave(name).await?;
        }
        Ok(())
    })
}

#[test]
fn a_late_peer_pod_regains_its_capacity() -> Result<()> {
    on_its_way("late", async |_, stage| Ok(stage))
}

#[test]
fn a_late_peer_pod_regains_its_capacity_from_a_new_operator() -> Result<()> {
    on_its_way("orphaned", async |testbed, stage| {
        drop(stage);
        Stage::new(testbed).await
    })
}

/// Lowers shares while Pods are on their way to a node. `then` returns the stage that continues.
fn on_its_way(
    namespace: &str,
    then: impl for<'a> AsyncFnOnce(&'a Testbed, Stage<'a>) -> Result<Stage<'a>>,
) -> Result<()> {
    without_operator(async |testbed| {
        let namespace = testbed.namespace(namespace).await?;
        let pods: Api<Pod> = Api::namespaced(testbed.client(), &namespace);
        for name in ["first", "second"] {
            pods.create(&PostParams::default(), &peer_pod(name, None, 1)?).await?;
        }
        let stage = Stage::new(testbed).await?;
        for name in ["a", "b"] {
            stage.join(name).await?;
        }
        stage.want(&[json!({ "limit": 4 })])?;
        stage.shares(&[("a", "2"), ("b", "2")]).await?;
        stage.want(&[json!({ "limit": 2 })])?;
        stage.shares(&[("a", "1"), ("b", "1")]).await?;
        let stage = then(testbed, stage).await?;
        stage.want(&[json!({ "limit": 2 })])?;
        // The scheduler does not know the new shares yet.
        for name in ["first", "second"] {
            bind(&pods, name, "a").await?;
        }
        stage.advertises("a", Some("2")).await?;
        stage.advertises("b", None).await?;
        Pods::new(testbed.client(), &namespace).clear().await?;
        for name in ["a", "b"] {
            stage.leave(name).await?;
        }
        Ok(())
    })
}
