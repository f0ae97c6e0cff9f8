//! Nodes that two configurations select.

use std::time::Duration;

use anyhow::{Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Namespace, Pod},
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use peerpod_operator::{NAMESPACE, peerpodconfig::resources::CONFIG_LABEL};
use serde_json::json;
use testbed::wait::{self, DEADLINE};
use tokio::time::sleep;

use super::stage::{Stage, configuring};

#[test]
fn of_two_configurations_for_one_node_the_older_one_keeps_it() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 2).await?;
        stage.configure("older", json!({ "limit": 4 })).await?;
        stage.until("older", "Ready", "AllReady").await?;
        wait::second_after(Timestamp::now()).await?;
        stage.configure("younger", json!({ "limit": 20 })).await?;
        let message = stage.until("younger", "Conflict", "NodesTaken").await?;
        assert!(message.contains("older"), "{message}");
        stage.until("younger", "Ready", "NodesTaken").await?;
        ensure!(!stage.has_daemon_set("younger").await?, "two would run on a node");
        stage.shares(&[Some(2), Some(2)]).await?;
        // When the older one is gone, the younger one gets the nodes.
        stage.configs.delete("older", &DeleteParams::default()).await?;
        stage.until("younger", "Ready", "AllReady").await?;
        stage.shares(&[Some(10), Some(10)]).await?;
        stage.clear("younger").await
    })
}

#[test]
fn a_node_that_two_configurations_come_to_select_never_runs_two_adaptors() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 2).await?;
        let [first, second] = [0, 1].map(|index| stage.nodes.names()[index].as_str());
        let place = async |node: &str, of: &str| {
            let label = json!({ "metadata": { "labels": { (of): "yes" } } });
            stage.nodes.api().patch(node, &PatchParams::default(), &Patch::Merge(label)).await
        };
        place(first, "older").await?;
        place(second, "younger").await?;
        // With a surge, the new Pod starts before the old one has ended.
        let spec = |name: &str, round: &str| {
            let surge = json!({ "maxSurge": 1, "maxUnavailable": 0 });
            let strategy = json!({ "type": "RollingUpdate", "rollingUpdate": surge });
            let adaptor = json!({ "updateStrategy": strategy, "podAnnotations": { "round": round } });
            json!({ "limit": 1, "nodeSelector": { (name): "yes" }, "adaptor": adaptor })
        };
        for name in ["older", "younger"] {
            stage.configure(name, spec(name, "first")).await?;
            stage.until(name, "Ready", "AllReady").await?;
        }
        let pods: Api<Pod> = Api::namespaced(stage.client.clone(), NAMESPACE);
        let adaptors = ListParams::default().labels("app.kubernetes.io/component=adaptor");
        // The nodes of running Pods, with their configuration and round. A Pod that is not bound has an empty node.
        let running = async || -> Result<Vec<_>> {
            let of = |pod: &Pod| {
                let text = |it: Option<&String>| it.cloned().unwrap_or_default();
                let node = text(pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()));
                (node, text(pod.labels().get(CONFIG_LABEL)), text(pod.annotations().get("round")))
            };
            let mut running: Vec<_> = pods.list(&adaptors).await?.iter().map(of).collect();
            running.sort();
            Ok(running)
        };
        let until = async |what: &str, expected: &[(&str, &str, &str)]| {
            wait::eventually(what, DEADLINE, async || {
                let found = running().await?;
                let found: Vec<_> =
                    found.iter().map(|(a, b, c)| (a.as_str(), b.as_str(), c.as_str())).collect();
                ensure!(found == expected, "{found:?}");
                Ok(())
            })
            .await
        };
        stage.configure("older", spec("older", "second")).await?;
        let younger = (second, "younger", "first");
        until("its own Pods do not hinder each other", &[(first, "older", "second"), younger]).await?;
        // The DaemonSet controller does not wait for the operator.
        place(second, "older").await?;
        stage.until("older", "Conflict", "AnotherAdaptor").await?;
        let waiting = [("", "older", "second"), (first, "older", "second"), younger];
        until("the second Pod waits for the first one's end", &waiting).await?;
        wait::eventually("the scheduler says why", DEADLINE, async || {
            let pods = pods.list(&adaptors).await?;
            let conditions = pods.iter().filter_map(|pod| pod.status.as_ref()?.conditions.as_ref()).flatten();
            let mut messages = conditions.filter_map(|condition| condition.message.as_deref());
            ensure!(messages.any(|message| message.contains("anti-affinity")));
            Ok(())
        })
        .await?;
        stage.configs.delete("younger", &DeleteParams::default()).await?;
        stage.until("older", "Ready", "AllReady").await?;
        until("it has both", &[(first, "older", "second"), (second, "older", "second")]).await?;
        stage.clear("older").await
    })
}

#[test]
fn a_contested_node_settles_when_either_configuration_releases_it() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 2).await?;
        let [first, second] = [0, 1].map(|index| stage.nodes.names()[index].as_str());
        let place = async |node: &str, of: &str, is_there: bool| {
            let label = json!({ "metadata": { "labels": { (of): is_there.then_some("yes") } } });
            stage.nodes.api().patch(node, &PatchParams::default(), &Patch::Merge(label)).await
        };
        let spec = |limit: u32, label: &str| json!({ "limit": limit, "nodeSelector": { (label): "yes" } });
        let settled = async |shares: [Option<u32>; 2]| -> Result<()> {
            for name in ["older", "younger"] {
                stage.until(name, "Ready", "AllReady").await?;
                stage.until_gone(name, "Conflict").await?;
            }
            stage.shares(&shares).await
        };
        place(first, "older", true).await?;
        place(second, "younger", true).await?;
        for (name, limit) in [("older", 4), ("younger", 7)] {
            stage.configure(name, spec(limit, name)).await?;
            stage.until(name, "Ready", "AllReady").await?;
        }
        settled([Some(4), Some(7)]).await?;
        // The older configuration selects the younger one's node, and then no longer.
        place(second, "older", true).await?;
        stage.until("older", "Conflict", "AnotherAdaptor").await?;
        stage.until("younger", "Conflict", "NodesTaken").await?;
        place(second, "older", false).await?;
        settled([Some(4), Some(7)]).await?;
        // It selects the node again, and the younger one gives it up.
        place(second, "older", true).await?;
        stage.until("younger", "Conflict", "NodesTaken").await?;
        place(first, "apart", true).await?;
        place(first, "older", false).await?;
        stage.configure("younger", spec(7, "apart")).await?;
        settled([Some(4), Some(7)]).await?;
        // The operator deploys a younger configuration that never was deployed, once the older one's selector leaves it a node.
        stage.delete("younger").await?;
        place(first, "older", true).await?;
        stage.until("older", "Ready", "AllReady").await?;
        stage.configure("younger", spec(7, "apart")).await?;
        stage.until("younger", "AdaptorReady", "AdaptorWithheld").await?;
        stage.configure("older", spec(4, "younger")).await?;
        settled([Some(4), Some(7)]).await?;
        stage.delete("older").await?;
        stage.clear("younger").await
    })
}

/// A DaemonSet for the stage's nodes, with the label of cloud-api-adaptor's.
fn tenants_daemon_set(stage: &Stage, host_network: bool) -> Result<DaemonSet> {
    let labels = json!({ "app": "cloud-api-adaptor" });
    Ok(serde_json::from_value(json!({
        "metadata": { "name": "tenants", "labels": labels },
        "spec": {
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "nodeSelector": stage.label, "hostNetwork": host_network,
                    "containers": [{ "name": "main", "image": "any" }],
                },
            },
        },
    }))?)
}

#[test]
fn a_tenants_daemon_set_whose_pods_are_refused_withholds_nothing() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        // Pod security applies to Pods, and not to DaemonSets.
        let labels = json!({ "pod-security.kubernetes.io/enforce": "baseline" });
        let namespaces: Api<Namespace> = Api::all(stage.client.clone());
        let patch = Patch::Merge(json!({ "metadata": { "labels": labels } }));
        namespaces.patch(&alone.namespace, &PatchParams::default(), &patch).await?;
        let tenants: Api<DaemonSet> = Api::namespaced(stage.client.clone(), &alone.namespace);
        tenants.create(&PostParams::default(), &tenants_daemon_set(&stage, true)?).await?;
        wait::present(&tenants, "tenants", "its Pod is refused", DEADLINE, |it| {
            let status = it.status.as_ref();
            status.is_some_and(|it| it.desired_number_scheduled == 1 && it.current_number_scheduled == 0)
        })
        .await?;
        stage.configure("config", json!({ "limit": 1 })).await?;
        stage.until("config", "Ready", "AllReady").await?;
        stage.until_gone("config", "Conflict").await?;
        tenants.delete("tenants", &DeleteParams::background()).await?;
        stage.clear("config").await
    })
}

#[test]
fn a_tenants_daemon_set_withholds_nothing_by_its_label_alone() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        let tenants: Api<DaemonSet> = Api::namespaced(stage.client.clone(), &alone.namespace);
        tenants.create(&PostParams::default(), &tenants_daemon_set(&stage, false)?).await?;
        stage.configure("config", json!({ "limit": 1 })).await?;
        stage.until("config", "Ready", "AllReady").await?;
        stage.until_gone("config", "Conflict").await?;
        let before = stage.reconciles(alone).await?;
        for change in 0..20 {
            let patch =
                Patch::Merge(json!({ "metadata": { "annotations": { "change": change.to_string() } } }));
            tenants.patch("tenants", &PatchParams::default(), &patch).await?;
            sleep(Duration::from_millis(200)).await;
        }
        let reconciles = stage.reconciles(alone).await? - before;
        ensure!(reconciles < 10.0, "{reconciles} reconciles because of what cannot conflict");
        // On the node's network, it could take the port.
        let on_host = async |host_network: bool| {
            let spec = json!({ "template": { "spec": { "hostNetwork": host_network } } });
            let patch = Patch::Merge(json!({ "spec": spec }));
            tenants.patch("tenants", &PatchParams::default(), &patch).await
        };
        on_host(true).await?;
        let message = stage.until("config", "Conflict", "AnotherAdaptor").await?;
        ensure!(message.contains(&format!("{}/tenants", alone.namespace)), "{message}");
        on_host(false).await?;
        stage.until_gone("config", "Conflict").await?;
        tenants.delete("tenants", &DeleteParams::background()).await?;
        stage.clear("config").await
    })
}
