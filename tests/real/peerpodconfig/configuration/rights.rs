//! The operator runs under exactly the generated rights. They suffice for everything that it does about configurations.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use serde_json::json;
use testbed::{
    Request,
    wait::{self, DEADLINE},
};

use super::{
    admission::{mode, trust},
    stage::{Stage, configuring},
};
use crate::support::Alone;

fn requests(alone: &Alone<'_>) -> Result<Vec<Request>> {
    alone.testbed.audit()?.of_operator()
}

#[test]
fn no_request_about_configurations_is_forbidden() -> Result<()> {
    configuring(async |alone| {
        let before = requests(alone)?.len();
        let stage = Stage::set(alone, 1).await?;
        let account = json!({ "serviceAccountAnnotations": { "cloud.example.com/role": "adaptor" } });
        stage
            .configure(
                "config",
                json!({ "limit": 2, "adaptor": account, "admission": { "mode": "Webhook" } }),
            )
            .await?;
        trust(&stage.client).await?;
        stage.until("config", "Ready", "AllReady").await?;
        stage.configure("config", mode("Policy")).await?;
        stage.until("config", "AdmissionReady", "PolicyInForce").await?;
        // The test deletes one configuration of each mode.
        let admission = json!({ "mode": "Webhook", "runtimeClassName": "another" });
        stage
            .configure("other", json!({ "nodeSelector": { "nowhere": "yes" }, "admission": admission }))
            .await?;
        stage.until("other", "AdmissionReady", "RuntimeClassMissing").await?;
        stage.delete("other").await?;
        stage.clear("config").await?;

        let kinds = async || -> Result<BTreeSet<String>> {
            let requests = requests(alone)?.split_off(before);
            Ok(requests.iter().map(|request| format!("{} {}", request.verb, request.resource)).collect())
        };
        let made = [
            "daemonsets",
            "deployments",
            "services",
            "poddisruptionbudgets",
            "mutatingwebhookconfigurations",
            "mutatingadmissionpolicies",
            "mutatingadmissionpolicybindings",
        ];
        let mut expected: Vec<_> =
            made.iter().flat_map(|kind| [format!("patch {kind}"), format!("delete {kind}")]).collect();
        let others = [
            "patch secrets",
            "delete secrets",
            "patch leases",
            "delete leases",
            "patch nodes/status",
            "patch serviceaccounts",
            "patch peerpodconfigs",
            "patch peerpodconfigs/status",
            "create events",
        ];
        expected.extend(others.map(str::to_owned));
        wait::eventually("the audit log has all of it", DEADLINE, async || {
            let kinds = kinds().await?;
            let missing: Vec<_> = expected.iter().filter(|kind| !kinds.contains(*kind)).collect();
            ensure!(missing.is_empty(), "the scenario lacks {missing:?}: {kinds:?}");
            Ok(())
        })
        .await?;
        let requests = requests(alone)?.split_off(before);
        let forbidden: Vec<_> = requests.iter().filter(|request| request.code == 403).collect();
        ensure!(forbidden.is_empty(), "{forbidden:#?}");
        Ok(())
    })
}
