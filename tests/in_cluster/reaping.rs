//! The installed operator does what it is there for.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::json;
use testbed::wait::{self, DEADLINE};

use crate::support::beside_others;

#[test]
fn a_pod_goes_from_the_real_node_and_its_machine_goes() -> Result<()> {
    beside_others(async |installation| {
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
        let vm = installation.caa.start_vm(&pod, installation.host()).await?;
        let other = installation.pod_with_vm(&namespace, "other").await?;
        pods.delete("web", &DeleteParams::default()).await?;
        wait::gone(&pods, "web", DEADLINE).await?;
        installation.reaped(&namespace, &vm).await?;
        let domains = installation.host().virsh().domains().await?;
        ensure!(domains.contains(&other.machine.domain.name), "another Pod's machine is gone");
        Ok(())
    })
}

#[test]
fn the_operator_has_no_more_than_the_restricted_profile_grants() -> Result<()> {
    beside_others(async |installation| {
        let pods = installation.operators().await?;
        ensure!(pods.len() == 2, "{} Pods of the operator are there", pods.len());
        for pod in pods {
            // The namespace enforces the profile: that the Pod is there says that it fits.
            let spec = pod.spec.context("a spec")?;
            assert_eq!(spec.node_name.as_deref(), Some(cluster::node::NAME), "the real node runs it");
            assert!(spec.host_network.is_none() && spec.host_pid.is_none());
            let container = &spec.containers[0];
            let context = container.security_context.as_ref().context("a security context")?;
            assert_eq!(context.read_only_root_filesystem, Some(true));
        }
        Ok(())
    })
}
