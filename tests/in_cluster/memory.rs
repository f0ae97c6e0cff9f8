//! How much memory of the node the operator takes.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use peerpod_operator::{NAMESPACE, install::NAME};
use testbed::{
    Pods,
    wait::{self, DEADLINE},
};

use crate::support::alone;

/// The most private memory that an idle operator may have.
const IDLE_BYTES: u64 = 10 << 20;

#[test]
fn an_idle_operator_takes_no_more_than_10_mib_as_its_cgroup_reports_it() -> Result<()> {
    alone(async |installation| {
        // A restart removes the memory that the operator took on for other tests.
        let deployment = format!("deployment/{NAME}");
        let restart = ["rollout", "restart", &deployment, "--namespace", NAMESPACE];
        installation.testbed.cluster().kubectl(&restart).await?;
        let operators = installation.operators();
        operators.available().await?;
        // One of the new operators leads, and has done its work.
        wait::eventually("a new operator leads", DEADLINE, async || {
            let (holder, pods) = (installation.holder().await?, operators.list().await?);
            let leads = |pod: &Pod| holder.as_ref().is_some_and(|it| it.starts_with(&pod.name_any()));
            ensure!(pods.iter().any(leads), "{holder:?} leads");
            Ok(())
        })
        .await?;
        let namespace = installation.testbed.namespace("idle").await?;
        let vm = installation.pod_with_vm(&namespace, "web").await?;
        Pods::new(installation.testbed.client(), &namespace).delete("web").await?;
        installation.reaped(&namespace, &vm).await?;
        for pod in operators.list().await? {
            let uid = pod.uid().unwrap_or_default();
            let bytes = installation.testbed.cluster().memory_of_pod(&uid)?.anonymous;
            ensure!(bytes > 0, "{} uses memory", pod.name_any());
            ensure!(bytes <= IDLE_BYTES, "{} uses {bytes} bytes", pod.name_any());
        }
        Ok(())
    })
}
