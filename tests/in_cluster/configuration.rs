//! A PeerPodConfig on a real node: its webhook is called where it runs, and what it advertises outlives the kubelet.

use anyhow::{Context as _, Result, ensure};
use cluster::{Component, node};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, PostParams},
};
use peerpod_operator::{
    NAMESPACE,
    api::v1alpha1::{EXTENDED_RESOURCE, PeerPodConfig},
};
use serde_json::json;
use testbed::wait::{self, DEADLINE};

use crate::support::{Installation, alone};

const LIMIT: &str = "3";

/// Whether the node advertises the VMs that the configuration asks for.
fn advertises(node: &Node) -> bool {
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    allocatable.and_then(|levels| levels.get(EXTENDED_RESOURCE)).is_some_and(|level| level.0 == LIMIT)
}

/// A Pod of the runtime class of peer pods. Here this class has the handler of all other Pods.
fn peer_pod() -> Result<Pod> {
    Ok(serde_json::from_value(json!({
        "metadata": { "name": "web" },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "runtimeClassName": "kata-remote",
            "containers": [{ "name": "main", "image": node::PAUSE_IMAGE, "imagePullPolicy": "Never" }],
        },
    }))?)
}

/// Makes the runtime class of peer pods.
pub async fn runtime_class(installation: &Installation) -> Result<()> {
    let class = json!({
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
        "metadata": { "name": "kata-remote" }, "handler": "runc",
    });
    installation.testbed.apply("runtime-class", &[class]).await
}

/// Waits until the API server calls the webhook for Pods of this namespace.
pub async fn admits_peer_pods(installation: &Installation, namespace: &str) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(installation.testbed.client(), namespace);
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let asks_for_a_vm = |pod: &Pod| {
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let mut limits = containers.flat_map(|it| it.resources.iter().flat_map(|it| it.limits.iter()));
        limits.any(|limits| limits.contains_key(EXTENDED_RESOURCE))
    };
    wait::eventually("the API server calls the webhook", DEADLINE, async || {
        let pod = pods.create(&dry, &peer_pod()?).await?;
        ensure!(asks_for_a_vm(&pod), "the Pod is not changed");
        Ok(())
    })
    .await
}

/// Asks for a webhook, and for VMs on the real node.
async fn configure(installation: &Installation) -> Result<()> {
    runtime_class(installation).await?;
    let config = json!({
        "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig",
        "metadata": { "name": "config", "namespace": NAMESPACE },
        "spec": {
            "limit": LIMIT,
            "nodeSelector": { "kubernetes.io/hostname": node::NAME },
            // Its Pods ask for more than this namespace grants, so the API server refuses them.
            "adaptor": { "image": "any" },
        },
    });
    installation.testbed.apply("config", &[config]).await
}

#[test]
fn a_webhook_makes_peer_pods_and_a_restarted_kubelet_keeps_them() -> Result<()> {
    alone(async |installation| {
        configure(installation).await?;
        let client = installation.testbed.client();
        let nodes: Api<Node> = Api::all(client.clone());
        wait::present(&nodes, node::NAME, "the node advertises VMs", DEADLINE, advertises).await?;
        let namespace = installation.testbed.namespace("test").await?;
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        admits_peer_pods(installation, &namespace).await?;
        ensure!(
            installation.enforced().await? == "restricted",
            "the webhook's Pods are let in by any profile"
        );
        pods.create(&PostParams::default(), &peer_pod()?).await?;
        let runs = |pod: &Pod| pod.status.as_ref().is_some_and(|it| it.phase.as_deref() == Some("Running"));
        let pod = wait::present(&pods, "web", "the peer pod runs", DEADLINE, runs).await?;
        let vm = installation.start_vm(&pod, installation.host()).await?;

        installation.testbed.cluster_mut().restart(Component::Kubelet).await?;
        wait::present(&nodes, node::NAME, "the node advertises VMs still", DEADLINE, advertises).await?;
        let now = pods.get("web").await?;
        ensure!(runs(&now) && now.uid() == pod.uid(), "the Pod is {:?}", now.status);
        let restarts = now.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
        assert_eq!(restarts.map(|it| it.restart_count).sum::<i32>(), 0);
        let name = &vm.machine.domain.name;
        ensure!(installation.host().virsh().domains().await?.contains(name), "its machine is gone");
        pods.delete("web", &DeleteParams::default()).await?;
        installation.reaped(&namespace, &vm).await?;

        let configs: Api<PeerPodConfig> = Api::namespaced(client, NAMESPACE);
        configs.delete("config", &DeleteParams::default()).await.context("deleting the PeerPodConfig")?;
        wait::gone(&configs, "config", DEADLINE).await
    })
}
