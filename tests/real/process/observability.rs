//! What the operator reports about its work: metrics, logs, conditions and events.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use kube::{
    ResourceExt as _,
    api::{Patch, PatchParams},
};
use peerpod_operator::{
    api::v1alpha1::RELEASE_ANNOTATION,
    install::monitoring::{Alert, Dashboard, alerts},
    webhook,
};
use serde_json::{Value, json};
use testbed::{
    Family, Metrics, Operator, OperatorOptions, Settings, docs,
    wait::{self, DEADLINE},
};

use crate::{
    peerpodconfig::configuration::stage::{Stage, configuring},
    support::{Alone, PROGRAM, alone, alone_with, condition},
};

/// The cells of the first table after a heading of a reference page, without the table's head and without code marks.
fn table(page: &str, heading: &str) -> Result<Vec<Vec<String>>> {
    let pages = docs::pages()?;
    let page = pages.get(&PathBuf::from(format!("docs/src/reference/{page}.md"))).context("no such page")?;
    let (_, rest) = page.split_once(&format!("{heading}\n")).context("no such heading")?;
    let table =
        rest.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cells = |line: &str| {
        let line = line.trim_matches('|');
        line.split(" | ").map(|cell| cell.trim_matches([' ', '|']).replace('`', "")).collect()
    };
    Ok(table.skip(2).map(cells).collect())
}

/// One column of such a table.
fn column(page: &str, index: usize) -> Result<BTreeSet<String>> {
    table(page, "")?.into_iter().map(|mut row| Ok(row.swap_remove(index))).collect()
}

/// The metrics that are documented under this heading.
pub fn documented_metrics(heading: &str) -> Result<BTreeSet<Family>> {
    let family = |row: Vec<String>| {
        let [name, kind, labels, _] = <[String; 4]>::try_from(row).ok().context("four columns")?;
        let labels = labels.split(", ").filter(|label| !label.is_empty()).map(str::to_owned).collect();
        Ok(Family { name, kind, labels })
    };
    table("metrics", heading)?.into_iter().map(family).collect()
}

/// The operator's log lines of these levels about a PeerPod.
fn logged(operator: &Operator, peerpod: &str, levels: &[&str]) -> Result<Vec<Value>> {
    let log = operator.log()?;
    let lines = log.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    let ours = |line: &Value| {
        line["span"]["peerpod"] == peerpod && levels.iter().any(|level| line["level"] == *level)
    };
    Ok(lines.into_iter().filter(ours).collect())
}

async fn looks(operator: &Operator, decision: &str) -> Result<f64> {
    let metrics = operator.metrics().await?;
    Ok(metrics.sum("peerpod_operator_decisions_total", &[("decision", decision)]))
}

/// Gives the operator a reason to look at a PeerPod.
async fn nudge(alone: &Alone<'_>, peerpod: &str, value: &str) -> Result<()> {
    let patch = Patch::Merge(json!({ "metadata": { "annotations": { RELEASE_ANNOTATION: value } } }));
    alone.scene().peerpods.patch(peerpod, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Nudges the operator, and waits until it has made this decision once more.
async fn look_again(alone: &Alone<'_>, peerpod: &str, decision: &str, value: &str) -> Result<()> {
    let before = looks(&alone.operator, decision).await?;
    nudge(alone, peerpod, value).await?;
    wait::eventually("it was looked at again", DEADLINE, async || {
        ensure!(looks(&alone.operator, decision).await? > before);
        Ok(())
    })
    .await
}

/// Events about a PeerPod, by their reason: type, and how often.
async fn events(alone: &Alone<'_>, peerpod: &str) -> Result<BTreeMap<String, (String, i64)>> {
    let selector = format!("--field-selector=involvedObject.name={peerpod}");
    let events = alone.scene().kubectl(&["get", "events", &selector, "--output=json"]).await?;
    let events: Value = serde_json::from_str(&events)?;
    let mut counted = BTreeMap::new();
    for event in events["items"].as_array().context("a list")? {
        let [reason, type_] =
            ["reason", "type"].map(|key| event[key].as_str().unwrap_or_default().to_owned());
        let times = event["series"]["count"].as_i64().unwrap_or(1);
        counted.entry(reason).or_insert((type_, 0)).1 += times;
    }
    Ok(counted)
}

/// Runs a test with an operator that calls deletions slow after two seconds.
fn impatient(test: impl AsyncFnOnce(&mut Alone) -> Result<()>) -> Result<()> {
    let start =
        async |testbed: &testbed::Testbed, dir: &std::path::Path, libvirtd: &peers::libvirt::Libvirtd| {
            let settings = Settings::libvirt(&libvirtd.host().uri().to_string());
            let mut options = OperatorOptions::new(PROGRAM, dir.join("operator"), settings);
            options.arguments = vec!["--leader-elect=false".to_owned(), "--slow-after=2s".to_owned()];
            Operator::start(testbed, &options).await
        };
    alone_with(start, test)
}

/// The sum of all series of a gauge or counter.
fn sum(metrics: &Metrics, name: &str) -> f64 {
    metrics.sum(&format!("peerpod_operator_{name}"), &[])
}

#[test]
fn a_deletion_that_hangs_is_reported_once_its_call_failed_and_again_and_again() -> Result<()> {
    impatient(async |alone| {
        alone.scene().operator_catches_up().await?;
        let vm = alone.scene().pod_with_vm("web").await?;
        alone.libvirtd.pause()?;
        alone.scene().pods.delete("web").await?;
        let condition = alone.scene().held(&vm.name(), "DeletionSlow").await?;
        assert_eq!(condition.type_, "Reconciling");
        assert!(condition.message.contains("(transient error)"), "{}", condition.message);

        let metrics = alone.operator.metrics().await?;
        let deleted = alone.scene().peerpods.get(&vm.name()).await?.metadata.deletion_timestamp;
        let deleted = deleted.context("it is being deleted")?.0;
        let oldest = sum(&metrics, "oldest_pending_deletion_timestamp_seconds");
        for (name, value) in [("pending_deletions", 1.0), ("peerpods_held", 1.0)] {
            assert!(
                (sum(&metrics, name) - value).abs() < 0.1,
                "{name} is not {value} in:\n{}",
                metrics.text()
            );
        }
        assert_eq!(format!("{oldest:.0}"), deleted.as_second().to_string());

        // The operator reports the next failure again, in the condition and in an event. The log already has it.
        let first = condition.message;
        wait::present(&alone.scene().peerpods, &vm.name(), "it is told again", DEADLINE, |peerpod| {
            crate::support::condition(peerpod)
                .is_some_and(|it| it.reason == "DeletionSlow" && it.message != first)
        })
        .await?;
        wait::eventually("there are two events", DEADLINE, async || {
            let events = events(alone, &vm.name()).await?;
            let (type_, count) = events.get("DeletionSlow").context("there is none")?;
            ensure!(type_ == "Warning" && *count >= 2, "{events:?}");
            Ok(())
        })
        .await?;
        alone.libvirtd.resume()?;
        alone.scene().reaped(&vm).await?;
        let warnings = logged(&alone.operator, &vm.name(), &["WARN"])?;
        let slow: Vec<_> = warnings.iter().filter(|line| line["reason"] == "DeletionSlow").collect();
        assert_eq!(slow.len(), 1, "{warnings:?}");
        wait::eventually("nothing is pending", DEADLINE, async || {
            let metrics = alone.operator.metrics().await?;
            for name in ["pending_deletions", "peerpods_queued", "peerpods_held", "provider_calls_in_flight"]
            {
                ensure!(sum(&metrics, name) < 0.5, "{name} in:\n{}", metrics.text());
            }
            ensure!(
                !metrics.text().contains("\npeerpod_operator_oldest_pending_deletion_timestamp_seconds{")
            );
            Ok(())
        })
        .await
    })
}

#[test]
fn a_failing_deletion_reports_its_attempts_in_few_status_writes() -> Result<()> {
    impatient(async |alone| {
        alone.scene().operator_catches_up().await?;
        let vm = alone.scene().pod_with_vm("web").await?;
        alone.libvirtd.stop().await?;
        let started = Timestamp::now();
        alone.scene().pods.delete("web").await?;
        let slow = wait::present(&alone.scene().peerpods, &vm.name(), "it is slow", DEADLINE, |peerpod| {
            condition(peerpod).is_some_and(|it| {
                it.reason == "DeletionSlow" && it.message.contains(" attempts, the next one at ")
            })
        })
        .await?;
        let message = condition(&slow).context("it was there")?.message;
        assert!(message.contains(" (transient error): "), "{message}");
        for value in 0..20 {
            look_again(alone, &vm.name(), "retry", &value.to_string()).await?;
        }
        let seconds = Timestamp::now().duration_since(started).as_secs();
        let writes = alone.scene().writes()?;
        let told = writes.iter().filter(|write| write.resource == "peerpods/status").count();
        // One write says that the cloud is unavailable, one that the deletion is slow. The others repeat that every two seconds.
        ensure!(i64::try_from(told)? <= 2 + seconds / 2, "{told} writes of the status in {seconds} s");
        let warnings = logged(&alone.operator, &vm.name(), &["WARN"])?;
        let classes =
            warnings.iter().filter(|line| line["class"] == "transient" && line["decision"] == "retry");
        let classes = classes.count();
        // One warning says that the call fails, and one that the deletion is slow.
        assert!(warnings.len() == 2 && classes == 1, "{warnings:?}");
        // The test driver forgets its domains, so this one is absent now. Without a nudge the operator would look again in a few minutes.
        alone.libvirtd.restart().await?;
        nudge(alone, &vm.name(), "last").await?;
        alone.scene().released(&vm.name()).await
    })
}

#[test]
fn a_decision_is_logged_once_however_often_it_is_taken() -> Result<()> {
    alone(async |alone| {
        let scene = alone.scene();
        let pod = scene.pods.run("web").await?;
        let peerpod = scene.caa.record(&pod, "libvirt", "").await?;
        let name = peerpod.name_any();
        scene.pods.delete("web").await?;
        scene.held(&name, "InvalidInstanceID").await?;
        for value in ["one", "two", "three"] {
            look_again(alone, &name, "refuse", value).await?;
        }
        let lines = logged(&alone.operator, &name, &["INFO", "WARN"])?;
        ensure!(lines.len() == 1, "{lines:?}");
        let line = &lines[0];
        for (key, value) in [("decision", "refuse"), ("reason", "InvalidInstanceID"), ("level", "WARN")] {
            assert_eq!(line[key], value, "{line}");
        }
        Ok(())
    })
}

#[test]
fn a_running_operator_serves_exactly_the_documented_metrics() -> Result<()> {
    configuring(async |alone| {
        // The capacity of a configuration.
        let stage = Stage::set(alone, 1).await?;
        stage.configure("config", json!({ "limit": 1 })).await?;
        let scene = alone.scene();
        // The operator makes one deletion. Another one stays pending.
        scene.operator_catches_up().await?;
        let pod = scene.pods.run("web").await?;
        let refused = scene.caa.record(&pod, "nonsense", "i-1").await?;
        scene.pods.delete("web").await?;
        scene.held(&refused.name_any(), "UnknownProvider").await?;
        let documented = documented_metrics("## Operator")?;
        let metrics = wait::eventually("all that is documented is served", DEADLINE, async || {
            let metrics = alone.operator.metrics().await?;
            let served = metrics.families()?;
            let missing: Vec<_> = documented.difference(&served).collect();
            ensure!(missing.is_empty(), "{missing:?} are missing in:\n{}", metrics.text());
            Ok(metrics)
        })
        .await?;
        let served = metrics.families()?;
        assert_eq!(served, documented, "\n{}", metrics.text());
        finds_what_it_looks_for(&served);

        for (label, family, expected) in [
            ("reason", "peerpods_held", column("peerpod-conditions", 1)?),
            ("decision", "decisions_total", column("decisions", 0)?),
            ("class", "provider_errors_total", column("error-classes", 0)?),
        ] {
            let mut served = metrics.label_values(&format!("peerpod_operator_{family}"), label);
            // An event without a condition, and what stays beside a condition and holds nothing: they have no gauge.
            if family == "peerpods_held" {
                served.extend(["Abandoned", "PodIsOlder"]);
            }
            assert_eq!(served, expected.iter().map(String::as_str).collect(), "{family}");
        }
        stage.clear("config").await
    })
}

/// Every metric of the alerts and panels is one that an operator or the webhook serves.
fn finds_what_it_looks_for(served: &BTreeSet<Family>) {
    let of_webhook = webhook::metrics::DESCRIPTIONS.map(|family| family.name);
    let is_served =
        |name: &str| of_webhook.contains(&name) || served.iter().any(|family| family.name == name);
    for Alert { name, expression, .. } in alerts() {
        let words = expression.split(|it: char| !(it.is_ascii_alphanumeric() || it == '_'));
        for metric in words.filter(|word| word.starts_with("peerpod_operator_")) {
            assert!(is_served(metric), "{name} looks for {metric}");
        }
    }
    for (title, panels) in Dashboard::new().rows {
        for panel in panels {
            assert!(is_served(panel.family.name), "{title} shows {}", panel.family.name);
        }
    }
}

#[test]
fn no_object_adds_values_to_a_label() -> Result<()> {
    alone(async |alone| {
        let scene = alone.scene();
        scene.operator_catches_up().await?;
        let pod = scene.pods.run("web").await?;
        for (cloud, instance) in [("cloud-1", "i-1"), ("CLOUD-2", "x\"}"), ("Libvirt", "i-1"), ("", "i-2")] {
            scene.caa.record(&pod, cloud, instance).await?;
        }
        scene.pods.delete("web").await?;
        wait::eventually("all are refused", DEADLINE, async || {
            let metrics = alone.operator.metrics().await?;
            let held = metrics.sum("peerpod_operator_peerpods_held", &[("reason", "UnknownProvider")]);
            ensure!(held > 3.5, "{held}");
            Ok(())
        })
        .await?;
        let metrics = alone.operator.metrics().await?;
        assert_eq!(metrics.label_values("peerpod_operator_", "provider"), ["libvirt", "unknown"].into());
        for unwanted in ["cloud-1", "CLOUD-2", "i-1", &scene.namespace] {
            assert!(!metrics.text().contains(unwanted), "{unwanted} is in:\n{}", metrics.text());
        }
        Ok(())
    })
}
