//! The admission that makes Pods peer pods: the webhook, the policy, and the change from one to the other.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::MutatingWebhookConfiguration,
        apps::v1::Deployment,
        core::v1::{ConfigMap, Pod, Service},
        policy::v1::PodDisruptionBudget,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use peerpod_operator::{
    NAMESPACE, OLDEST_KUBERNETES,
    peerpodconfig::resources::{CONFIG_LABEL, policy},
    webhook::certificates::rotation::SECRET,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use testbed::wait::{self, DEADLINE};

use super::{
    limit::{exclude_from_webhook, until_refused},
    shared::{forget_certificate, secrets},
    stage::{RESOURCE, RUNTIME_CLASS, Stage, configuring, operator},
};
use crate::support::{Alone, alone_on};

const NAME: &str = "peer-pods-config";

/// Much less than the time until the operator looks at a configuration without a cause.
pub const AT_ONCE: Duration = Duration::from_secs(30);

pub fn mode(mode: &str) -> Value {
    json!({ "limit": 2, "admission": { "mode": mode } })
}

fn policies(client: &Client) -> [Api<DynamicObject>; 2] {
    policy::resources().map(|resource| Api::all_with(client.clone(), &resource))
}

/// Whether the admission makes a Pod of the runtime class a peer pod, by a dry run.
pub async fn makes_peer_pods(alone: &Alone<'_>) -> Result<bool> {
    let pods: Api<Pod> = Api::namespaced(alone.testbed.client(), &alone.namespace);
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": "peer" },
        "spec": {
            "runtimeClassName": RUNTIME_CLASS,
            "automountServiceAccountToken": false,
            "containers": [{ "name": "main", "image": "any", "resources": { "limits": { "cpu": "1" } } }],
        },
    }))?;
    let pod = pods.create(&PostParams { dry_run: true, ..PostParams::default() }, &pod).await?;
    let resources = pod.spec.context("a spec")?.containers.remove(0).resources;
    Ok(resources.and_then(|it| it.limits).is_some_and(|limits| limits.contains_key(RESOURCE)))
}

/// The existing objects of a configuration's admission, as `Kind name`.
async fn objects(client: &Client, policies_served: bool) -> Result<Vec<String>> {
    async fn of<K>(api: Api<K>, dynamic: &K::DynamicType) -> Result<Vec<String>>
    where
        K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let labelled = ListParams::default()
            .labels(&format!("{CONFIG_LABEL}=config,app.kubernetes.io/component=webhook"));
        let found = api.list_metadata(&labelled).await?;
        Ok(found.iter().map(|it| format!("{} {}", K::kind(dynamic), it.name_any())).collect())
    }
    let mut found = of(Api::<Deployment>::namespaced(client.clone(), NAMESPACE), &()).await?;
    found.extend(of(Api::<Service>::namespaced(client.clone(), NAMESPACE), &()).await?);
    found.extend(of(Api::<PodDisruptionBudget>::namespaced(client.clone(), NAMESPACE), &()).await?);
    found.extend(of(Api::<MutatingWebhookConfiguration>::all(client.clone()), &()).await?);
    if policies_served {
        for resource in policy::resources() {
            found.extend(of(Api::<DynamicObject>::all_with(client.clone(), &resource), &resource).await?);
        }
    }
    Ok(found)
}

const WEBHOOK: [&str; 4] = [
    "Deployment config-webhook",
    "Service config-webhook",
    "PodDisruptionBudget config-webhook",
    "MutatingWebhookConfiguration peer-pods-config",
];
const POLICY: [&str; 2] =
    ["MutatingAdmissionPolicy peer-pods-config", "MutatingAdmissionPolicyBinding peer-pods-config"];

async fn until_there_is(client: &Client, expected: &[&str]) -> Result<()> {
    wait::eventually(&format!("there is {expected:?}"), DEADLINE, async || {
        let found = objects(client, true).await?;
        ensure!(found == expected, "{found:?}");
        Ok(())
    })
    .await
}

/// Writes an authority into the webhook's Secret, as the webhook's Pods do. The Pods of fake nodes do nothing.
pub async fn trust(client: &Client) -> Result<()> {
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let authorities = config_maps.get("kube-root-ca.crt").await?.data.context("it has data")?;
    let authorities = ByteString(authorities["ca.crt"].clone().into_bytes());
    let patch = Patch::Merge(json!({ "data": { "ca.crt": authorities } }));
    let secrets = secrets(client);
    wait::eventually("there is a Secret and takes an authority", DEADLINE, async || {
        secrets.patch_metadata(SECRET, &PatchParams::default(), &patch).await?;
        Ok(())
    })
    .await
}

/// Runs `meanwhile`. Fails if there is a moment without both webhook and policy.
async fn never_without(client: &Client, meanwhile: impl Future<Output = Result<()>>) -> Result<()> {
    let webhooks: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let [_, bindings] = policies(client);
    let watching = async {
        loop {
            // The operator makes the new one before it deletes the old one. So this look finds it, or the one before did.
            let found = (webhooks.get_metadata_opt(NAME).await?, bindings.get_metadata_opt(NAME).await?);
            let again = webhooks.get_metadata_opt(NAME).await?;
            ensure!(found.0.is_some() || found.1.is_some() || again.is_some(), "there is neither");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        outcome = meanwhile => outcome,
        outcome = watching => outcome,
    }
}

#[test]
fn a_policy_is_in_force_and_its_drift_is_put_back_at_once() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        stage.configure("config", mode("Policy")).await?;
        let message = stage.until("config", "AdmissionReady", "PolicyInForce").await?;
        assert!(message.contains("100T"), "{message}");
        ensure!(makes_peer_pods(alone).await?);
        until_there_is(&stage.client, &POLICY).await?;
        let [policies, bindings] = policies(&stage.client);

        let first = policies.get(NAME).await?;
        let drift = json!({ "spec": { "failurePolicy": "Ignore" } });
        policies.patch(NAME, &PatchParams::default(), &Patch::Merge(drift)).await?;
        bindings.delete(NAME, &DeleteParams::default()).await?;
        wait::eventually("the drift is put back", AT_ONCE, async || {
            let policy = policies.get(NAME).await?;
            ensure!(policy.data["spec"]["failurePolicy"] == "Fail", "{}", policy.data);
            bindings.get(NAME).await?;
            Ok(())
        })
        .await?;

        assert_eq!(policies.get(NAME).await?.uid(), first.uid());
        stage.until("config", "Ready", "AllReady").await?;
        until_there_is(&stage.client, &POLICY).await?;
        stage.clear("config").await
    })
}

#[test]
fn obstacles_to_admission_are_reported_in_every_mode() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        let admission = |mode: &str, class: &str| json!({ "limit": 2, "admission": { "mode": mode, "runtimeClassName": class } });
        stage.configure("config", admission("None", "missing")).await?;
        let message = stage.until("config", "AdmissionReady", "RuntimeClassMissing").await?;
        ensure!(message.contains("Kata Containers"), "{message}");
        stage.until("config", "Ready", "RuntimeClassMissing").await?;
        // Another program's binding has the name.
        let [policies, bindings] = policies(&stage.client);
        let binding = json!({
            "apiVersion": policy::GROUP_VERSION, "kind": "MutatingAdmissionPolicyBinding",
            "metadata": { "name": NAME }, "spec": { "policyName": "another" },
        });
        bindings.create(&PostParams::default(), &serde_json::from_value(binding)?).await?;
        stage.configure("config", admission("Policy", RUNTIME_CLASS)).await?;
        let message = stage.until("config", "Conflict", "NameTaken").await?;
        ensure!(message.contains(NAME), "{message}");
        stage.until("config", "AdmissionReady", "AdmissionWithheld").await?;
        stage.until("config", "Ready", "NameTaken").await?;
        assert_eq!(bindings.get(NAME).await?.data["spec"]["policyName"], "another");
        bindings.delete(NAME, &DeleteParams::default()).await?;
        stage.until("config", "Ready", "AllReady").await?;
        policies.get(NAME).await?;
        stage.clear("config").await
    })
}

#[test]
fn one_admission_takes_the_others_place_without_a_gap_and_leaves_nothing() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        let client = &stage.client;
        forget_certificate(alone).await?;
        stage.configure("config", mode("Webhook")).await?;
        trust(client).await?;
        stage.until("config", "AdmissionReady", "WebhookRunning").await?;
        until_there_is(client, &WEBHOOK).await?;

        never_without(client, async {
            stage.configure("config", mode("Policy")).await?;
            stage.until("config", "AdmissionReady", "PolicyInForce").await?;
            until_there_is(client, &POLICY).await
        })
        .await?;
        ensure!(makes_peer_pods(alone).await?);

        never_without(client, async {
            stage.configure("config", mode("Webhook")).await?;
            stage.until("config", "AdmissionReady", "WebhookStarting").await?;
            // The API server would refuse Pods that a webhook in this state could not answer for.
            until_there_is(client, &[&WEBHOOK[..3], &POLICY].concat()).await?;
            trust(client).await?;
            stage.until("config", "AdmissionReady", "WebhookRunning").await?;
            until_there_is(client, &WEBHOOK).await
        })
        .await?;

        stage.configure("config", mode("Policy")).await?;
        stage.until("config", "AdmissionReady", "PolicyInForce").await?;
        stage.configure("config", mode("None")).await?;
        stage.until("config", "AdmissionReady", "AdmissionElsewhere").await?;
        until_there_is(client, &[]).await?;
        stage.configure("config", mode("Webhook")).await?;
        until_there_is(client, &WEBHOOK).await?;
        stage.configure("config", mode("None")).await?;
        until_there_is(client, &[]).await?;
        stage.clear("config").await
    })
}

#[test]
fn a_policy_of_another_class_does_not_delay_a_webhook() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        forget_certificate(alone).await?;
        let former = json!({ "mode": "Policy", "runtimeClassName": "former" });
        stage.configure("config", json!({ "limit": 2, "admission": former })).await?;
        until_there_is(&stage.client, &POLICY).await?;
        ensure!(!makes_peer_pods(alone).await?, "the policy is for another class");
        // There never is a certificate, so the policy stays.
        stage.configure("config", mode("Webhook")).await?;
        stage.until("config", "AdmissionReady", "WebhookStarting").await?;
        until_there_is(&stage.client, &[&WEBHOOK[..], &POLICY].concat()).await?;
        wait::eventually("Pods are refused, and none is admitted as it is", DEADLINE, async || {
            ensure!(makes_peer_pods(alone).await.is_err());
            Ok(())
        })
        .await?;
        stage.clear("config").await
    })
}

#[test]
fn unsupported_policies_are_reported_and_a_working_webhook_stays() -> Result<()> {
    alone_on(OLDEST_KUBERNETES, operator, async |alone| {
        let stage = Stage::set(alone, 1).await?;
        stage.configure("config", mode("Webhook")).await?;
        trust(&stage.client).await?;
        stage.until("config", "AdmissionReady", "WebhookRunning").await?;
        stage.configure("config", mode("Policy")).await?;
        let message = stage.until("config", "AdmissionReady", "PolicyUnsupported").await?;
        assert!(message.contains("use the mode Webhook"), "{message}");
        exclude_from_webhook(alone).await?;
        until_refused(alone).await?;
        // The operator keeps the working admission, and still repairs it.
        Stage::kubectl(alone, &["delete", "deployment", "config-webhook"]).await?;
        wait::eventually("all of it is there", DEADLINE, async || {
            let found = objects(&stage.client, false).await?;
            ensure!(found == WEBHOOK, "{found:?}");
            Ok(())
        })
        .await?;
        let asked = alone.testbed.audit()?.of_operator()?;
        let in_vain: Vec<_> = asked.iter().filter(|it| it.resource.contains("policies")).collect();
        ensure!(in_vain.is_empty(), "{in_vain:#?}");
        stage.clear("config").await?;
        ensure!(objects(&alone.testbed.client(), false).await?.is_empty());
        Ok(())
    })
}

/// Makes the schema allow these modes.
async fn allow(client: &Client, modes: &[&str]) -> Result<()> {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let field =
        "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/admission/properties/mode/enum";
    let patch = json!([{ "op": "replace", "path": field, "value": modes }]);
    let patch = Patch::<()>::Json(serde_json::from_value(patch)?);
    crds.patch("peerpodconfigs.confidentialcontainers.org", &PatchParams::default(), &patch).await?;
    Ok(())
}

#[test]
fn a_stored_mode_auto_gets_a_webhook_and_delays_no_other_configuration() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        forget_certificate(alone).await?;
        allow(&stage.client, &["Webhook", "Policy", "Auto", "None"]).await?;
        let stored = wait::eventually("it can be stored", DEADLINE, async || {
            stage.configure("config", mode("Auto")).await
        })
        .await;
        allow(&stage.client, &["Webhook", "Policy", "None"]).await?;
        stored?;
        wait::eventually("another one is refused", DEADLINE, async || {
            let Err(problem) = stage.configure("other", mode("Auto")).await else {
                // The API server stored it. A stored object would not be validated again, so delete it.
                stage.delete("other").await?;
                bail!("it is stored");
            };
            let problem = problem.to_string();
            ensure!(problem.contains("Unsupported value") && problem.contains("Webhook"), "{problem}");
            Ok(())
        })
        .await?;
        // The operator's own writes to it do not fail because of the stored mode.
        alone.operator.stop().await?;
        let dir = tempfile::tempdir()?;
        alone.operator = operator(alone.testbed, dir.path(), &alone.libvirtd).await?;
        trust(&stage.client).await?;
        stage.until("config", "AdmissionReady", "WebhookRunning").await?;
        until_there_is(&stage.client, &WEBHOOK).await?;
        let nowhere = json!({ "nodeSelector": { "nowhere": "yes" } });
        stage.configure("beside", nowhere).await?;
        stage.until("beside", "AdmissionReady", "AdmissionElsewhere").await?;
        stage.delete("beside").await?;
        stage.clear("config").await
    })
}

#[test]
fn a_younger_configuration_shares_the_admission_of_an_older_one_as_far_as_that_is() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        let nowhere = json!({ "nowhere": "yes" });
        let older = |mode: &str| json!({ "nodeSelector": nowhere, "admission": { "mode": mode } });
        stage.configure("config", older("Webhook")).await?;
        stage.until("config", "AdmissionReady", "WebhookStarting").await?;
        // Creation times are whole seconds. The older one needs a second of its own.
        wait::second_after(Timestamp::now()).await?;
        stage.configure("sharing", mode("Policy")).await?;
        let message = stage.until("sharing", "AdmissionReady", "SharedNotReady").await?;
        ensure!(message.contains("PeerPodConfig config"), "{message}");

        stage.configure("config", older("Policy")).await?;
        stage.until("sharing", "AdmissionReady", "AdmissionShared").await?;
        stage.until("sharing", "Ready", "AllReady").await?;
        let otherwise = json!({ "limit": 2, "admission": { "mode": "Policy", "sizing": "Sum" } });
        stage.configure("sharing", otherwise).await?;
        let message = stage.until("sharing", "Conflict", "AdmissionDiffers").await?;
        ensure!(message.contains("differs in admission.sizing;"), "{message}");
        stage.until("sharing", "Ready", "AdmissionDiffers").await?;
        stage.configure("sharing", mode("Policy")).await?;
        stage.until("sharing", "Ready", "AllReady").await?;

        stage.configs.delete("config", &DeleteParams::default()).await?;
        stage.until("sharing", "AdmissionReady", "PolicyInForce").await?;
        stage.clear("sharing").await
    })
}
