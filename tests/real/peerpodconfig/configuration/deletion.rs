//! Nothing is left of a deleted configuration.

use std::{collections::BTreeMap, fmt::Debug, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use cluster::process::{Lifetime, Process};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Pod, Service, ServiceAccount},
};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use peerpod_operator::{
    NAMESPACE,
    api::v1alpha1::PeerPodConfig,
    peerpodconfig::{
        FINALIZER,
        resources::{self, CONFIG_LABEL, webhook::SERVICE_ACCOUNT},
    },
    webhook::certificates::rotation::{LEASE, SECRET},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use testbed::wait::{self, DEADLINE};

use super::{
    admission::mode,
    snapshot::{everything, until_as},
    stage::{RESOURCE, Stage, configuring},
};
use crate::support::{
    Alone, PROGRAM,
    refusal::{refuse_writes_to_nodes, take_writes_to_nodes},
};

/// The finalizer of another program.
const HOLD: &str = "example.com/hold";

#[test]
fn deletion_leaves_no_trace_on_nodes_or_in_the_cluster() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 2).await?;
        let before = everything(&stage.client).await?;
        for kind in ["/Node ", "/ServiceAccount ", "/ConfigMap "] {
            ensure!(before.keys().any(|name| name.starts_with(kind)), "no {kind}in {:?}", before.keys());
        }
        let account = json!({ "serviceAccountAnnotations": { "cloud.example.com/role": "adaptor" } });
        let spec = |mode: &str| json!({ "limit": 4, "adaptor": account, "admission": { "mode": mode } });
        stage.configure("config", spec("Webhook")).await?;
        // The Pods of fake nodes do nothing, so the test runs a webhook itself, with the webhook's rights.
        let dir = tempfile::tempdir()?;
        let webhook = webhook(alone, dir.path()).await?;
        stage.until("config", "AdmissionReady", "WebhookRunning").await?;
        let served = everything(&stage.client).await?;
        for shared in [format!("/Secret {NAMESPACE}/{SECRET}"), format!("/Lease {NAMESPACE}/{LEASE}")] {
            ensure!(served.keys().any(|name| name.ends_with(&shared)), "no {shared} in {:?}", served.keys());
        }
        // The change from one admission to the other is in progress, so both are there.
        stage.until("config", "AdaptorReady", "AdaptorRunning").await?;
        stage.shares(&[Some(2), Some(2)]).await?;
        stage.configure("config", spec("Policy")).await?;
        stage.until("config", "AdmissionReady", "PolicyStarting").await?;
        let during = everything(&stage.client).await?;
        let made = during.iter().filter(|(name, object)| before.get(*name) != Some(object)).count();
        // The DaemonSet, its Pods and revision, the webhook's objects, the policy's, the nodes and the ServiceAccount.
        ensure!(made > 12, "{made} objects differ");

        stage.delete("config").await?;
        until_as(&stage.client, &before).await?;
        // The webhook ran until now and could have made its objects again.
        webhook.stop(DEADLINE).await?.context("how it ended is not known")?;
        stage.leave().await
    })
}

/// A webhook, run as its Pods run it.
pub async fn webhook(alone: &Alone<'_>, dir: &Path) -> Result<Process> {
    let mut command = Command::new(PROGRAM);
    command.env("KUBECONFIG", alone.testbed.kubeconfig_of(SERVICE_ACCOUNT).await?).arg("webhook");
    command.args(["--addr", "--health-addr", "--metrics-addr"].map(|port| format!("{port}=127.0.0.1:0")));
    Process::start("webhook", &command, dir, Lifetime::Owned)
}

#[test]
fn an_invalid_configuration_can_be_deleted() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 2).await?;
        stage.configure("config", json!({ "limit": 4 })).await?;
        stage.shares(&[Some(2), Some(2)]).await?;
        let nonsense = json!({
            "limit": 4,
            "configMapName": "missing",
            "labelSelector": { "matchExpressions": [{ "key": "zone", "operator": "Almost" }] },
            "admission": { "mode": "Policy", "runtimeClassName": "missing" },
        });
        stage.configure("config", nonsense).await?;
        let message = stage.until("config", "CapacityAdvertised", "InvalidSelector").await?;
        assert!(message.contains("Almost"), "{message}");
        stage.until("config", "AdaptorReady", "InvalidSpec").await?;
        stage.shares(&[Some(2), Some(2)]).await?;
        stage.clear("config").await
    })
}

#[test]
fn an_invalid_selector_holds_no_nodes_of_another_configuration() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 2).await?;
        let expression = json!({ "key": "zone", "operator": "In" });
        let nonsense = json!({ "limit": 4, "labelSelector": { "matchExpressions": [expression] } });
        stage.configure("nonsense", nonsense).await?;
        stage.until("nonsense", "CapacityAdvertised", "InvalidSelector").await?;
        stage.configure("config", json!({ "limit": 4 })).await?;
        stage.shares(&[Some(2), Some(2)]).await?;
        let label = Patch::Merge(json!({ "metadata": { "labels": { "test": "other" } } }));
        let node = &stage.nodes.names()[0];
        stage.nodes.api().patch(node, &PatchParams::default(), &label).await?;
        stage.shares(&[None, Some(4)]).await?;
        stage.delete("config").await?;
        assert_eq!(stage.nodes.advertised(RESOURCE).await?, [None, None]);
        stage.clear("nonsense").await
    })
}

#[test]
fn a_deletion_waits_while_anothers_invalid_selector_keeps_its_nodes() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 2).await?;
        for (node, of) in stage.nodes.names().iter().zip(["config", "other"]) {
            let label = Patch::Merge(json!({ "metadata": { "labels": { (of): "yes" } } }));
            stage.nodes.api().patch(node, &PatchParams::default(), &label).await?;
        }
        let spec = |limit: u32, of: &str| json!({ "limit": limit, "nodeSelector": { (of): "yes" } });
        for (name, limit) in [("config", 2), ("other", 3)] {
            stage.configure(name, spec(limit, name)).await?;
            stage.until(name, "Ready", "AllReady").await?;
        }
        let mut nonsense = spec(3, "other");
        nonsense["labelSelector"] = json!({ "matchExpressions": [{ "key": "zone", "operator": "Almost" }] });
        stage.configure("other", nonsense).await?;
        stage.until("other", "CapacityAdvertised", "InvalidSelector").await?;
        stage.configs.delete("config", &DeleteParams::default()).await?;
        wait::eventually("it names the other one", DEADLINE, async || {
            let message = stage.until("config", "Ready", "Deleting").await?;
            ensure!(
                message.contains("1 nodes still advertise VMs: the selector of PeerPodConfig other"),
                "{message}"
            );
            Ok(())
        })
        .await?;
        stage.shares(&[Some(2), Some(3)]).await?;
        ensure!(stage.has_daemon_set("config").await?, "its VMs would lose their cloud-api-adaptor");
        stage.configure("other", spec(3, "other")).await?;
        wait::gone(&stage.configs, "config", DEADLINE).await?;
        stage.shares(&[None, Some(3)]).await?;
        stage.clear("other").await
    })
}

#[test]
fn an_object_with_copied_labels_stays() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        stage.configure("config", mode("Webhook")).await?;
        stage.until("config", "AdmissionReady", "WebhookStarting").await?;
        let expose = ["expose", "deployment", "config-webhook", "--name=theirs", "--port=80"];
        Stage::kubectl(alone, &expose).await?;
        let services: Api<Service> = Api::namespaced(stage.client.clone(), NAMESPACE);
        let theirs = services.get("theirs").await?;
        ensure!(theirs.labels().contains_key(CONFIG_LABEL), "no label was copied: {:?}", theirs.metadata);
        // A pass that saw the other program's Service makes the operator's again.
        services.delete("config-webhook", &DeleteParams::default()).await?;
        let is_new = |service: &Service| service.metadata.deletion_timestamp.is_none();
        wait::present(&services, "config-webhook", "it is there again", DEADLINE, is_new).await?;
        stage.look_again(alone).await?;
        stage.delete("config").await?;
        assert_eq!(services.get("theirs").await?.uid(), theirs.uid());
        services.delete("theirs", &DeleteParams::default()).await?;
        stage.leave().await
    })
}

#[test]
fn invalid_annotations_are_reported_and_block_no_other_configuration() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        let nowhere = json!({ "nowhere": "yes" });
        let annotated = |key: &str| json!({ "serviceAccountAnnotations": { key: "adaptor" } });
        let other = json!({ "limit": 1, "nodeSelector": nowhere, "adaptor": annotated("role arn") });
        stage.configure("other", other).await?;
        let message = stage.until("other", "AdaptorReady", "AnnotationsLeftOut").await?;
        assert!(message.contains("\"role arn\""), "{message}");
        let adaptor = annotated("cloud.example.com/role");
        stage.configure("config", json!({ "limit": 1, "adaptor": adaptor })).await?;
        stage.until("config", "Ready", "AllReady").await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(stage.client.clone(), NAMESPACE);
        let annotations = async || -> Result<BTreeMap<_, _>> {
            Ok(accounts.get(resources::SERVICE_ACCOUNT).await?.metadata.annotations.unwrap_or_default())
        };
        assert!(annotations().await?.contains_key("cloud.example.com/role"));
        stage.delete("config").await?;
        assert!(!annotations().await?.contains_key("cloud.example.com/role"));
        stage.clear("other").await
    })
}

#[test]
fn a_restored_finalizer_is_removed_and_those_of_others_stay() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        // A restored backup brings these finalizers: here, and in a namespace that the operator ignores.
        let finalizers = json!([FINALIZER, "example.com/other"]);
        let config =
            json!({ "metadata": { "name": "config", "finalizers": finalizers }, "spec": { "limit": 1 } });
        stage.make::<PeerPodConfig>(config.clone()).await?;
        let there: Api<PeerPodConfig> = Api::namespaced(stage.client.clone(), &alone.namespace);
        let mut elsewhere: PeerPodConfig = serde_json::from_value(config)?;
        elsewhere.metadata.namespace = Some(alone.namespace.clone());
        there.create(&PostParams::default(), &elsewhere).await?;
        for configs in [&stage.configs, &there] {
            configs.delete("config", &DeleteParams::default()).await?;
            let others = |config: &PeerPodConfig| config.finalizers() == ["example.com/other"];
            wait::present(configs, "config", "only the other finalizer is left", DEADLINE, others).await?;
            set_finalizers(configs, "config", json!(null)).await?;
            wait::gone(configs, "config", DEADLINE).await?;
        }
        stage.leave().await
    })
}

#[test]
fn nodes_are_reassigned_only_after_the_last_adaptor_pod_ended() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        stage.configure("older", json!({ "limit": 1 })).await?;
        stage.until("older", "Ready", "AllReady").await?;
        let pods: Api<Pod> = Api::namespaced(stage.client.clone(), NAMESPACE);
        let label = format!("{CONFIG_LABEL}=older");
        let pod = pods.list(&ListParams::default().labels(&label)).await?.items.pop().context("a Pod")?;
        // A Pod on a node that does not answer also ends late.
        set_finalizers(&pods, &pod.name_any(), json!([HOLD])).await?;
        stage.configs.delete("older", &DeleteParams::default()).await?;
        let message = stage.until("older", "Ready", "Deleting").await?;
        wait::eventually("it waits for its Pod", DEADLINE, async || {
            let message = stage.until("older", "Ready", "Deleting").await?;
            ensure!(message.contains("have not ended yet"), "{message}");
            Ok(())
        })
        .await
        .context(message)?;
        stage.configure("younger", json!({ "limit": 1 })).await?;
        let message = stage.until("younger", "Conflict", "AnotherAdaptor").await?;
        ensure!(message.contains("of PeerPodConfig older"), "{message}");
        ensure!(!stage.has_daemon_set("younger").await?, "two would run on a node");
        set_finalizers(&pods, &pod.name_any(), json!(null)).await?;
        wait::gone(&stage.configs, "older", DEADLINE).await?;
        stage.until("younger", "Ready", "AllReady").await?;
        stage.clear("younger").await
    })
}

#[test]
fn unwritable_nodes_delay_a_deletion_and_are_retried_ever_more_slowly() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 2).await?;
        stage.configure("config", json!({ "limit": 2 })).await?;
        stage.until("config", "Ready", "AllReady").await?;
        let names = stage.nodes.names().to_vec();
        refuse_writes_to_nodes(alone.testbed, "worker-", &names[0]).await?;
        stage.configs.delete("config", &DeleteParams::default()).await?;
        wait::eventually("it is told why it is still there", DEADLINE, async || {
            let message = stage.until("config", "Ready", "Deleting").await?;
            ensure!(message.contains("2 nodes still advertise VMs; writing to worker-"), "{message}");
            Ok(())
        })
        .await?;
        let before = stage.reconciles(alone).await?;
        tokio::time::sleep(Duration::from_secs(20)).await;
        let passes = stage.reconciles(alone).await? - before;
        ensure!(passes < 15.0, "{passes} passes in 20 s");
        take_writes_to_nodes(alone.testbed).await?;
        // By now the pause between attempts may be at its maximum, a minute.
        wait::gone(&stage.configs, "config", 2 * DEADLINE).await?;
        stage.shares(&[None, None]).await?;
        stage.leave().await
    })
}

#[test]
fn a_deletion_says_which_finalizer_of_another_program_it_waits_for() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        stage.configure("config", mode("Webhook")).await?;
        stage.until("config", "AdaptorReady", "AdaptorRunning").await?;
        let services: Api<Service> = Api::namespaced(stage.client.clone(), NAMESPACE);
        let daemon_sets: Api<DaemonSet> = Api::namespaced(stage.client.clone(), NAMESPACE);
        let (service, daemon_set) = (held(&services).await?, held(&daemon_sets).await?);
        stage.configs.delete("config", &DeleteParams::default()).await?;
        names_hold(&stage, &format!("the Service {service} has the finalizer {HOLD}")).await?;
        set_finalizers(&services, &service, json!(null)).await?;
        names_hold(&stage, &format!("the DaemonSet {daemon_set} has the finalizer {HOLD}")).await?;
        set_finalizers(&daemon_sets, &daemon_set, json!(null)).await?;
        wait::gone(&stage.configs, "config", DEADLINE).await?;
        stage.leave().await
    })
}

/// Gives the object of the configuration another program's finalizer. Returns its name.
async fn held<K>(api: &Api<K>) -> Result<String>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let own = ListParams::default().labels(&format!("{CONFIG_LABEL}=config"));
    let name = api.list(&own).await?.items.pop().context("the configuration has such an object")?.name_any();
    set_finalizers(api, &name, json!([HOLD])).await?;
    Ok(name)
}

/// Replaces the finalizers of an object; `null` removes all.
async fn set_finalizers<K>(api: &Api<K>, name: &str, finalizers: Value) -> Result<()>
where
    K: Clone + Debug + DeserializeOwned,
{
    let patch = Patch::Merge(json!({ "metadata": { "finalizers": finalizers } }));
    api.patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

async fn names_hold(stage: &Stage, text: &str) -> Result<()> {
    wait::eventually("the status names the finalizer", DEADLINE, async || {
        let message = stage.until("config", "Ready", "Deleting").await?;
        ensure!(message.contains(text), "{message}");
        Ok(())
    })
    .await
}
