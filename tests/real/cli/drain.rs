//! `drain`, if the API server does not do at once what the program asks for.

use anyhow::{Context as _, Result, ensure};
use cluster::Component;
use k8s_openapi::api::{admissionregistration::v1::ValidatingWebhookConfiguration, core::v1::Pod};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use peerpod_operator::{
    NAMESPACE,
    api::v1alpha1::PeerPodConfig,
    names::{COMPONENT_LABEL, NAME_LABEL, OPERATOR_COMPONENT},
};
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    time::timeout,
};

use crate::{
    cli::apply::{PATIENCE, start, succeeds},
    support::{alone, without_operator},
};

#[test]
fn an_api_server_that_is_away_or_refuses_for_a_while_is_waited_for() -> Result<()> {
    alone(async |alone| {
        let configs: Api<PeerPodConfig> = Api::namespaced(alone.testbed.client(), NAMESPACE);
        let config = json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig",
            "metadata": { "name": "config" },
            "spec": { "limit": 1, "nodeSelector": { "test.example/none": "" } },
        });
        configs.create(&PostParams::default(), &serde_json::from_value(config)?).await?;
        let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(alone.testbed.client());
        let nobody = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": { "name": "nobody" },
            "webhooks": [{
                "name": "nobody.test.example", "clientConfig": { "url": "https://127.0.0.1:1/" },
                "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail",
                "rules": [{
                    "apiGroups": ["confidentialcontainers.org"], "apiVersions": ["*"],
                    "resources": ["peerpodconfigs"], "operations": ["DELETE"],
                }],
            }],
        });
        webhooks.create(&PostParams::default(), &serde_json::from_value(nobody)?).await?;

        alone.testbed.cluster().process(Component::ApiServer).context("it runs")?.kill().await?;
        let mut drain = start(alone.testbed, &["drain", "--timeout=3m"])?;
        let mut errors = BufReader::new(drain.stderr.take().context("its errors are read once")?).lines();
        let told = timeout(PATIENCE, errors.next_line()).await??.context("it ended without a word")?;
        ensure!(told.starts_with("peerpod-operator drain: trying again: the API server: "), "{told}");
        alone.testbed.cluster_mut().start_component(Component::ApiServer).await?;

        let mut all = vec![told];
        while !all.last().is_some_and(|last| last.contains("failed calling webhook")) {
            all.push(timeout(PATIENCE, errors.next_line()).await??.with_context(|| all.join("\n"))?);
        }
        ensure!(all.windows(2).all(|lines| lines[0] != lines[1]), "it says things twice: {all:?}");
        let config = configs.get("config").await?;
        ensure!(config.metadata.deletion_timestamp.is_none(), "the deletion was not refused");
        webhooks.delete("nobody", &DeleteParams::default()).await?;
        succeeds(drain).await?;
        ensure!(configs.get_opt("config").await?.is_none());
        Ok(())
    })
}

#[test]
fn a_pod_of_the_operator_that_was_evicted_is_not_waited_for() -> Result<()> {
    without_operator(async |testbed| {
        let cluster = testbed.cluster();
        let here = ["--namespace", NAMESPACE];
        let create = ["create", "deployment", "peerpod-operator", "--image=any", "--replicas=0"];
        cluster.kubectl(&[&create[..], &here[..]].concat()).await?;
        let pods: Api<Pod> = Api::namespaced(testbed.client(), NAMESPACE);
        // No scheduler gives it a node, whose kubelet would say that it runs.
        let pod = json!({
            "metadata": { "name": "evicted", "labels": { NAME_LABEL: "peerpod-operator", COMPONENT_LABEL: OPERATOR_COMPONENT } },
            "spec": {
                "schedulerName": "none", "automountServiceAccountToken": false,
                "containers": [{ "name": "main", "image": "any" }],
            },
        });
        pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        let failed = Patch::Merge(json!({ "status": { "phase": "Failed", "reason": "Evicted" } }));
        pods.patch_status("evicted", &PatchParams::default(), &failed).await?;

        let drained = start(testbed, &["drain", "--stop"])?.wait_with_output().await?;
        let told = String::from_utf8(drained.stdout)?;
        ensure!(drained.status.success() && told.contains("The operators have ended."), "{told}");
        pods.delete("evicted", &DeleteParams::default().grace_period(0)).await?;
        cluster.kubectl(&[&["delete", "deployment", "peerpod-operator"], &here[..]].concat()).await?;
        Ok(())
    })
}
