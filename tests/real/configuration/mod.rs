//! One PeerPodConfig: cloud-api-adaptor on the selected nodes, and how many VMs each of them advertises.

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{ConfigMap, Pod, Secret},
    node::v1::RuntimeClass,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use peerpod_operator::{NAMESPACE, api::v1alpha1::PeerPodConfig};
use peers::libvirt::Libvirtd;
use serde_json::{Value, json};
use testbed::{
    FakeNodes, Operator, OperatorOptions, Request, Settings, Testbed,
    wait::{self, DEADLINE},
};

use crate::support::{Alone, PROGRAM, alone_with};

const RESOURCE: &str = "kata.peerpods.io/vm";
const RUNTIME_CLASS: &str = "kata-remote";

/// Runs a test with an operator that looks after configurations, too.
fn configuring(test: impl AsyncFnOnce(&mut Alone) -> Result<()>) -> Result<()> {
    let start = async |testbed: &Testbed, dir: &Path, libvirtd: &Libvirtd| {
        let settings = Settings::libvirt(&libvirtd.host().uri().to_string());
        let options = OperatorOptions::new(PROGRAM, dir.join("operator"), settings);
        let arguments =
            ["--leader-elect=false", "--controllers=peerpod,peerpodconfig"].map(str::to_owned).to_vec();
        Operator::start(testbed, &OperatorOptions { arguments, ..options }).await
    };
    alone_with(start, test)
}

/// The objects of one test: nodes with a label of its own, settings, and the runtime class.
struct Stage {
    client: Client,
    nodes: FakeNodes,
    label: BTreeMap<String, String>,
    configs: Api<PeerPodConfig>,
}

impl Stage {
    async fn set(alone: &Alone<'_>, nodes: usize) -> Result<Self> {
        let client = alone.testbed.client();
        let label: BTreeMap<_, _> = [("test".to_owned(), alone.namespace.clone())].into();
        let nodes = FakeNodes::join(client.clone(), "worker", nodes, &label).await?;
        let stage = Self { configs: Api::namespaced(client.clone(), NAMESPACE), client, nodes, label };
        stage
            .make::<ConfigMap>(json!({
                "metadata": { "name": "peer-pods-cm" },
                "data": { "CLOUD_PROVIDER": "libvirt" },
            }))
            .await?;
        stage.make::<Secret>(json!({ "metadata": { "name": "peer-pods-secret" } })).await?;
        let classes: Api<RuntimeClass> = Api::all(stage.client.clone());
        let class = json!({
            "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
            "metadata": { "name": RUNTIME_CLASS }, "handler": RUNTIME_CLASS,
        });
        classes.patch(RUNTIME_CLASS, &PatchParams::apply("test"), &Patch::Apply(class)).await?;
        Ok(stage)
    }

    /// Makes an object in the operator's namespace, or makes it be so.
    async fn make<K>(&self, object: Value) -> Result<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + serde::de::DeserializeOwned,
    {
        let mut object = object;
        object["apiVersion"] = K::api_version(&()).into();
        object["kind"] = K::kind(&()).into();
        let name = object["metadata"]["name"].as_str().context("an object without a name")?.to_owned();
        let api: Api<K> = Api::namespaced(self.client.clone(), NAMESPACE);
        Ok(api.patch(&name, &PatchParams::apply("test").force(), &Patch::Apply(object)).await?)
    }

    /// A configuration for the stage's nodes that leaves the admission to others.
    async fn configure(&self, name: &str, further: Value) -> Result<PeerPodConfig> {
        let mut spec = json!({ "nodeSelector": self.label, "admission": { "mode": "None" } });
        if let (Some(spec), Value::Object(further)) = (spec.as_object_mut(), further) {
            spec.extend(further);
        }
        self.make(json!({ "metadata": { "name": name }, "spec": spec })).await
    }

    /// Waits for a condition of a configuration; gives its message.
    async fn until(&self, name: &str, type_: &str, reason: &str) -> Result<String> {
        wait::eventually(&format!("{name} is {type_} because of {reason}"), DEADLINE, async || {
            let config = self.configs.get(name).await?;
            let conditions = config.status.map(|status| status.conditions).unwrap_or_default();
            let condition = conditions.iter().find(|it| it.type_ == type_);
            ensure!(condition.is_some_and(|it| it.reason == reason), "{conditions:#?}");
            Ok(condition.map(|it| it.message.clone()).unwrap_or_default())
        })
        .await
    }

    async fn shares(&self, expected: &[Option<u32>]) -> Result<()> {
        wait::eventually(&format!("the nodes advertise {expected:?}"), DEADLINE, async || {
            let mut shares = self.nodes.advertised(RESOURCE).await?;
            shares.sort();
            ensure!(shares == expected, "{shares:?}");
            Ok(())
        })
        .await
    }

    async fn daemon_set(&self, config: &str) -> Result<DaemonSet> {
        let api: Api<DaemonSet> = Api::namespaced(self.client.clone(), NAMESPACE);
        Ok(api.get(&format!("{config}-cloud-api-adaptor")).await?)
    }

    /// Removes the configuration and waits until it and the nodes' shares are gone.
    async fn clear(self, config: &str) -> Result<()> {
        self.configs.delete(config, &DeleteParams::default()).await?;
        wait::gone(&self.configs, config, DEADLINE).await?;
        let none = vec![None; self.nodes.names().len()];
        self.shares(&none).await?;
        self.nodes.leave().await
    }
}

fn writes(alone: &Alone<'_>) -> Result<Vec<Request>> {
    let mut requests = alone.testbed.audit().context("the cluster keeps an audit log")?.of_operator()?;
    requests.retain(|request| request.is_write() && request.resource != "leases");
    Ok(requests)
}

#[test]
fn one_configuration_runs_the_adaptor_and_shares_the_limit_out() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 3).await?;
        stage.configure("config", json!({ "limit": "10" })).await?;
        stage.until("config", "Ready", "AllReady").await?;
        stage.shares(&[Some(3), Some(3), Some(4)]).await?;
        let status = stage.configs.get("config").await?.status.context("a status")?;
        assert_eq!((status.nodes, status.advertised, status.setup_completed), (3, 10, true));
        let daemon_set = stage.daemon_set("config").await?;
        assert_eq!(daemon_set.status.map(|status| status.number_ready), Some(3));

        // The scheduler takes exactly as many peer pods.
        let pods: Api<Pod> = Api::namespaced(stage.client.clone(), &alone.namespace);
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "generateName": "peer-" },
            "spec": {
                "nodeSelector": stage.label,
                "containers": [{ "name": "main", "image": "any", "resources": { "limits": { RESOURCE: "1" } } }],
            },
        }))?;
        for _ in 0..11 {
            pods.create(&PostParams::default(), &pod).await?;
        }
        wait::eventually("ten run and the eleventh finds no node", DEADLINE, async || {
            let pods = pods.list(&ListParams::default()).await?;
            let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone());
            let running = pods.iter().filter(|pod| phase(pod).as_deref() == Some("Running")).count();
            let refused = pods.iter().filter(|pod| {
                let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
                conditions
                    .is_some_and(|all| all.iter().any(|it| it.reason.as_deref() == Some("Unschedulable")))
            });
            ensure!((running, refused.count()) == (10, 1), "{running} run");
            Ok(())
        })
        .await?;
        pods.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        stage.clear("config").await
    })
}

#[test]
fn nothing_is_written_while_nothing_changes_and_drift_is_put_back() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 2).await?;
        stage.configure("config", json!({ "limit": 4 })).await?;
        stage.until("config", "Ready", "AllReady").await?;
        let generation = stage.daemon_set("config").await?.metadata.generation;
        let before = writes(alone)?.len();
        // Something that the controller looks at and that changes nothing, again and again.
        for look in 0..5 {
            stage.configure("config", json!({ "limit": 4, "instanceType": "" })).await?;
            let label = json!({ "metadata": { "annotations": { "look": look.to_string() } } });
            stage.configs.patch("config", &PatchParams::default(), &Patch::Merge(label)).await?;
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
        let status_only: Vec<_> = writes(alone)?.split_off(before);
        ensure!(
            status_only.iter().all(|request| request.resource == "peerpodconfigs/status"),
            "{status_only:#?}"
        );
        assert_eq!(stage.daemon_set("config").await?.metadata.generation, generation);

        let api: Api<DaemonSet> = Api::namespaced(stage.client.clone(), NAMESPACE);
        let drift = json!({ "spec": { "template": { "spec": { "hostNetwork": false } } } });
        api.patch("config-cloud-api-adaptor", &PatchParams::default(), &Patch::Merge(drift)).await?;
        wait::eventually("the drift is put back", DEADLINE, async || {
            let daemon_set = stage.daemon_set("config").await?;
            let pod = daemon_set.spec.and_then(|spec| spec.template.spec).context("a pod")?;
            ensure!(pod.host_network == Some(true));
            Ok(())
        })
        .await?;
        stage.clear("config").await
    })
}

#[test]
fn nodes_that_come_and_go_and_kubelets_that_reset_are_followed() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 2).await?;
        stage.configure("config", json!({ "limit": 5 })).await?;
        stage.shares(&[Some(2), Some(3)]).await?;
        // A kubelet that restarts sets it to zero.
        let reset = json!({ "status": { "capacity": { RESOURCE: "0" }, "allocatable": { RESOURCE: "0" } } });
        let node = &stage.nodes.names()[0];
        stage.nodes.api().patch_status(node, &PatchParams::default(), &Patch::Merge(reset)).await?;
        stage.shares(&[Some(2), Some(3)]).await?;
        // One leaves the selection.
        let label = json!({ "metadata": { "labels": { "test": "other" } } });
        stage.nodes.api().patch(node, &PatchParams::default(), &Patch::Merge(label)).await?;
        stage.shares(&[None, Some(5)]).await?;
        let label = json!({ "metadata": { "labels": stage.label } });
        stage.nodes.api().patch(node, &PatchParams::default(), &Patch::Merge(label)).await?;
        stage.shares(&[Some(2), Some(3)]).await?;
        stage.clear("config").await
    })
}

#[test]
fn of_two_configurations_for_one_node_the_older_one_keeps_it() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 2).await?;
        stage.configure("older", json!({ "limit": 4 })).await?;
        stage.until("older", "Ready", "AllReady").await?;
        tokio::time::sleep(Duration::from_millis(1100)).await;
        stage.configure("younger", json!({ "limit": 20 })).await?;
        let message = stage.until("younger", "Conflict", "NodesTaken").await?;
        assert!(message.contains("older"), "{message}");
        stage.until("younger", "Ready", "NodesTaken").await?;
        ensure!(stage.daemon_set("younger").await.is_err(), "two would run on a node");
        stage.shares(&[Some(2), Some(2)]).await?;
        // With the older one gone the nodes are the younger one's.
        stage.configs.delete("older", &DeleteParams::default()).await?;
        stage.until("younger", "Ready", "AllReady").await?;
        stage.shares(&[Some(10), Some(10)]).await?;
        stage.clear("younger").await
    })
}

#[test]
fn what_cannot_work_is_said() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        stage.configure("config", json!({ "limit": 2, "configMapName": "missing" })).await?;
        let message = stage.until("config", "AdaptorReady", "SettingsMissing").await?;
        assert!(message.contains("the ConfigMap missing does not exist"), "{message}");
        // Another cloud-api-adaptor on the same nodes.
        let foreign = json!({
            "metadata": { "name": "cloud-api-adaptor-daemonset" },
            "spec": {
                "selector": { "matchLabels": { "app": "cloud-api-adaptor" } },
                "template": {
                    "metadata": { "labels": { "app": "cloud-api-adaptor" } },
                    "spec": { "nodeSelector": stage.label, "containers": [{ "name": "main", "image": "any" }] },
                },
            },
        });
        stage.make::<DaemonSet>(foreign).await?;
        stage.configure("config", json!({ "limit": 2 })).await?;
        let message = stage.until("config", "Conflict", "AnotherAdaptor").await?;
        assert!(message.contains("kubectl"), "{message}");
        let api: Api<DaemonSet> = Api::namespaced(stage.client.clone(), NAMESPACE);
        api.delete("cloud-api-adaptor-daemonset", &DeleteParams::background()).await?;
        stage.until("config", "Ready", "AllReady").await?;

        let other: Api<PeerPodConfig> = Api::namespaced(stage.client.clone(), &alone.namespace);
        let elsewhere: PeerPodConfig = serde_json::from_value(json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig",
            "metadata": { "name": "elsewhere" }, "spec": { "limit": 3 },
        }))?;
        other.create(&PostParams::default(), &elsewhere).await?;
        wait::present(&other, "elsewhere", "it says that it is not honoured", DEADLINE, |config| {
            config
                .status
                .as_ref()
                .is_some_and(|status| status.conditions.iter().any(|it| it.reason == "WrongNamespace"))
        })
        .await?;
        stage.clear("config").await
    })
}

#[test]
fn changed_settings_wait_and_are_said_to() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        stage.configure("config", json!({ "limit": 2 })).await?;
        stage.until("config", "Ready", "AllReady").await?;
        let template = stage.daemon_set("config").await?.metadata.generation;
        // The times of containers are whole seconds.
        tokio::time::sleep(Duration::from_millis(1100)).await;
        stage
            .make::<ConfigMap>(json!({
                "metadata": { "name": "peer-pods-cm" },
                "data": { "CLOUD_PROVIDER": "libvirt", "LIBVIRT_CPU": "4" },
            }))
            .await?;
        let message = stage.until("config", "SettingsPending", "OlderSettings").await?;
        assert!(message.contains("config-cloud-api-adaptor-"), "{message}");
        assert_eq!(stage.daemon_set("config").await?.metadata.generation, template, "it was rolled");
        let restart = json!({ "limit": 2, "adaptor": { "restartOnSettingsChange": true } });
        stage.configure("config", restart).await?;
        wait::eventually("its Pods run on the new settings", DEADLINE, async || {
            let config = stage.configs.get("config").await?;
            let conditions = config.status.map(|status| status.conditions).unwrap_or_default();
            ensure!(!conditions.iter().any(|it| it.type_ == "SettingsPending"), "{conditions:#?}");
            Ok(())
        })
        .await?;
        stage.clear("config").await
    })
}
