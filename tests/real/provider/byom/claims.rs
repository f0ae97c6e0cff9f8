//! Several PeerPods that name one machine.

use std::{cell::OnceCell, path::Path};

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};
use testbed::{
    Operator, Testbed, peerpod_object,
    wait::{self, DEADLINE},
};

use super::{RELEASED, with_operator};
use crate::support::alone_with;

#[test]
fn a_machine_that_comes_back_to_its_former_pod_does_not_restart_under_the_next_one() -> Result<()> {
    let stand = OnceCell::new();
    let start = async |testbed: &Testbed, dir: &Path, _: &_| with_operator(testbed, dir, &stand).await;
    alone_with(start, async |alone| {
        let (scene, stand) = (alone.scene(), stand.get().context("it was started")?);
        let address = stand.address();
        let (web, since) = (scene.pods.run("web").await?, Timestamp::now());
        stand.give_since("web", since).await?;
        let recorded = scene.caa.record(&web, "byom", &address).await?.name_any();
        // cloud-api-adaptor returns the machine itself, and gives it to another Pod.
        stand.pool.end(&address).await?;
        let next = scene.pods.run("next").await?;
        scene.caa.record(&next, "byom", &address).await?;
        knows(&alone.operator, 2).await?;
        scene.pods.delete("web").await?;
        wait::eventually("the operator sees that the machine is available", DEADLINE, async || {
            let labels = [("call", "describe"), ("result", "unsettled")];
            let seen = alone.operator.metrics().await?.sum("peerpod_operator_provider_calls_total", &labels);
            ensure!(seen > 0.0, "it has not looked yet");
            Ok(())
        })
        .await?;
        // It writes the pool as it read it before.
        stand.give_since("web", since).await?;
        scene.held(&recorded, "ClaimedByAnother").await?;
        ensure!(stand.told()?.is_none(), "the machine of another Pod was told to restart");
        ensure!(stand.pool.content().await?.allocated[&address] == "web");
        Ok(())
    })
}

#[test]
fn forged_peerpods_neither_keep_a_machine_nor_take_an_unrecorded_one() -> Result<()> {
    const FORGED: usize = 10;
    let stand = OnceCell::new();
    let start = async |testbed: &Testbed, dir: &Path, _: &_| with_operator(testbed, dir, &stand).await;
    alone_with(start, async |alone| {
        let (scene, stand) = (alone.scene(), stand.get().context("it was started")?);
        let elsewhere = scene.elsewhere().await?;
        let address = stand.address();

        // PeerPods without a Pod name the machine, in another namespace.
        let web = scene.pods.run("web").await?;
        stand.give("web").await?;
        for _ in 0..FORGED {
            let mut object = forged(&elsewhere.namespace, "web", &address)?;
            object["metadata"]["ownerReferences"] = json!([]);
            scene.caa.create(object).await?;
        }
        let recorded = scene.caa.record(&web, "byom", &address).await?.name_any();
        knows(&alone.operator, FORGED + 1).await?;
        scene.pods.delete("web").await?;
        wait::gone(&scene.peerpods, &recorded, RELEASED).await?;
        ensure!(stand.told()?.is_some() && stand.pool.content().await?.allocations == 0);
        elsewhere.kubectl(&["delete", "peerpods", "--all"]).await?;
        knows(&alone.operator, 0).await?;

        // cloud-api-adaptor has given the machine to a Pod and not recorded that yet.
        let classes: Api<RuntimeClass> = Api::all(scene.testbed.client());
        let class = json!({ "metadata": { "name": "kata-remote" }, "handler": "kata-remote" });
        classes.create(&PostParams::default(), &serde_json::from_value(class)?).await?;
        let victim = json!({
            "metadata": { "name": "db-0" },
            "spec": {
                "nodeName": "fake-0", "runtimeClassName": "kata-remote", "terminationGracePeriodSeconds": 1,
                "automountServiceAccountToken": false, "containers": [{ "name": "main", "image": "any" }],
            },
        });
        let pods = scene.pods.api();
        let victim = pods.create(&PostParams::default(), &serde_json::from_value(victim)?).await?;
        stand.give("db-0").await?;
        let thief = scene.caa.create(forged(&elsewhere.namespace, "db-0", &address)?).await?.name_any();
        elsewhere.kubectl(&["delete", "peerpod", &thief, "--wait=false"]).await?;
        let told = elsewhere.held(&thief, "ClaimedByAnother").await?.message;
        ensure!(told.contains("a Pod of another namespace has the same name"), "{told}");
        elsewhere.shows_none_of(&thief, &[&scene.namespace]).await?;
        ensure!(stand.told()?.is_none(), "the machine of a Pod that starts was told to restart");
        ensure!(stand.pool.content().await?.allocated[&address] == "db-0");

        // From now on the record protects it.
        let recorded = scene.caa.record(&victim, "byom", &address).await?.name_any();
        knows(&alone.operator, 2).await?;
        elsewhere.held(&thief, "ClaimedByAnother").await?;
        ensure!(stand.told()?.is_none() && stand.pool.content().await?.allocated[&address] == "db-0");
        scene.pods.delete("db-0").await?;
        wait::gone(&scene.peerpods, &recorded, RELEASED).await?;
        // Either PeerPod may have had the machine returned.
        wait::gone(&elsewhere.peerpods, &thief, RELEASED).await?;
        ensure!(stand.told()?.is_some() && stand.pool.content().await?.allocations == 0);
        classes.delete("kata-remote", &DeleteParams::default()).await?;
        Ok(())
    })
}

/// Waits until the operator knows exactly so many PeerPods.
async fn knows(operator: &Operator, count: usize) -> Result<()> {
    wait::eventually(&format!("the operator knows {count} PeerPods"), DEADLINE, async || {
        let known = operator.metrics().await?.sum("peerpod_operator_peerpods", &[]);
        ensure!((known - f64::from(u32::try_from(count)?)).abs() < 0.5, "it knows {known}");
        Ok(())
    })
    .await
}

/// A PeerPod in this namespace that names a Pod of this name, which does not exist there.
fn forged(namespace: &str, pod: &str, address: &str) -> Result<Value> {
    let metadata = json!({ "name": pod, "namespace": namespace, "uid": "7d9f5c1e-forged" });
    Ok(peerpod_object(&serde_json::from_value(json!({ "metadata": metadata }))?, "byom", address))
}
