//! Start, readiness, metrics, logs and end of the program.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cluster::Component;
use kube::api::{DeleteParams, Patch, PatchParams};
use peerpod_operator::install;
use serde_json::{Value, json};
use testbed::{
    Operator, OperatorOptions, Settings,
    wait::{self, DEADLINE},
};

use crate::support::{PROGRAM, alone, alone_with};

#[test]
fn the_operator_is_ready_when_it_has_seen_every_peerpod_and_not_before() -> Result<()> {
    let start =
        async |testbed: &testbed::Testbed, dir: &std::path::Path, libvirtd: &peers::libvirt::Libvirtd| {
            let settings = Settings::libvirt(&libvirtd.host().uri().to_string());
            let options = OperatorOptions::new(PROGRAM, dir.join("operator"), settings);
            let mut operator = Operator::spawn(testbed, &options).await?;
            operator.kill().await?;
            testbed.cluster().pause(Component::ApiServer)?;
            operator.start_again()?;
            let unready = wait::eventually("it lives and waits for the PeerPods", DEADLINE, async || {
                ensure!(operator.health("/healthz").await?.0 == 200);
                let (status, text) = operator.health("/readyz").await?;
                ensure!(status == 503 && text.contains("peerpods"), "{status} {text}");
                Ok(())
            })
            .await;
            testbed.cluster().resume(Component::ApiServer)?;
            unready?;
            operator.ready().await?;
            Ok(operator)
        };
    alone_with(start, async |alone| alone.scene().operator_catches_up().await)
}

#[test]
fn machines_are_reaped_also_where_peerpodconfigs_do_not_exist() -> Result<()> {
    const CRD: &str = "peerpodconfigs.confidentialcontainers.org";
    let start =
        async |testbed: &testbed::Testbed, dir: &std::path::Path, libvirtd: &peers::libvirt::Libvirtd| {
            let allowed =
                json!({ "metadata": { "annotations": { install::removal::ALLOW_ANNOTATION: "true" } } });
            testbed.crds().patch(CRD, &PatchParams::default(), &Patch::Merge(allowed)).await?;
            testbed.crds().delete(CRD, &DeleteParams::default()).await?;
            wait::gone(&testbed.crds(), CRD, DEADLINE).await?;
            let settings = Settings::libvirt(&libvirtd.host().uri().to_string());
            let mut options = OperatorOptions::new(PROGRAM, dir.join("operator"), settings);
            options.arguments.push("--controllers=peerpod,peerpodconfig".to_owned());
            Operator::spawn(testbed, &options).await
        };
    alone_with(start, async |alone| {
        let scene = alone.scene();
        let vm = scene.pod_with_vm("web").await?;
        scene.pods.delete("web").await?;
        scene.reaped(&vm).await?;
        // The readiness probe names the missing definition and so stops a roll-out.
        let (status, text) = alone.operator.health("/readyz").await?;
        ensure!(status == 503 && text.contains("peerpodconfigs"), "{status}: {text}");
        alone.testbed.install_objects().await?;
        // The operator looks for the definition with growing pauses.
        wait::eventually("it is ready", 2 * DEADLINE, async || {
            let (status, text) = alone.operator.health("/readyz").await?;
            ensure!(status == 200, "{status}: {text}");
            Ok(())
        })
        .await
    })
}

#[test]
fn metrics_are_prometheus_text_with_a_help_and_a_type_for_each() -> Result<()> {
    alone(async |alone| {
        alone.scene().operator_catches_up().await?;
        // The operator counts a look when it has ended, which is after the API server has answered.
        wait::eventually("the deletion and the look are counted", DEADLINE, async || {
            let metrics = alone.operator.metrics().await?;
            let labels = [("provider", "libvirt"), ("outcome", "absent")];
            let released = metrics.sum("peerpod_operator_deletions_total", &labels);
            ensure!((released - 1.0).abs() < 0.5, "{released}");
            let text = metrics.text();
            for (name, kind) in [
                ("peerpod_operator_reconciles", "counter"),
                ("peerpod_operator_provider_calls", "counter"),
                ("peerpod_operator_deletion_latency_seconds", "histogram"),
                ("peerpod_operator_peerpods", "gauge"),
            ] {
                ensure!(text.contains(&format!("# TYPE {name} {kind}\n")), "{name} in:\n{text}");
                ensure!(text.contains(&format!("# HELP {name} ")), "{name} in:\n{text}");
            }
            ensure!(text.ends_with("# EOF\n"), "{text}");
            Ok(())
        })
        .await
    })
}

#[test]
fn every_log_line_is_json_that_names_the_peerpod_it_is_about() -> Result<()> {
    alone(async |alone| {
        let scene = alone.scene();
        let vm = scene.pod_with_vm("web").await?;
        scene.pods.delete("web").await?;
        scene.released(&vm.name()).await?;
        let lines = wait::eventually("the release is logged", DEADLINE, async || {
            let log = alone.operator.log()?;
            ensure!(log.contains("removed the finalizer"));
            Ok(log)
        })
        .await?;
        let lines: Vec<Value> = lines
            .lines()
            .map(|line| serde_json::from_str(line).with_context(|| format!("{line:?} is no JSON")))
            .collect::<Result<_>>()?;
        let released =
            lines.iter().find(|line| line["message"] == "removed the finalizer").context("it is logged")?;
        let span = &released["span"];
        assert_eq!(span["peerpod"], vm.name(), "{released}");
        assert_eq!(span["namespace"], scene.namespace, "{released}");
        assert_eq!(span["instance"], vm.machine.domain.uuid.to_string(), "{released}");
        Ok(())
    })
}

#[test]
fn the_operator_ends_cleanly_when_stopped() -> Result<()> {
    alone(async |alone| {
        alone.scene().operator_catches_up().await?;
        let told = Instant::now();
        let status = alone.operator.stop().await?;
        ensure!(status.success(), "it ended with {status}");
        ensure!(told.elapsed() < Duration::from_secs(15), "it took {:?}", told.elapsed());
        Ok(())
    })
}

#[test]
fn an_operator_whose_cloud_hangs_ends_in_time_and_finishes_later() -> Result<()> {
    alone(async |alone| {
        let vm = alone.scene().pod_with_vm("web").await?;
        alone.libvirtd.pause()?;
        alone.scene().pods.delete("web").await?;
        alone.operator.calls().await?;
        let told = Instant::now();
        let status = alone.operator.stop().await?;
        ensure!(status.success(), "it ended with {status}");
        ensure!(told.elapsed() < Duration::from_secs(28), "it took {:?}", told.elapsed());
        alone.libvirtd.resume()?;
        alone.operator.start_again()?;
        alone.scene().reaped(&vm).await
    })
}

#[test]
fn the_operator_continues_after_an_api_server_restart() -> Result<()> {
    alone(async |alone| {
        let vm = alone.scene().pod_with_vm("web").await?;
        alone.testbed.cluster_mut().restart(Component::ApiServer).await?;
        alone.scene().pods.delete("web").await?;
        alone.scene().reaped(&vm).await?;
        ensure!(alone.operator.process().is_running());
        Ok(())
    })
}
