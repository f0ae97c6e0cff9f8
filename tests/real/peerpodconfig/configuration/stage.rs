//! Helpers of the tests of configurations.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{ConfigMap, Pod, Secret},
    node::v1::RuntimeClass,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use peerpod_operator::{NAMESPACE, api::v1alpha1::PeerPodConfig};
use peers::libvirt::Libvirtd;
use serde_json::{Value, json};
use testbed::{
    FakeNodes, Operator, OperatorOptions, Request, Settings, Testbed,
    wait::{self, DEADLINE},
};

use crate::support::{Alone, PROGRAM, alone_waiting};

/// The extended resource of VMs.
pub const RESOURCE: &str = "kata.peerpods.io/vm";
/// The runtime class of peer pods.
pub const RUNTIME_CLASS: &str = "kata-remote";

/// Runs a test with an operator that also handles configurations.
pub fn configuring(test: impl AsyncFnOnce(&mut Alone) -> Result<()>) -> Result<()> {
    alone_waiting(operator, test)
}

/// Starts an operator that also handles configurations.
pub async fn operator(testbed: &Testbed, dir: &Path, libvirtd: &Libvirtd) -> Result<Operator> {
    operator_with(testbed, dir, libvirtd, &[]).await
}

/// The same with further arguments.
pub async fn operator_with(
    testbed: &Testbed,
    dir: &Path,
    libvirtd: &Libvirtd,
    further: &[&str],
) -> Result<Operator> {
    let settings = Settings::libvirt(&libvirtd.host().uri().to_string());
    let options = OperatorOptions::new(PROGRAM, dir.join("operator"), settings);
    let arguments = ["--leader-elect=false", "--controllers=peerpod,peerpodconfig"];
    let arguments = arguments.iter().chain(further).map(|&argument| argument.to_owned()).collect();
    Operator::start(testbed, &OperatorOptions { arguments, ..options }).await
}

/// The objects of one test: nodes with a label of its own, settings, and the runtime class.
pub struct Stage {
    pub client: Client,
    pub nodes: FakeNodes,
    pub label: BTreeMap<String, String>,
    pub configs: Api<PeerPodConfig>,
    /// The operator's own settings: with others it deploys no cloud-api-adaptor.
    own: BTreeMap<String, String>,
}

impl Stage {
    pub async fn set(alone: &Alone<'_>, nodes: usize) -> Result<Self> {
        let client = alone.testbed.client();
        let label: BTreeMap<_, _> = [("test".to_owned(), alone.namespace.clone())].into();
        let nodes = FakeNodes::join(client.clone(), "worker", nodes, &label).await?;
        let own = Settings::libvirt(&alone.libvirtd.host().uri().to_string()).config_map;
        let stage = Self { configs: Api::namespaced(client.clone(), NAMESPACE), client, nodes, label, own };
        stage.settings(json!({})).await?;
        stage.make::<Secret>(json!({ "metadata": { "name": "peer-pods-secret" } })).await?;
        let classes: Api<RuntimeClass> = Api::all(stage.client.clone());
        let class = json!({
            "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
            "metadata": { "name": RUNTIME_CLASS }, "handler": RUNTIME_CLASS,
        });
        classes.patch(RUNTIME_CLASS, &PatchParams::apply("test"), &Patch::Apply(class)).await?;
        Ok(stage)
    }

    /// Creates or updates an object in the operator's namespace, by server-side apply.
    pub async fn make<K>(&self, object: Value) -> Result<K>
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

    /// A configuration for the stage's nodes without an admission of its own.
    pub async fn configure(&self, name: &str, further: Value) -> Result<PeerPodConfig> {
        let mut spec = json!({ "nodeSelector": self.label, "admission": { "mode": "None" } });
        if let (Some(spec), Value::Object(further)) = (spec.as_object_mut(), further) {
            spec.extend(further);
        }
        self.make(json!({ "metadata": { "name": name }, "spec": spec })).await
    }

    /// Waits until the status is up to date and has this condition; gives the condition's message. What an earlier spec led to says
    /// nothing of the present one.
    pub async fn until(&self, name: &str, type_: &str, reason: &str) -> Result<String> {
        wait::eventually(&format!("{name} is {type_} because of {reason}"), DEADLINE, async || {
            let config = self.configs.get(name).await?;
            let status = config.status.unwrap_or_default();
            ensure!(status.observed_generation == config.metadata.generation, "{status:#?}");
            let condition = status.conditions.iter().find(|it| it.type_ == type_);
            ensure!(condition.is_some_and(|it| it.reason == reason), "{status:#?}");
            Ok(condition.map(|it| it.message.clone()).unwrap_or_default())
        })
        .await
    }

    /// Waits until the status is up to date and has no such condition.
    pub async fn until_gone(&self, name: &str, type_: &str) -> Result<()> {
        wait::eventually(&format!("{name} is not {type_} any more"), DEADLINE, async || {
            let config = self.configs.get(name).await?;
            let status = config.status.unwrap_or_default();
            ensure!(status.observed_generation == config.metadata.generation, "{status:#?}");
            ensure!(!status.conditions.iter().any(|it| it.type_ == type_), "{status:#?}");
            Ok(())
        })
        .await
    }

    pub async fn shares(&self, expected: &[Option<u32>]) -> Result<()> {
        wait::eventually(&format!("the nodes advertise {expected:?}"), DEADLINE, async || {
            let mut shares = self.nodes.advertised(RESOURCE).await?;
            shares.sort();
            ensure!(shares == expected, "{shares:?}");
            Ok(())
        })
        .await
    }

    pub async fn daemon_set(&self, config: &str) -> Result<DaemonSet> {
        let api: Api<DaemonSet> = Api::namespaced(self.client.clone(), NAMESPACE);
        Ok(api.get(&format!("{config}-cloud-api-adaptor")).await?)
    }

    pub async fn has_daemon_set(&self, config: &str) -> Result<bool> {
        let api: Api<DaemonSet> = Api::namespaced(self.client.clone(), NAMESPACE);
        Ok(api.get_opt(&format!("{config}-cloud-api-adaptor")).await?.is_some())
    }

    /// Deletes the DaemonSet, as a user would.
    pub async fn delete_daemon_set(&self, config: &str) -> Result<()> {
        let api: Api<DaemonSet> = Api::namespaced(self.client.clone(), NAMESPACE);
        api.delete(&format!("{config}-cloud-api-adaptor"), &DeleteParams::background()).await?;
        Ok(())
    }

    /// Writes the settings of cloud-api-adaptor: the operator's own, and these.
    pub async fn settings(&self, further: Value) -> Result<()> {
        let mut data = json!(self.own);
        if let (Some(data), Value::Object(further)) = (data.as_object_mut(), further) {
            data.extend(further);
        }
        self.write_settings(&data).await
    }

    /// Writes exactly these settings of cloud-api-adaptor.
    pub async fn write_settings(&self, data: &Value) -> Result<()> {
        let config_map = json!({ "metadata": { "name": "peer-pods-cm" }, "data": data });
        self.make::<ConfigMap>(config_map).await.map(drop)
    }

    /// Mounts the present settings of cloud-api-adaptor into the operator, as a kubelet does a while after a change.
    pub async fn mount(&self, operator: &mut Operator) -> Result<()> {
        let config_maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), NAMESPACE);
        let config_map = config_maps.get("peer-pods-cm").await?.data.unwrap_or_default();
        operator.mount(&Settings { config_map, ..Settings::default() })
    }

    /// How often the controller has looked at a configuration so far.
    pub async fn reconciles(&self, alone: &Alone<'_>) -> Result<f64> {
        let metrics = alone.operator.metrics().await?;
        Ok(metrics.sum("peerpod_operator_reconciles_total", &[("controller", "peerpodconfig")]))
    }

    /// Makes the controller look at everything again, with a change that has no effect. Returns when it has.
    pub async fn look_again(&self, alone: &Alone<'_>) -> Result<()> {
        let before = self.reconciles(alone).await?;
        let mark = json!({ "metadata": { "annotations": { "looks": before.to_string() } } });
        let settings: Api<ConfigMap> = Api::namespaced(self.client.clone(), NAMESPACE);
        settings.patch("peer-pods-cm", &PatchParams::default(), &Patch::Merge(mark)).await?;
        wait::eventually("it was looked at", DEADLINE, async || {
            ensure!(self.reconciles(alone).await? > before);
            Ok(())
        })
        .await
    }

    /// Runs kubectl in the operator's namespace.
    pub async fn kubectl(alone: &Alone<'_>, arguments: &[&str]) -> Result<String> {
        let mut all = vec!["--namespace", NAMESPACE];
        all.extend(arguments);
        alone.testbed.cluster().kubectl(&all).await
    }

    /// Deletes a configuration and waits until it is gone.
    pub async fn delete(&self, config: &str) -> Result<()> {
        self.configs.delete(config, &DeleteParams::default()).await?;
        wait::gone(&self.configs, config, DEADLINE).await
    }

    /// The same, and also waits until the nodes' shares are gone. Then removes the nodes.
    pub async fn clear(self, config: &str) -> Result<()> {
        self.delete(config).await?;
        let none = vec![None; self.nodes.names().len()];
        self.shares(&none).await?;
        self.leave().await
    }

    /// Waits until the nodes' Pods are gone, then removes the nodes. On a removed node only the garbage collector would end a Pod.
    pub async fn leave(self) -> Result<()> {
        let pods: Api<Pod> = Api::all(self.client.clone());
        for node in self.nodes.names() {
            let there = ListParams::default().fields(&format!("spec.nodeName={node}"));
            wait::eventually(&format!("no Pod is left on {node}"), DEADLINE, async || {
                let left: Vec<_> =
                    pods.list_metadata(&there).await?.iter().map(ResourceExt::name_any).collect();
                ensure!(left.is_empty(), "{left:?}");
                Ok(())
            })
            .await?;
        }
        self.nodes.leave().await
    }
}

/// The operator's writes so far, without those to leases.
pub fn writes(alone: &Alone<'_>) -> Result<Vec<Request>> {
    let mut requests = alone.testbed.audit()?.of_operator()?;
    requests.retain(|request| request.is_write() && request.resource != "leases");
    Ok(requests)
}
