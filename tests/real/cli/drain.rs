//! `drain`, if the API server does not do at once what the program asks for.

use anyhow::{Context as _, Result, ensure};
use cluster::Component;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use peerpod_operator::{NAMESPACE, api::v1alpha1::PeerPodConfig};
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    time::timeout,
};

use crate::{
    cli::apply::{PATIENCE, start, succeeds},
    support::alone,
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
