//! A node whose Pods end only when a test says so.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use crate::pods::pod;

/// Plays the kubelet of one node, step by step. A Pod there runs, ends and is removed only by these calls, so that a test can look at
/// each state in between.
#[derive(Clone)]
pub struct Kubelet {
    client: Client,
    node: String,
}

impl Kubelet {
    /// Adds a node that no other program handles. Its name starts with `purpose`.
    pub async fn join(client: Client, purpose: &str) -> Result<Self> {
        let node = serde_json::from_value(json!({ "metadata": { "generateName": format!("{purpose}-") } }))?;
        let nodes: Api<Node> = Api::all(client.clone());
        let node = nodes.create(&PostParams::default(), &node).await.context("adding a node")?.name_any();
        Ok(Self { client, node })
    }

    /// Makes a Pod on the node. Its containers run, and have `grace_seconds` to end.
    pub async fn run(&self, namespace: &str, name: &str, grace_seconds: i64) -> Result<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let pod = pod(name, &self.node, grace_seconds)?;
        pods.create(&PostParams::default(), &pod)
            .await
            .with_context(|| format!("creating the Pod {name}"))?;
        self.set_phase(namespace, name, "Running").await
    }

    /// Reports that the Pod's containers have ended.
    pub async fn end(&self, pod: &Pod) -> Result<Pod> {
        self.set_phase(&pod.namespace().unwrap_or_default(), &pod.name_any(), "Succeeded").await
    }

    /// Reports that nothing of the Pod is left on the node, so a Pod in deletion is removed.
    pub async fn remove(&self, pod: &Pod) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
        let at_once = DeleteParams::default().grace_period(0);
        pods.delete(&pod.name_any(), &at_once).await.context("removing a Pod")?;
        Ok(())
    }

    /// Removes the node. Its Pods should be gone.
    pub async fn leave(self) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.client);
        nodes.delete(&self.node, &DeleteParams::default()).await.context("removing a node")?;
        Ok(())
    }

    async fn set_phase(&self, namespace: &str, name: &str, phase: &str) -> Result<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let status = json!({ "status": { "phase": phase } });
        let patched = pods.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await;
        patched.with_context(|| format!("making the Pod {name} {phase}"))
    }
}
