//! What happens while the sandbox of a Pod is being created.

use std::cell::Cell;

use anyhow::{Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use testbed::wait::{self, DEADLINE};

use super::{Stage, phase, with_adaptor};

impl Stage<'_> {
    /// A VM of a Pod, recorded.
    async fn recorded(&self, pod: &str) -> Result<String> {
        let vm = self.adaptor.make(&self.namespace, pod).await?;
        self.adaptor.record(&self.namespace, pod, &vm).await?;
        Ok(vm)
    }

    /// Waits until a Pod runs.
    async fn until_running(&self, pod: &str) -> Result<()> {
        wait::present(&self.pods, pod, "Running", DEADLINE, |pod| phase(pod) == "Running").await.map(drop)
    }

    /// Deletes a Pod, and waits until nothing is left of it.
    async fn until_gone(&self, pod: &str) -> Result<()> {
        self.pods.delete(pod, &DeleteParams::default()).await?;
        wait::gone(&self.pods, pod, DEADLINE).await?;
        self.until_left(pod, 0, 0).await.map(drop)
    }
}

#[test]
fn a_newer_record_replaces_the_machine_that_a_restarted_adaptor_forgot() -> Result<()> {
    // No earlier Pod had a generated name, so the newer VM is the Pod's.
    const POD: &str = "web-x7k2p";
    with_adaptor(async |stage| {
        let gate = stage.starting(POD).await?;
        stage.recorded(POD).await?;
        stage.restart().await?;
        stage.until_it_waits_for(POD).await?;
        // The shim has lost its connection to cloud-api-adaptor.
        gate.fail()?;
        stage.until_held(&gate).await?;
        let newer = stage.recorded(POD).await?;
        assert_eq!(stage.until_left(POD, 1, 1).await?, [newer.as_str()]);

        gate.pass()?;
        stage.until_running(POD).await?;
        stage.until("AdaptorRunning").await?;
        assert_eq!(stage.domains_of(POD).await?, [newer]);
        stage.until_gone(POD).await
    })
}

#[test]
fn two_overlapping_starts_keep_both_machines_until_the_pod_is_deleted() -> Result<()> {
    with_adaptor(async |stage| {
        let gate = stage.starting("web").await?;
        let slow = stage.adaptor.make(&stage.namespace, "web").await?;
        // The kubelet no longer waits for that machine.
        gate.fail()?;
        stage.until_held(&gate).await?;
        let vm = stage.recorded("web").await?;
        wait::second_after(Timestamp::now()).await?;
        stage.adaptor.record(&stage.namespace, "web", &slow).await?;
        gate.pass()?;
        stage.until_running("web").await?;
        // After this the operator has seen that the Pod runs.
        stage.running("other").await?;
        stage.recorded("other").await?;
        stage.until_gone("other").await?;
        let mut both = stage.until_left("web", 2, 2).await?;
        both.sort();
        let mut expected = [slow, vm];
        expected.sort();
        assert_eq!(both, expected);
        stage.until_gone("web").await
    })
}

#[test]
fn the_machine_of_a_pod_that_is_deleted_while_it_starts_lives_as_long_as_the_pod() -> Result<()> {
    with_adaptor(async |stage| {
        let gate = stage.starting("web").await?;
        stage.running("other").await?;
        stage.recorded("other").await?;
        stage.recorded("web").await?;
        stage.pods.delete("web", &DeleteParams::default()).await?;
        // By then the operator has seen all of this.
        stage.until_gone("other").await?;
        stage.until_left("web", 1, 1).await?;
        ensure!(stage.pods.get("web").await?.metadata.deletion_timestamp.is_some());

        gate.fail()?;
        wait::gone(&stage.pods, "web", 2 * DEADLINE).await?;
        stage.until_left("web", 0, 0).await.map(drop)
    })
}

#[test]
fn a_surge_replaces_cloud_api_adaptor_on_its_node_while_a_pod_runs() -> Result<()> {
    with_adaptor(async |stage| {
        stage.running("web").await?;
        stage.recorded("web").await?;
        let before = stage.own_pod().await?.metadata.uid;
        let adaptor = json!({ "updateStrategy": { "rollingUpdate": { "maxSurge": 1 } }, "podAnnotations": { "version": "2" } });
        let patch = Patch::Merge(json!({ "spec": { "adaptor": adaptor } }));
        stage.configs.patch("config", &PatchParams::default(), &patch).await?;
        let were_together = Cell::new(false);
        wait::eventually("one that was started beside it runs alone", 2 * DEADLINE, async || {
            let pods = stage.adaptors().await?;
            let is_former =
                |pod: &Pod| pod.metadata.uid == before && pod.metadata.deletion_timestamp.is_none();
            if pods.len() == 2 && pods.iter().any(is_former) {
                were_together.set(true);
            }
            let [pod] = pods.as_slice() else { anyhow::bail!("{} are there", pods.len()) };
            ensure!(pod.metadata.uid != before, "it is the one from before");
            Ok(())
        })
        .await?;
        ensure!(were_together.get(), "the former one ended before another one ran");
        stage.until_it_waits_for("web").await?;
        stage.until_left("web", 1, 1).await?;
        stage.until_gone("web").await?;
        stage.until("AdaptorRunning").await.map(drop)
    })
}
