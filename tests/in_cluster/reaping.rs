//! The installed operator reaps machines.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use peerpod_operator::api::v1alpha1::PeerPod;
use peers::libvirt::Host;
use serde_json::json;
use testbed::{
    Pods,
    wait::{self, DEADLINE},
};

use crate::support::{Installation, beside_others};

/// Fails unless the operator deletes the machine of a deleted Pod that the kubelet ran, and no other machine of the host.
pub async fn reaps_the_machine_of_a_pod_on_the_real_node(
    installation: &Installation,
    host: &Host,
) -> Result<()> {
    let namespace = installation.testbed.namespace("test").await?;
    let pods: Api<Pod> = Api::namespaced(installation.testbed.client(), &namespace);
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": "web" },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "nodeName": cluster::node::NAME,
            "containers": [{
                "name": "main",
                "image": cluster::node::PAUSE_IMAGE,
                "imagePullPolicy": "Never",
            }],
        },
    }))?;
    pods.create(&PostParams::default(), &pod).await?;
    let runs = |pod: &Pod| pod.status.as_ref().is_some_and(|it| it.phase.as_deref() == Some("Running"));
    let pod = wait::present(&pods, "web", "the Pod runs", DEADLINE, runs).await?;
    let vm = installation.start_vm(&pod, host).await?;
    let other = Pods::new(installation.testbed.client(), &namespace).run("other").await?;
    let other = installation.start_vm(&other, host).await?;
    pods.delete("web", &DeleteParams::default()).await?;
    wait::gone(&pods, "web", DEADLINE).await?;
    let peerpods: Api<PeerPod> = Api::namespaced(installation.testbed.client(), &namespace);
    wait::gone(&peerpods, &vm.name(), DEADLINE).await?;
    let domains = host.virsh().domains().await?;
    ensure!(!domains.contains(&vm.machine.domain.name), "the machine is there");
    ensure!(domains.contains(&other.machine.domain.name), "another Pod's machine is gone");
    Ok(())
}

#[test]
fn the_operator_has_no_more_than_the_restricted_profile_grants() -> Result<()> {
    beside_others(async |installation| {
        let namespace = installation.testbed.namespace("restricted").await?;
        let enforce = "pod-security.kubernetes.io/enforce=restricted";
        installation.testbed.cluster().kubectl(&["label", "namespace", &namespace, enforce]).await?;
        let restricted: Api<Pod> = Api::namespaced(installation.testbed.client(), &namespace);
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        let pods = installation.operators().list().await?;
        ensure!(pods.len() == 2, "{} Pods of the operator are there", pods.len());
        for pod in pods {
            let spec = pod.spec.context("a spec")?;
            assert_eq!(spec.node_name.as_deref(), Some(cluster::node::NAME), "the real node runs it");
            assert!(spec.host_network.is_none() && spec.host_pid.is_none());
            let container = &spec.containers[0];
            let context = container.security_context.as_ref().context("a security context")?;
            assert_eq!(context.read_only_root_filesystem, Some(true));
            // That namespace has no such account. It does not matter: only the profile is tested.
            let spec = PodSpec { service_account_name: None, service_account: None, node_name: None, ..spec };
            let mut same = Pod { spec: Some(spec), ..Pod::default() };
            same.metadata.name = Some("same".to_owned());
            restricted.create(&dry, &same).await.context("the profile")?;
        }
        Ok(())
    })
}
