//! What users and scripts see of a configuration.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::TryStreamExt as _;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    runtime::{WatchStreamExt as _, watcher},
};
use peerpod_operator::api::v1alpha1::PeerPodConfig;
use serde_json::{Value, json};
use testbed::wait::{self, DEADLINE};

use super::stage::{Stage, configuring, writes};

#[test]
fn kubectl_waits_for_it_and_shows_it() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 2).await?;
        stage.configure("config", json!({ "limit": 4 })).await?;
        Stage::kubectl(alone, &["wait", "--for=condition=Ready", "peerpodconfig/config", "--timeout=120s"])
            .await?;
        let table = Stage::kubectl(alone, &["get", "peerpodconfigs"]).await?;
        let mut rows = table.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
        assert_eq!(rows.next().context(table.clone())?, ["NAME", "READY", "REASON", "NODES", "VMS", "AGE"]);
        assert_eq!(rows.next().context(table.clone())?[..5], ["config", "True", "AllReady", "2", "4"]);

        stage.configure("config", json!({ "limit": 4, "configMapName": "missing" })).await?;
        Stage::kubectl(
            alone,
            &["wait", "--for=condition=Ready=False", "peerpodconfig/config", "--timeout=120s"],
        )
        .await?;
        let wait = ["wait", "--for=condition=Ready", "peerpodconfig/config", "--timeout=2s"];
        let refused = Stage::kubectl(alone, &wait).await.err().context("it is not ready")?;
        ensure!(format!("{refused:#}").contains("timed out"), "{refused:#}");
        let table = Stage::kubectl(alone, &["get", "peerpodconfigs"]).await?;
        ensure!(table.contains("SettingsMissing"), "{table}");
        stage.clear("config").await
    })
}

#[test]
fn ready_always_refers_to_the_observed_generation() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        // Every odd generation is fine, and every even one lacks its settings.
        let change = async |name: &str| {
            let spec = json!({ "spec": { "configMapName": name } });
            stage.configs.patch("config", &PatchParams::default(), &Patch::Merge(spec)).await
        };
        let first = stage.configure("config", json!({ "limit": 2, "configMapName": "peer-pods-cm" })).await?;
        assert_eq!(first.metadata.generation, Some(1));
        let watched = async {
            let watch = watcher(stage.configs.clone(), watcher::Config::default()).applied_objects();
            let claims = watch.map_err(anyhow::Error::from).try_for_each(async |config: PeerPodConfig| {
                let conditions = config.status.as_ref().map(|status| &status.conditions);
                for ready in conditions.into_iter().flatten().filter(|it| it.type_ == "Ready") {
                    let odd = ready.observed_generation.is_some_and(|generation| generation % 2 == 1);
                    ensure!((ready.status == "True") <= odd, "{config:#?}");
                    ensure!(ready.observed_generation <= config.metadata.generation, "{config:#?}");
                }
                Ok(())
            });
            claims.await.context("a wrong claim")
        };
        let changes = async {
            for _ in 0..5 {
                stage.until("config", "Ready", "AllReady").await?;
                change("missing").await?;
                stage.until("config", "Ready", "SettingsMissing").await?;
                change("peer-pods-cm").await?;
            }
            // The changes come faster than the operator looks.
            for _ in 0..10 {
                change("missing").await?;
                change("peer-pods-cm").await?;
            }
            wait::present(&stage.configs, "config", "the last one is looked at", DEADLINE, |config| {
                let status = config.status.as_ref();
                let ready = status.and_then(|it| it.conditions.iter().find(|it| it.type_ == "Ready"));
                ready.is_some_and(|ready| {
                    ready.status == "True" && ready.observed_generation == config.metadata.generation
                })
            })
            .await
        };
        tokio::select! {
            outcome = changes => outcome.map(drop)?,
            outcome = watched => outcome?,
        }
        stage.clear("config").await
    })
}

#[test]
fn a_restored_stale_condition_is_removed_once() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        stage.configure("config", json!({ "limit": 2 })).await?;
        stage.until("config", "Ready", "AllReady").await?;
        let mut status = json!(stage.configs.get("config").await?.status);
        status["conditions"].as_array_mut().context("conditions")?.push(json!({
            "type": "Conflict", "status": "True", "reason": "AnotherAdaptor", "message": "of then",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }));
        let restored = Patch::Merge(json!({ "status": status }));
        let params = PatchParams { field_manager: Some("restore".to_owned()), ..PatchParams::default() };
        stage.configs.patch_status("config", &params, &restored).await?;
        stage.until_gone("config", "Conflict").await?;
        // That look writes its findings before the next one ends.
        stage.look_again(alone).await?;
        let before = writes(alone)?.len();
        for _ in 0..3 {
            stage.look_again(alone).await?;
        }
        let written: Vec<_> = writes(alone)?.split_off(before);
        ensure!(written.is_empty(), "{written:#?}");
        stage.until("config", "Ready", "AllReady").await?;
        stage.clear("config").await
    })
}

#[test]
fn a_written_status_triggers_a_second_reconcile() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        let spec = json!({ "limit": 2, "admission": { "mode": "None", "runtimeClassName": "of-this-test" } });
        stage.configure("config", spec).await?;
        stage.until("config", "AdmissionReady", "RuntimeClassMissing").await?;
        stage.until("config", "AdaptorReady", "AdaptorRunning").await?;
        let mut before = 0.0;
        wait::eventually("nothing has it looked at", DEADLINE, async || {
            before = stage.reconciles(alone).await?;
            // Longer than the time until the second look after a written status.
            tokio::time::sleep(Duration::from_secs(8)).await;
            ensure!(stage.reconciles(alone).await? <= before);
            Ok(())
        })
        .await?;
        let classes: Api<RuntimeClass> = Api::all(stage.client.clone());
        let class = json!({ "metadata": { "name": "of-this-test" }, "handler": "any" });
        classes.create(&PostParams::default(), &serde_json::from_value(class)?).await?;
        stage.until("config", "Ready", "AllReady").await?;
        wait::eventually("it is looked at twice", DEADLINE, async || {
            let looks = stage.reconciles(alone).await?;
            ensure!(looks >= before + 2.0, "{looks} after {before}");
            Ok(())
        })
        .await?;
        classes.delete("of-this-test", &DeleteParams::default()).await?;
        stage.clear("config").await
    })
}

#[test]
fn a_configuration_without_spec_is_reconciled_and_delays_no_other() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        stage.make::<PeerPodConfig>(json!({ "metadata": { "name": "bare" } })).await?;
        let stored = Stage::kubectl(alone, &["get", "peerpodconfig", "bare", "--output=json"]).await?;
        let stored: Value = serde_json::from_str(&stored)?;
        ensure!(stored.get("spec").is_none(), "{stored}");
        let message = stage.until("bare", "CapacityAdvertised", "NoLimit").await?;
        assert!(message.contains("spec.limit is not set"), "{message}");
        stage.configure("config", json!({ "limit": 2 })).await?;
        stage.until("config", "Ready", "AllReady").await?;
        stage.delete("bare").await?;
        stage.clear("config").await
    })
}

#[test]
fn a_refusal_of_the_api_server_is_quoted_and_the_rest_is_applied() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        let adaptor = json!({ "tolerations": [{ "operator": "Almost" }] });
        stage.configure("config", json!({ "limit": 2, "adaptor": adaptor })).await?;
        let message = stage.until("config", "AdaptorReady", "InvalidSpec").await?;
        ensure!(message.contains("tolerations[0].operator"), "{message}");
        stage.until("config", "Ready", "InvalidSpec").await?;
        stage.until("config", "AdmissionReady", "AdmissionElsewhere").await?;
        // A peer pod would find no cloud-api-adaptor there.
        let message = stage.until("config", "CapacityAdvertised", "NoAdaptor").await?;
        ensure!(message.ends_with("the operator has not created the DaemonSet yet"), "{message}");
        stage.look_again(alone).await?;
        stage.shares(&[None]).await?;
        stage.configure("config", json!({ "limit": 2 })).await?;
        stage.until("config", "Ready", "AllReady").await?;
        stage.shares(&[Some(2)]).await?;
        // The running DaemonSet stays.
        stage.configure("config", json!({ "limit": 3, "adaptor": adaptor })).await?;
        stage.until("config", "Ready", "InvalidSpec").await?;
        stage.shares(&[Some(3)]).await?;
        ensure!(stage.daemon_set("config").await?.status.is_some_and(|status| status.number_ready == 1));
        // The operator does not create it again.
        stage.delete_daemon_set("config").await?;
        stage.shares(&[None]).await?;
        stage.until("config", "CapacityAdvertised", "NoAdaptor").await?;
        stage.clear("config").await
    })
}

/// The API server's answer to a limit.
async fn limit(stage: &Stage, limit: &Value) -> Result<()> {
    stage.configure("config", json!({ "limit": limit })).await.map(drop)
}

#[test]
fn the_api_server_validates_limits_and_the_status_explains_them() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 3).await?;
        for bad in [
            json!(-1),
            json!("-1"),
            json!("ten"),
            json!(""),
            json!("1e3"),
            json!(" 7"),
            json!(1_000_001),
            json!("1000001"),
            json!("99999999999999999999"),
        ] {
            let refused = limit(&stage, &bad).await.err().with_context(|| format!("{bad} is accepted"))?;
            let text = format!("{refused:#}");
            ensure!(text.contains("limit must be a whole number from 0 to 1000000"), "{bad}: {text}");
        }
        for bad in [json!(1.5), json!(true), json!([1])] {
            let refused = limit(&stage, &bad).await.err().with_context(|| format!("{bad} is accepted"))?;
            ensure!(format!("{refused:#}").contains("spec.limit"), "{bad}: {refused:#}");
        }
        for (good, reason, shares) in [
            (json!("0"), "LimitIsZero", [None, None, None]),
            (json!(2), "FewerThanNodes", [None, Some(1), Some(1)]),
            (json!("10"), "Advertised", [Some(3), Some(3), Some(4)]),
            (json!(1_000_000), "Advertised", [Some(333_333), Some(333_333), Some(333_334)]),
            (json!(0), "LimitIsZero", [None, None, None]),
        ] {
            limit(&stage, &good).await?;
            stage.until("config", "CapacityAdvertised", reason).await.with_context(|| good.to_string())?;
            stage.shares(&shares).await.with_context(|| good.to_string())?;
        }
        stage.clear("config").await
    })
}
