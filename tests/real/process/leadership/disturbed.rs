//! A leader that is paused, that has no API server, or whose lease others write; and an election that is impossible.

use std::time::Instant;

use anyhow::{Result, ensure};
use cluster::Component;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use operator_kit::lease::{DURATION, RENEW_DEADLINE, RETRY_PERIOD};
use peerpod_operator::{NAMESPACE, install, names::LEASE};
use serde_json::json;
use testbed::wait::{self, DEADLINE};
use tokio::time::sleep;

use super::{
    answered_calls, delete, deletions, elected, ended, ensure_given, leads, lease_requests, standby,
    until_leads, until_reaped_more_than, until_stands_by,
};

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
