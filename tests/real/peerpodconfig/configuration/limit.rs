//! Peer pods that the admission does not see: the API server refuses them, so that none evades the limit of VMs.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{
    admissionregistration::v1::MutatingWebhookConfiguration,
    core::v1::{Namespace, Pod},
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testbed::wait::{self, DEADLINE};

use super::{
    admission::{mode, trust},
    shared::forget_certificate,
    stage::{RESOURCE, RUNTIME_CLASS, Stage, configuring},
};
use crate::support::Alone;

/// The namespaces with this label are not the webhook's.
const EXCLUDED: &str = "excluded-by-another";

/// The label of Pods whose runtime class another policy sets.
const BY_ANOTHER: &str = "class-by-another";

/// What the API server makes of a Pod, by a dry run.
async fn created(alone: &Alone<'_>, namespace: &str, pod: Value) -> kube::Result<Pod> {
    let pods: Api<Pod> = Api::namespaced(alone.testbed.client(), namespace);
    let pod = serde_json::from_value(pod).map_err(kube::Error::SerdeError)?;
    pods.create(&PostParams { dry_run: true, ..PostParams::default() }, &pod).await
}

fn pod(class: Option<&str>, labels: &Value, requests: &Value) -> Value {
    let containers = json!([
        { "name": "main", "image": "any" },
        { "name": "further", "image": "any", "resources": { "requests": requests, "limits": requests } },
    ]);
    json!({
        "metadata": { "name": "peer", "labels": labels },
        "spec": { "runtimeClassName": class, "automountServiceAccountToken": false, "containers": containers },
    })
}

/// How many VMs a Pod requests.
fn vms(pod: Pod) -> Result<Vec<String>> {
    let containers = pod.spec.context("a spec")?.containers;
    let requests = containers.into_iter().filter_map(|it| it.resources?.requests?.remove(RESOURCE));
    Ok(requests.map(|amount| amount.0).collect())
}

/// The refusal of a Pod, which is about the limit.
fn refusal(outcome: kube::Result<Pod>) -> Result<String> {
    let refused = outcome.err().context("the Pod was accepted")?.to_string();
    ensure!(refused.contains("peerpod-limit") && refused.contains("must request one"), "{refused}");
    Ok(refused)
}

/// Another program excludes the Pods of this namespace from the webhook of the configuration `config`.
pub async fn exclude_from_webhook(alone: &Alone<'_>) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(alone.testbed.client());
    let label = Patch::Merge(json!({ "metadata": { "labels": { EXCLUDED: "true" } } }));
    namespaces.patch(&alone.namespace, &PatchParams::default(), &label).await?;
    let webhooks: Api<MutatingWebhookConfiguration> = Api::all(alone.testbed.client());
    let expression = json!({ "key": EXCLUDED, "operator": "NotIn", "values": ["true"] });
    let path = "/webhooks/0/namespaceSelector/matchExpressions/-";
    let add = json!([{ "op": "add", "path": path, "value": expression }]);
    let add = Patch::<()>::Json(serde_json::from_value(add)?);
    webhooks.patch("peer-pods-config", &PatchParams::default(), &add).await?;
    Ok(())
}

/// Waits until the policy refuses a peer pod that requests no VM. Before, the webhook may refuse the Pod, as nothing answers for it.
pub async fn until_refused(alone: &Alone<'_>) -> Result<String> {
    let peer = || pod(Some(RUNTIME_CLASS), &json!({}), &json!({}));
    wait::eventually("the policy refuses the Pod", DEADLINE, async || {
        refusal(created(alone, &alone.namespace, peer()).await)
    })
    .await
}

#[test]
fn a_peer_pod_in_a_namespace_that_others_excluded_from_the_webhook_must_request_a_vm() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        forget_certificate(alone).await?;
        let admission = json!({ "mode": "Webhook", "excludedNamespaces": ["excluded"] });
        stage.configure("config", json!({ "limit": 2, "admission": admission })).await?;
        let namespaces: Api<Namespace> = Api::all(stage.client.clone());
        let peer = |class, requests| pod(Some(class), &json!({}), &requests);
        let create = async |class, requests| created(alone, &alone.namespace, peer(class, requests)).await;

        trust(&stage.client).await?;
        stage.until("config", "AdmissionReady", "WebhookRunning").await?;
        exclude_from_webhook(alone).await?;
        let refused = until_refused(alone).await?;
        ensure!(refused.contains(RUNTIME_CLASS) && refused.contains("PeerPodConfig config"), "{refused}");
        refusal(create(RUNTIME_CLASS, json!({ RESOURCE: "0" })).await)?;
        refusal(create(RUNTIME_CLASS, json!({ "example.com/vm": "1" })).await)?;
        assert_eq!(vms(create(RUNTIME_CLASS, json!({ RESOURCE: "1" })).await?)?, ["1"]);
        // Those that the configuration itself excludes are not refused.
        let named = json!({ "metadata": { "name": "excluded" } });
        namespaces.create(&PostParams::default(), &serde_json::from_value(named)?).await?;
        for namespace in ["excluded", "kube-system", peerpod_operator::NAMESPACE] {
            created(alone, namespace, peer(RUNTIME_CLASS, json!({}))).await?;
        }

        // While the operator fails to change the admission, the former webhook runs.
        let admission = json!({
            "mode": "Webhook", "excludedNamespaces": ["excluded"], "webhookLabels": { "label": "not valid" },
        });
        stage.configure("config", json!({ "limit": 2, "admission": admission })).await?;
        stage.until("config", "AdmissionReady", "InvalidAdmission").await?;
        until_refused(alone).await?;

        // Of a configuration without an admission, nothing is known of what adds the request.
        stage.configure("config", mode("None")).await?;
        stage.until("config", "AdmissionReady", "AdmissionElsewhere").await?;
        wait::eventually("the Pod is accepted", DEADLINE, async || {
            ensure!(vms(create(RUNTIME_CLASS, json!({})).await?)?.is_empty());
            Ok(())
        })
        .await?;
        namespaces.delete("excluded", &DeleteParams::default()).await?;
        stage.clear("config").await
    })
}

/// A policy of another program that gives Pods with the label the runtime class.
async fn another_sets_the_class(alone: &Alone<'_>, name: &str) -> Result<()> {
    let object = |kind: &str, spec| {
        let metadata = json!({ "name": name });
        json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec })
    };
    let pods = json!([{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"] }]);
    let class = format!("[JSONPatch{{op: 'add', path: '/spec/runtimeClassName', value: '{RUNTIME_CLASS}'}}]");
    let policy = json!({
        "matchConstraints": { "objectSelector": { "matchLabels": { BY_ANOTHER: name } }, "resourceRules": pods },
        "mutations": [{ "patchType": "JSONPatch", "jsonPatch": { "expression": class } }],
        "reinvocationPolicy": "Never",
    });
    let binding = object("MutatingAdmissionPolicyBinding", json!({ "policyName": name }));
    alone.testbed.apply(name, &[object("MutatingAdmissionPolicy", policy), binding]).await
}

#[test]
fn a_peer_pod_that_got_its_class_behind_the_policy_is_refused() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        stage.configure("config", mode("Policy")).await?;
        stage.until("config", "AdmissionReady", "PolicyInForce").await?;
        // The order of policies is not fixed.
        let names = ["a-class", "peer-pods", "zz-class"];
        for name in names {
            another_sets_the_class(alone, name).await?;
        }
        for name in names {
            let labelled = || pod(None, &json!({ BY_ANOTHER: name }), &json!({}));
            wait::eventually("the Pod gets a class", DEADLINE, async || {
                match created(alone, &alone.namespace, labelled()).await {
                    Ok(pod) => {
                        let spec = pod.spec.as_ref().context("a spec")?;
                        ensure!(spec.runtime_class_name.as_deref() == Some(RUNTIME_CLASS));
                        assert_eq!(vms(pod)?, ["1"], "no Pod gets a VM that does not count");
                    }
                    refused => refusal(refused).map(drop)?,
                }
                Ok(())
            })
            .await?;
        }
        for name in names {
            for kind in ["mutatingadmissionpolicybinding", "mutatingadmissionpolicy"] {
                Stage::kubectl(alone, &["delete", kind, name]).await?;
            }
        }
        stage.clear("config").await
    })
}
