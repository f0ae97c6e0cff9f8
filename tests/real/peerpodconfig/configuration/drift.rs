//! Other programs change the operator's objects. What they may add stays. The operator stops reverting a change that keeps coming back.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhook, MutatingWebhookConfiguration},
    apps::v1::DaemonSet,
    events::v1::Event,
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use peerpod_operator::NAMESPACE;
use serde_json::{Value, json};
use testbed::wait;

use super::{
    admission::{AT_ONCE, mode, trust},
    shared::forget_certificate,
    stage::{Stage, configuring, writes},
};
use crate::support::Alone;

const NAME: &str = "peer-pods-config";

/// The most writes of the operator to one object in a minute.
const MOST: usize = 5;

/// Another program, which writes the operator's webhook configuration.
struct Other(Api<MutatingWebhookConfiguration>);

impl Other {
    async fn webhook(&self) -> Result<MutatingWebhook> {
        let webhooks = self.0.get(NAME).await?.webhooks.context("it has webhooks")?;
        webhooks.into_iter().next().context("there is one")
    }

    /// Changes the webhook unless it already has the change. A conflict is retried and does not count as one.
    async fn change(&self, change: impl Fn(&mut MutatingWebhook)) -> Result<bool> {
        let mut configuration = self.0.get(NAME).await?;
        let before = configuration.webhooks.clone();
        configuration.webhooks.iter_mut().flatten().for_each(change);
        if configuration.webhooks == before {
            return Ok(false);
        }
        let params =
            PostParams { field_manager: Some("admissionsenforcer".to_owned()), ..PostParams::default() };
        match self.0.replace(NAME, &params, &configuration).await {
            Err(kube::Error::Api(status)) if status.is_conflict() => Ok(false),
            outcome => Ok(outcome.map(|_| true)?),
        }
    }

    /// Changes it again and again.
    async fn keep_changing(&self, change: impl Fn(&mut MutatingWebhook)) -> Result<()> {
        loop {
            self.change(&change).await?;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// The terms that AKS adds to the selector of every webhook, spelled as AKS does.
fn enforced(webhook: &mut MutatingWebhook) {
    let further = json!([
        { "key": "control-plane", "operator": "NotIn", "values": ["true"] },
        { "key": "kubernetes.azure.com/managedby", "operator": "NotIn", "values": ["aks"] },
    ]);
    let further: Vec<_> = serde_json::from_value(further).expect("expressions");
    let selector = webhook.namespace_selector.get_or_insert_default();
    let expressions = selector.match_expressions.get_or_insert_default();
    let missing: Vec<_> = further.into_iter().filter(|it| !expressions.contains(it)).collect();
    expressions.extend(missing);
}

fn emptied(webhook: &mut MutatingWebhook) {
    webhook.rules = None;
}

/// How often the operator has written the webhook configuration so far.
fn written(alone: &Alone<'_>) -> Result<usize> {
    let registrations = |it: &&testbed::Request| it.resource == "mutatingwebhookconfigurations";
    Ok(writes(alone)?.iter().filter(registrations).count())
}

#[test]
fn selector_additions_of_an_enforcer_stay_and_real_drift_is_corrected() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        forget_certificate(alone).await?;
        stage.configure("config", mode("Webhook")).await?;
        trust(&stage.client).await?;
        stage.until("config", "AdmissionReady", "WebhookRunning").await?;
        let other = Other(Api::all(stage.client.clone()));
        let own = other.webhook().await?.namespace_selector;
        ensure!(other.change(enforced).await?);
        let with_theirs = other.webhook().await?;
        let before = written(alone)?;
        for _ in 0..3 {
            stage.look_again(alone).await?;
        }
        assert_eq!(written(alone)?, before, "what others add is no drift");
        assert_eq!(other.webhook().await?, with_theirs);

        let play = other.keep_changing(enforced);
        let drift = async {
            let empty: Value = json!([{ "name": with_theirs.name, "rules": [] }]);
            let patch = Patch::Strategic(json!({ "webhooks": empty }));
            other.0.patch(NAME, &PatchParams::default(), &patch).await?;
            wait::eventually("the rules are put back, and the enforcer adds its own", AT_ONCE, async || {
                ensure!(other.webhook().await? == with_theirs, "{:?}", other.webhook().await?);
                Ok(())
            })
            .await?;
            for _ in 0..3 {
                stage.look_again(alone).await?;
            }
            assert_eq!(written(alone)?, before + 1, "one write for one drift");
            // The operator writes a change of the spec, whatever other programs added.
            let admission = json!({ "mode": "Webhook", "excludedNamespaces": ["elsewhere"] });
            stage.configure("config", json!({ "limit": 2, "admission": admission })).await?;
            wait::eventually("another namespace is excluded", AT_ONCE, async || {
                let selector = serde_json::to_string(&other.webhook().await?.namespace_selector)?;
                ensure!(selector.contains("elsewhere") && selector.contains("managedby"), "{selector}");
                Ok(())
            })
            .await?;
            stage.until("config", "Ready", "AllReady").await?;
            // A write too many would come with the next look.
            stage.look_again(alone).await?;
            assert_eq!(written(alone)?, before + 2);
            assert_ne!(other.webhook().await?.namespace_selector, own);
            anyhow::Ok(())
        };
        tokio::select! {
            outcome = drift => outcome?,
            outcome = play => outcome?,
        }
        stage.clear("config").await
    })
}

#[test]
fn repeated_drift_is_left_and_reported_and_a_new_spec_is_written() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        forget_certificate(alone).await?;
        stage.configure("config", mode("Webhook")).await?;
        trust(&stage.client).await?;
        stage.until("config", "Ready", "AllReady").await?;
        let other = Other(Api::all(stage.client.clone()));
        let before = written(alone)?;
        let left = async {
            let message = stage.until("config", "Conflict", "DriftLeft").await?;
            ensure!(message.contains(&format!("MutatingWebhookConfiguration {NAME}")), "{message}");
            stage.until("config", "Ready", "DriftLeft").await?;
            for _ in 0..5 {
                stage.look_again(alone).await?;
            }
            let own = written(alone)? - before;
            ensure!((3..=MOST).contains(&own), "{own} writes");
            ensure!(other.webhook().await?.rules.is_none(), "it is left");
            anyhow::Ok(())
        };
        tokio::select! {
            outcome = left => outcome?,
            outcome = other.keep_changing(emptied) => outcome?,
        }
        // The other program is gone.
        let admission = json!({ "mode": "Webhook", "excludedNamespaces": ["elsewhere"] });
        stage.configure("config", json!({ "limit": 2, "admission": admission })).await?;
        stage.until_gone("config", "Conflict").await?;
        stage.until("config", "Ready", "AllReady").await?;
        ensure!(other.webhook().await?.rules.is_some_and(|rules| rules.len() == 1));
        // Drift of objects that are not wanted any more is not reported, and requests no reconcile after reconcile.
        tokio::select! {
            outcome = stage.until("config", "Conflict", "DriftLeft") => drop(outcome?),
            outcome = other.keep_changing(emptied) => outcome?,
        }
        stage.configure("config", mode("None")).await?;
        stage.until_gone("config", "Conflict").await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let before = stage.reconciles(alone).await?;
        tokio::time::sleep(Duration::from_secs(3)).await;
        let again = stage.reconciles(alone).await? - before;
        ensure!(again < 10.0, "{again} reconciles");
        stage.clear("config").await
    })
}

/// A readiness probe that another program sets in the container.
fn another_probe() -> Value {
    json!({ "template": { "spec": { "containers": [
        { "name": "cloud-api-adaptor", "readinessProbe": { "httpGet": null, "tcpSocket": { "port": 1 } } },
    ] } } })
}

#[test]
fn fields_of_other_managers_are_taken_over_once_and_block_nothing() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        stage.configure("config", json!({ "limit": 1 })).await?;
        stage.until("config", "Ready", "AllReady").await?;
        let daemon_sets: Api<DaemonSet> = Api::namespaced(stage.client.clone(), NAMESPACE);
        let own = stage.daemon_set("config").await?.spec;
        let surge = json!({ "updateStrategy": { "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } } });
        for drift in [surge, another_probe()] {
            let params =
                PatchParams { field_manager: Some("kubectl-patch".to_owned()), ..PatchParams::default() };
            let patch = Patch::Strategic(json!({ "spec": drift }));
            daemon_sets.patch("config-cloud-api-adaptor", &params, &patch).await?;
            wait::eventually("the DaemonSet is as it was", AT_ONCE, async || {
                let now = stage.daemon_set("config").await?.spec;
                ensure!(now == own, "{}", json!(now));
                Ok(())
            })
            .await?;
        }
        let events: Api<Event> = Api::namespaced(stage.client.clone(), NAMESPACE);
        wait::eventually("an event tells it once", AT_ONCE, async || {
            let taken = ListParams::default().fields("reason=FieldsTakenOver");
            let told: Vec<_> = events.list(&taken).await?.items.into_iter().map(|event| event.note).collect();
            let [Some(note)] = &*told else { bail!("{told:?}") };
            ensure!(note.contains("DaemonSet config-cloud-api-adaptor"), "{note}");
            Ok(())
        })
        .await?;
        stage.until("config", "Ready", "AllReady").await?;
        stage.clear("config").await
    })
}

#[test]
fn a_refused_object_with_fields_of_another_manager_is_tried_ever_more_slowly() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        stage.configure("config", json!({ "limit": 1 })).await?;
        stage.until("config", "Ready", "AllReady").await?;
        let daemon_sets: Api<DaemonSet> = Api::namespaced(stage.client.clone(), NAMESPACE);
        let params =
            PatchParams { field_manager: Some("kubectl-patch".to_owned()), ..PatchParams::default() };
        let theirs = Patch::Merge(json!({ "spec": { "revisionHistoryLimit": 3 } }));
        daemon_sets.patch("config-cloud-api-adaptor", &params, &theirs).await?;
        let labels = json!({ "podLabels": { "example.com/label": "no value of a label" } });
        stage.configure("config", json!({ "limit": 1, "adaptor": labels })).await?;
        let message = stage.until("config", "AdaptorReady", "InvalidSpec").await?;
        ensure!(message.contains("no value of a label"), "{message}");
        let before = stage.reconciles(alone).await?;
        tokio::time::sleep(Duration::from_secs(20)).await;
        let passes = stage.reconciles(alone).await? - before;
        ensure!(passes < 15.0, "{passes} passes in 20 s");
        // What the other one set was not the cause, so it is left.
        stage.configure("config", json!({ "limit": 2 })).await?;
        stage.until("config", "Ready", "AllReady").await?;
        let limit = stage.daemon_set("config").await?.spec.and_then(|spec| spec.revision_history_limit);
        assert_eq!(limit, Some(3));
        stage.clear("config").await
    })
}
