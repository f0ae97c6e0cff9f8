//! Several candidates for one lease: exactly one acts at a time, whatever happens to it.

mod shared;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cluster::Component;
use jiff::Timestamp;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use operator_kit::lease::{DURATION, RELEASE_DELAY, RENEW_DEADLINE, RETRY_PERIOD};
use peerpod_operator::{NAMESPACE, install, names::LEASE};
use serde_json::json;
use tempfile::TempDir;
use testbed::{
    Operator, OperatorOptions, Request, Settings, Vm,
    wait::{self, DEADLINE},
};
use tokio::time::sleep;

use crate::support::{Alone, PROGRAM, alone_with};

/// Runs a test with one operator that takes part in the election, with further arguments if any are given.
pub fn elected(arguments: &[String], test: impl AsyncFnOnce(&mut Alone) -> Result<()>) -> Result<()> {
    let start =
        async |testbed: &testbed::Testbed, dir: &std::path::Path, libvirtd: &peers::libvirt::Libvirtd| {
            let settings = Settings::libvirt(&libvirtd.host().uri().to_string());
            let mut options = OperatorOptions::new(PROGRAM, dir.join("operator"), settings);
            options.arguments.extend_from_slice(arguments);
            Operator::start(testbed, &options).await
        };
    alone_with(start, test)
}

/// A second operator beside the first, which leads. Also the second one's folder.
pub async fn standby(alone: &Alone<'_>) -> Result<(Operator, TempDir)> {
    until_leads(&alone.operator).await?;
    let dir = tempfile::tempdir()?;
    let settings = Settings::libvirt(&alone.libvirtd.host().uri().to_string());
    let options = OperatorOptions::new(PROGRAM, dir.path().join("operator"), settings);
    let operator = Operator::start(alone.testbed, &options).await?;
    wait::eventually("the second operator has seen the first one's lease", DEADLINE, async || {
        ensure!(operator.log()?.contains("standing by"));
        Ok(())
    })
    .await?;
    Ok((operator, dir))
}

async fn leads(operator: &Operator) -> Result<bool> {
    Ok(operator.metrics().await?.sum("peerpod_operator_leader", &[]) > 0.5)
}

/// Waits until this operator leads.
pub async fn until_leads(operator: &Operator) -> Result<()> {
    wait::eventually("the operator leads", DEADLINE, async || {
        ensure!(leads(operator).await?);
        Ok(())
    })
    .await
}

/// Waits until this operator no longer leads.
pub async fn until_stands_by(operator: &Operator) -> Result<()> {
    wait::eventually("the operator leads no more", DEADLINE, async || {
        ensure!(!leads(operator).await?);
        Ok(())
    })
    .await
}

/// How many calls to the cloud have been answered.
async fn answered_calls(operator: &Operator) -> Result<f64> {
    let metrics = operator.metrics().await?;
    let sum = |labels: &[(&str, &str)]| metrics.sum("peerpod_operator_provider_calls_total", labels);
    Ok(sum(&[]) - sum(&[("result", "abandoned")]))
}

async fn deletions(operator: &Operator) -> Result<f64> {
    Ok(operator.metrics().await?.sum("peerpod_operator_deletions_total", &[]))
}

/// The operator counts a deletion once the API server has answered, a moment after the PeerPod is gone.
async fn until_reaped_more_than(before: f64, operator: &Operator) -> Result<()> {
    wait::eventually("it was this operator that reaped", DEADLINE, async || {
        ensure!(deletions(operator).await? > before + 0.5);
        Ok(())
    })
    .await
}

/// Fails if the next operator leads so late that the lease may have expired instead of having been released.
pub fn ensure_given(took: Duration) -> Result<()> {
    // The leader renewed the lease that long before at the most.
    let expires = DURATION.checked_sub(RETRY_PERIOD).context("it is longer")?;
    ensure!(took < expires, "it took {took:?}, as if the lease had to expire");
    Ok(())
}

/// The operators' requests for leases since then, without watches that still run.
fn lease_requests(alone: &Alone<'_>, since: Timestamp) -> Result<Vec<Request>> {
    let mut requests = alone.testbed.audit()?.of_operator()?;
    requests.retain(|request| request.resource == "leases" && request.time >= since);
    Ok(requests)
}

/// A machine whose Pod has ended. The operator reaps it at once when its PeerPod is deleted.
async fn ended(alone: &Alone<'_>, name: &str) -> Result<Vm> {
    let scene = alone.scene();
    let vm = scene.pod_with_vm(name).await?;
    let pods: Api<Pod> = Api::namespaced(alone.testbed.client(), &scene.namespace);
    let failed = Patch::Merge(json!({ "status": { "phase": "Failed" } }));
    pods.patch_status(name, &PatchParams::default(), &failed).await?;
    Ok(vm)
}

async fn delete(alone: &Alone<'_>, vm: &Vm) -> Result<()> {
    alone.scene().peerpods.delete(&vm.name(), &DeleteParams::background()).await?;
    Ok(())
}

#[test]
fn one_of_two_acts_and_their_election_is_cheap() -> Result<()> {
    elected(&[], async |alone| {
        let (second, _dir) = standby(alone).await?;
        alone.scene().operator_catches_up().await?;
        ensure!(second.health("/readyz").await?.0 == 200, "a standby is ready");
        ensure!(!leads(&second).await? && answered_calls(&second).await? < 0.5, "a standby does nothing");
        until_reaped_more_than(0.0, &alone.operator).await?;

        let settled = Timestamp::now();
        sleep(5 * RETRY_PERIOD).await;
        let requests = lease_requests(alone, settled)?;
        ensure!(requests.iter().all(|request| request.code < 400), "{requests:?}");
        ensure!((1..=6).contains(&requests.len()), "{} in five renewal periods", requests.len());
        Ok(())
    })
}

#[test]
fn a_leader_that_ends_in_order_hands_over_at_once() -> Result<()> {
    elected(&[], async |alone| {
        let (second, _dir) = standby(alone).await?;
        let vm = ended(alone, "web").await?;
        let told = Instant::now();
        let status = alone.operator.stop().await?;
        ensure!(status.success(), "it ended with {status}");
        delete(alone, &vm).await?;
        alone.scene().released(&vm.name()).await?;
        ensure_given(told.elapsed())?;
        until_reaped_more_than(0.0, &second).await?;
        alone.scene().vanished(&vm).await
    })
}

#[test]
fn a_stopped_leader_drops_a_hung_call_and_hands_over_before_expiry() -> Result<()> {
    elected(&[], async |alone| {
        let (second, _dir) = standby(alone).await?;
        let vm = ended(alone, "web").await?;
        // From here on the operator has a connection. An attempt to connect would end before the operator's patience does.
        alone.scene().operator_catches_up().await?;
        alone.libvirtd.pause()?;
        delete(alone, &vm).await?;
        alone.operator.calls().await?;
        let told = Instant::now();
        let (status, next) = tokio::try_join!(alone.operator.stop(), async {
            until_leads(&second).await?;
            anyhow::Ok(told.elapsed())
        })?;
        let ended = told.elapsed();
        alone.libvirtd.resume()?;
        ensure!(status.success(), "it ended with {status}");
        // The next operator may lead only once no call of the first can still arrive, but long before the lease would have expired.
        ensure!(next > RELEASE_DELAY, "too soon: {next:?}");
        ensure_given(next)?;
        ensure!(ended < DURATION, "it ended after {ended:?}");
        let log = alone.operator.log()?;
        ensure!(
            log.contains("which took too long; releasing the lease in") && log.contains("released the lease"),
            "{log}"
        );
        alone.scene().released(&vm.name()).await?;
        until_reaped_more_than(0.0, &second).await?;
        alone.scene().vanished(&vm).await
    })
}

#[test]
fn a_leader_that_is_killed_is_followed_when_its_lease_has_expired() -> Result<()> {
    elected(&[], async |alone| {
        let (second, _dir) = standby(alone).await?;
        let vm = ended(alone, "web").await?;
        alone.operator.kill().await?;
        let killed = Instant::now();
        delete(alone, &vm).await?;
        alone.scene().released(&vm.name()).await?;
        let reaped = killed.elapsed();
        until_reaped_more_than(0.0, &second).await?;
        // The leader renewed the lease at most one period before its end.
        ensure!(
            reaped > DURATION.checked_sub(RETRY_PERIOD * 2).context("it is longer")?,
            "too soon: {reaped:?}"
        );
        ensure!(reaped < 2 * DURATION, "the next leader reaped after {reaped:?}");
        Ok(())
    })
}

#[test]
fn a_leader_paused_past_its_deadline_does_nothing_when_it_resumes() -> Result<()> {
    elected(&[], async |alone| {
        let (second, _dir) = standby(alone).await?;
        // From here on the operator has a connection. An attempt to connect would give up before the lease is over.
        alone.scene().operator_catches_up().await?;
        until_reaped_more_than(0.0, &alone.operator).await?;
        // The operator is paused in the middle of a deletion. Another deletion becomes due meanwhile.
        let (under_way, later) = (ended(alone, "under-way").await?, ended(alone, "later").await?);
        alone.libvirtd.pause()?;
        delete(alone, &under_way).await?;
        alone.operator.calls().await?;
        let before = answered_calls(&alone.operator).await?;
        alone.operator.pause()?;
        delete(alone, &later).await?;
        until_leads(&second).await?;
        alone.operator.resume()?;
        until_stands_by(&alone.operator).await?;
        alone.libvirtd.resume()?;

        for vm in [&under_way, &later] {
            alone.scene().reaped(vm).await?;
        }
        alone.scene().operator_catches_up().await?;
        let calls = answered_calls(&alone.operator).await? - before;
        ensure!(calls.abs() < 0.5, "it made {calls} calls after its time was over");
        let reaped = deletions(&alone.operator).await?;
        ensure!(reaped < 1.5, "it reaped after its time was over");
        // The first operator can lead again.
        second.stop().await?;
        alone.scene().operator_catches_up().await?;
        until_reaped_more_than(reaped, &alone.operator).await?;
        Ok(())
    })
}

#[test]
fn a_leader_without_the_api_server_stops_at_its_deadline_and_leads_again() -> Result<()> {
    elected(&[], async |alone| {
        until_leads(&alone.operator).await?;
        alone.scene().operator_catches_up().await?;
        let vm = ended(alone, "web").await?;
        alone.libvirtd.pause()?;
        delete(alone, &vm).await?;
        alone.operator.calls().await?;
        let before = answered_calls(&alone.operator).await?;
        alone.testbed.cluster().pause(Component::ApiServer)?;
        let away = Instant::now();
        let stood_by = until_stands_by(&alone.operator).await;
        let after = away.elapsed();
        // Now only the missing lease keeps the operator from deleting the machine.
        alone.libvirtd.resume()?;
        sleep(RETRY_PERIOD).await;
        let left_alone = alone.scene().lives(&vm).await;
        let calls = answered_calls(&alone.operator).await;
        alone.testbed.cluster().resume(Component::ApiServer)?;
        stood_by?;
        left_alone?;
        let calls = calls? - before;
        ensure!(calls.abs() < 0.5, "it made {calls} calls without the lease");
        // The operator must stop before another one may begin.
        ensure!(after < DURATION, "it led on for {after:?}");
        alone.scene().reaped(&vm).await?;
        ensure!(alone.operator.process().is_running(), "it ended");
        Ok(())
    })
}

#[test]
fn a_leader_keeps_and_hands_over_a_lease_that_others_write_or_delete() -> Result<()> {
    elected(&[], async |alone| {
        let (second, _dir) = standby(alone).await?;
        let leases: Api<Lease> = Api::namespaced(alone.testbed.client(), NAMESPACE);
        leases.delete(LEASE, &DeleteParams::default()).await?;
        wait::present(&leases, LEASE, "the lease is there again", DEADLINE, |_| true).await?;
        let removed = Instant::now();
        for round in 0.. {
            label(&leases, &round.to_string()).await?;
            ensure!(leads(&alone.operator).await?, "it lost the lease");
            ensure!(!leads(&second).await?, "another one got it, too");
            if removed.elapsed() > RENEW_DEADLINE + 2 * RETRY_PERIOD {
                break;
            }
            sleep(RETRY_PERIOD / 4).await;
        }
        // It did not lose the lease between two looks of this test either.
        ensure!(!alone.operator.log()?.contains("lost the leadership"), "it lost the lease");
        let vm = ended(alone, "web").await?;
        label(&leases, "the-last").await?;
        let told = Instant::now();
        alone.operator.stop().await?;
        delete(alone, &vm).await?;
        alone.scene().released(&vm.name()).await?;
        ensure_given(told.elapsed())
    })
}

/// Changes the Lease, so that an older read of it conflicts. Leaves alone the fields that elections read.
async fn label(leases: &Api<Lease>, value: &str) -> Result<()> {
    let labels = Patch::Merge(json!({ "metadata": { "labels": { "round": value } } }));
    leases.patch(LEASE, &PatchParams::default(), &labels).await?;
    Ok(())
}

#[test]
fn an_impossible_election_logs_advice_and_continues_once_possible() -> Result<()> {
    const ELSEWHERE: &str = "lease-elsewhere";
    elected(&[format!("--lease-namespace={ELSEWHERE}")], async |alone| {
        let testbed = &*alone.testbed;
        let says = async |advice: &str| {
            wait::eventually(&format!("the log says: {advice}"), DEADLINE, async || {
                ensure!(alone.operator.log()?.contains(advice));
                Ok(())
            })
            .await
        };
        says("grant this ServiceAccount in the namespace lease-elsewhere `create`").await?;
        let settled = Timestamp::now();
        sleep(5 * RETRY_PERIOD).await;
        let requests = lease_requests(alone, settled)?.len();
        ensure!((1..=8).contains(&requests), "{requests} in five periods");

        let name = "leases-everywhere";
        let rules =
            [json!({ "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"] })];
        let metadata = json!({ "name": name });
        let group = "rbac.authorization.k8s.io";
        let subject = json!({ "kind": "ServiceAccount", "name": install::NAME, "namespace": NAMESPACE });
        let role = json!({ "apiVersion": format!("{group}/v1"), "kind": "ClusterRole", "metadata": metadata, "rules": rules });
        let binding = json!({
            "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": metadata,
            "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": name }, "subjects": [subject],
        });
        testbed.apply(name, &[role, binding]).await?;
        let granted = async {
            says("create the namespace lease-elsewhere, or set --lease-namespace to another one").await?;
            ensure!(!leads(&alone.operator).await?);
            testbed.cluster().kubectl(&["create", "namespace", ELSEWHERE]).await?;
            until_leads(&alone.operator).await?;
            alone.scene().operator_catches_up().await
        }
        .await;
        testbed.cluster().kubectl(&["delete", "clusterrole,clusterrolebinding", name]).await?;
        granted
    })
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
