//! Values that bring rights.

use anyhow::{Context as _, Result, ensure};
use peerpod_operator::{
    install::{NAME, PEERPODCONFIG_ROLE, evictions, metrics_rights, monitoring},
    peerpodconfig::resources::webhook,
};
use serde_json::{Value, json};

use crate::{
    install::{
        helm::{Helm, of_kind},
        kustomize::{accepted, reviewers},
    },
    support::beside_others,
};

#[test]
fn the_peerpod_controller_alone_gets_no_rights_for_configurations() -> Result<()> {
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        let rights = async |values: &str| {
            let objects = helm.rendered(&["--no-hooks", "--set", values]).await?;
            let names = [PEERPODCONFIG_ROLE, webhook::SERVICE_ACCOUNT];
            let kinds = objects.iter().filter(|it| names.iter().any(|name| it["metadata"]["name"] == *name));
            let kinds = kinds.map(|it| it["kind"].as_str().unwrap_or_default().to_owned());
            anyhow::Ok(kinds.collect::<Vec<_>>())
        };
        let roles = ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"];
        let all = [&["ServiceAccount"], &roles[..], &roles[..]].concat();
        for (values, mut expected) in [
            ("operator.replicas=2", all.clone()),
            ("operator.controllers={peerpodconfig}", all.clone()),
            ("operator.controllers={peerpod,peerpodconfig}", all.clone()),
            ("resourceCtrl.enabled=false", all),
            ("operator.controllers={peerpod}", vec![]),
        ] {
            let mut rights = rights(values).await?;
            rights.sort();
            expected.sort_unstable();
            ensure!(rights == expected, "{values}: {rights:?}");
        }
        for (contrary, told) in [
            ("peerPodConfig.create=true", "peerPodConfig.create needs the controller peerpodconfig"),
            (
                "resourceCtrl.enabled=false",
                "resourceCtrl.enabled is false, and operator.controllers has peerpod",
            ),
        ] {
            let refusal = rights(&format!("operator.controllers={{peerpod}},{contrary}")).await.err();
            let refusal = format!("{:#}", refusal.with_context(|| format!("{contrary} is taken"))?);
            ensure!(refusal.contains(told), "{refusal}");
        }
        Ok(())
    })
}

#[test]
fn secure_metrics_bring_their_rights_and_have_prometheus_show_a_token() -> Result<()> {
    beside_others(async |scene| {
        let cluster = scene.testbed.cluster();
        let helm = Helm::of(cluster).await?;
        let reviewers = |objects: &[Value]| {
            objects.iter().filter(|it| it["metadata"]["name"] == metrics_rights::REVIEWER).count()
        };
        let monitor = "metrics.podMonitor.enabled=true";
        let objects = helm.rendered(&["--set", monitor]).await?;
        let endpoint = &of_kind(&objects, "PodMonitor")?["spec"]["podMetricsEndpoints"][0];
        ensure!(reviewers(&objects) == 0 && *endpoint == json!({ "port": "metrics" }), "{endpoint}");

        let values = format!("{monitor},metrics.secure=true,metrics.tlsSecretName=mine");
        let objects = helm.rendered(&["--set", &values]).await?;
        let endpoint = &of_kind(&objects, "PodMonitor")?["spec"]["podMetricsEndpoints"][0];
        ensure!(*endpoint == monitoring::secure_endpoint(monitoring::TOKEN_SECRET), "{endpoint}");
        ensure!(reviewers(&objects) == 2, "a role and its binding");
        let pod = &of_kind(&objects, "Deployment")?["spec"]["template"]["spec"];
        let folder = "/etc/peerpod-operator/metrics-tls";
        let arguments = pod["containers"][0]["args"].to_string();
        ensure!(arguments.contains("\"--metrics-secure=true\""), "{arguments}");
        ensure!(arguments.contains(&format!("\"--metrics-tls-dir={folder}\"")), "{arguments}");
        ensure!(pod["volumes"][5]["secret"]["secretName"] == "mine", "{pod}");
        ensure!(pod["containers"][0]["volumeMounts"][5]["mountPath"] == folder, "{pod}");
        let known = |object: &&Value| object["apiVersion"] != "monitoring.coreos.com/v1";
        accepted(cluster, &objects.iter().filter(known).cloned().collect::<Vec<_>>()).await
    })
}

#[test]
fn the_webhook_may_review_tokens_only_where_its_controller_runs() -> Result<()> {
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        for (controllers, expected) in
            [("null", &[NAME, webhook::SERVICE_ACCOUNT][..]), ("{peerpod}", &[NAME])]
        {
            let values = format!("metrics.secure=true,operator.controllers={controllers}");
            let objects = helm.rendered(&["--set", &values]).await?;
            let names = reviewers(&objects)?;
            ensure!(names == expected, "{controllers}: {names:?}");
        }
        Ok(())
    })
}

#[test]
fn evictions_bring_their_right() -> Result<()> {
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        for (values, expected) in [
            ("operator.evictLostPods=false", 0),
            ("operator.evictLostPods=true", 2),
            ("operator.evictLostPods=true,operator.controllers={peerpod}", 2),
            // The controller that evicts does not run.
            ("operator.evictLostPods=true,resourceCtrl.enabled=false", 0),
        ] {
            let objects = helm.rendered(&["--set", values]).await?;
            let rights = objects.iter().filter(|it| it["metadata"]["name"] == evictions::ROLE).count();
            ensure!(rights == expected, "{rights} objects with {values}");
            let pod = &of_kind(&objects, "Deployment")?["spec"]["template"]["spec"];
            let evicts = pod["containers"][0]["args"].to_string().contains(evictions::ARGUMENT);
            ensure!(evicts == (expected > 0), "{pod}");
        }
        Ok(())
    })
}
