//! The webhook behind its Service, as a PeerPodConfig deploys it. The operator makes its objects, Kubernetes' own controllers make its
//! Pods and endpoints, and the API server calls them.
//!
//! All scenarios share a cluster and an operator. Each has its own PeerPodConfig and runtime class, and so its own webhook.

mod stage;

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Secret};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use peerpod_operator::{
    NAMESPACE,
    webhook::{certificates::rotation::SECRET, sizing::ANNOTATIONS},
};
use serde_json::json;
use testbed::wait::{self, DEADLINE};

use self::stage::{a_pod, with_only_webhook, with_webhook};
use super::stage::VM;

#[test]
fn the_webhook_of_a_configuration_is_called_through_its_service() -> Result<()> {
    with_webhook("called", async |stage| {
        let pod = stage.pods.create(&PostParams::default(), &stage.peer_pod()?).await?;
        let sizes = ANNOTATIONS.map(|key| pod.annotations().get(key).map(String::as_str));
        assert_eq!(sizes, [Some("2"), Some("1024"), None]);
        let spec = serde_json::to_value(&pod.spec)?;
        let one = json!({ "limits": { VM: "1" }, "requests": { VM: "1" } });
        assert_eq!(spec["containers"][0]["resources"], one);

        let ordinary = stage.pods.create(&PostParams::default(), &a_pod(json!({}))?).await?;
        assert!(ordinary.annotations().is_empty(), "{:?}", ordinary.annotations());
        let spec = serde_json::to_value(&ordinary.spec)?;
        let limits = json!({ "cpu": "1500m", "memory": "1Gi" });
        assert_eq!(spec["containers"][0]["resources"]["limits"], limits);

        // Both replicas serve, on different nodes.
        assert_eq!(stage.webhook_pods().await?.len(), 2);
        let background = DeleteParams::background();
        stage.pods.delete_collection(&background, &ListParams::default()).await?;
        Ok(())
    })
}

#[test]
fn while_it_is_down_peer_pods_alone_are_refused() -> Result<()> {
    with_webhook("down", async |stage| {
        stage.shared.runner.crash(stage.name);
        wait::eventually("peer pods are refused", DEADLINE, async || {
            let problem = stage.dry_run(&stage.peer_pod()?).await.err().context("it is not refused")?;
            let problem = format!("{problem:#}");
            ensure!(problem.contains("failed calling webhook \"mwebhook.peerpods.io\""), "{problem}");
            // No endpoint is left.
            ensure!(problem.contains("no endpoints available for service \"down-webhook\""), "{problem}");
            Ok(())
        })
        .await?;
        let ordinary = stage.dry_run(&a_pod(json!({}))?).await?;
        assert!(ordinary.annotations().is_empty(), "{:?}", ordinary.annotations());
        stage.until(stage.name, "WebhookStarting").await?;
        stage.shared.runner.recover(stage.name);
        stage.is_called().await
    })
}

#[test]
fn it_is_rolled_under_load_and_no_request_fails() -> Result<()> {
    with_webhook("rolled", async |stage| {
        let before = stage.webhook_pods().await?;
        let rolled = async {
            // The annotation that `kubectl rollout restart` sets. The operator leaves it alone.
            let annotations = json!({ "annotations": { "kubectl.kubernetes.io/restartedAt": "now" } });
            let patch = json!({ "spec": { "template": { "metadata": annotations } } });
            let deployments: Api<Deployment> = Api::namespaced(stage.shared.testbed.client(), NAMESPACE);
            deployments.patch("rolled-webhook", &PatchParams::default(), &Patch::Merge(patch)).await?;
            stage.serves_on_when_it_is_no_endpoint_any_more(&before[0]).await?;
            wait::eventually("all Pods are new ones", 2 * DEADLINE, async || {
                let now = stage.webhook_pods().await?;
                let old = now.iter().filter(|pod| before.iter().any(|it| it.uid() == pod.uid())).count();
                ensure!((now.len(), old) == (before.len(), 0), "{old} of {} are old ones", now.len());
                Ok(())
            })
            .await
        };
        let requests = stage.under_load(rolled).await?;
        ensure!(requests > 10, "{requests} requests are no load");
        Ok(())
    })
}

#[test]
fn clients_trust_the_certificate_while_it_is_renewed_under_load() -> Result<()> {
    // If a replica begins to lead while there is no Secret, it does not know the trusted authorities. So no other webhook may run.
    with_only_webhook("renewed", async |stage| {
        let secrets: Api<Secret> = Api::namespaced(stage.shared.testbed.client(), NAMESPACE);
        let shown = async || {
            let data = secrets.get_opt(SECRET).await?.and_then(|secret| secret.data).unwrap_or_default();
            let certificate = data.get("tls.crt").filter(|certificate| !certificate.0.is_empty());
            certificate.cloned().context("there is no certificate")
        };
        let renewed = async {
            for _ in 0..2 {
                let before = shown().await?;
                // Deleting the Secret makes the webhook issue another certificate.
                secrets.delete(SECRET, &DeleteParams::default()).await?;
                wait::eventually("another certificate is shown", DEADLINE, async || {
                    ensure!(shown().await? != before, "it is the same");
                    Ok(())
                })
                .await?;
            }
            Ok(())
        };
        let renewed = async {
            tokio::select! {
                outcome = renewed => outcome,
                never = stage.always_trusted() => match never? {},
            }
        };
        let requests = Box::pin(stage.under_load(renewed)).await?;
        ensure!(requests > 10, "{requests} requests are no load");
        Ok(())
    })
}

#[test]
fn one_webhook_takes_anothers_place_under_load_and_no_pod_is_admitted_unchanged() -> Result<()> {
    with_webhook("succeeded", async |stage| {
        let succeed = async |of: &str, by: &str| {
            // Creation times are whole seconds. The older one needs a second of its own.
            wait::second_after(Timestamp::now()).await?;
            stage.configure(by).await?;
            stage.until(by, "AdmissionShared").await?;
            stage.configs.delete(of, &DeleteParams::default()).await?;
            wait::gone(&stage.configs, of, 2 * DEADLINE).await?;
            stage.until(by, "WebhookRunning").await
        };
        let both = async {
            succeed(stage.name, "successor").await?;
            succeed("successor", stage.name).await
        };
        let requests = Box::pin(stage.under_load_with_refusals(both)).await?;
        ensure!(requests > 10, "{requests} requests are no load");
        Ok(())
    })
}

#[test]
fn after_a_change_of_the_runtime_class_no_pod_of_the_new_one_is_admitted_unchanged() -> Result<()> {
    with_webhook("class", async |before| {
        let stage = before.of_another_class("kata-class-changed").await?;
        wait::eventually("the API server calls the webhook for another class", DEADLINE, async || {
            let pod = before.dry_run(&before.peer_pod()?).await?;
            ensure!(pod.annotations().is_empty(), "it calls it for the former class");
            Ok(())
        })
        .await?;
        stage.under_load_with_refusals(Box::pin(stage.serves_its_class())).await?;
        stage.is_called().await
    })
}
