//! The cluster is a real one: it does what the tests of this repository rely on, and leaves nothing behind.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cluster::process::Identity;
use cluster::wait::eventually;
use cluster::{Cluster, ClusterOptions, Component};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(60);

async fn start(fake_nodes: usize) -> Result<(Cluster, TempDir)> {
    let dir = tempfile::tempdir()?;
    let cluster =
        Cluster::start(&ClusterOptions { fake_nodes, ..ClusterOptions::new(dir.path().join("c")) }).await?;
    Ok((cluster, dir))
}

async fn create(cluster: &Cluster, object: &Value) -> Result<Value> {
    let file = cluster.dir().join(format!("{}.json", object["metadata"]["name"].as_str().context("a name")?));
    std::fs::write(&file, object.to_string())?;
    let created =
        cluster.kubectl(&["create", "--output=json", "-f", file.to_str().context("UTF-8")?]).await?;
    Ok(serde_json::from_str(&created)?)
}

fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "any"}]},
    })
}

/// A dependent of a Pod that must be gone before the Pod goes in the foreground, and holds out until it is released.
fn dependent(name: &str, owner: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "finalizers": ["example.com/hold"],
            "ownerReferences": [{
                "apiVersion": "v1",
                "kind": "Pod",
                "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"],
                "blockOwnerDeletion": true,
            }],
        },
    })
}

async fn runs(cluster: &Cluster, pod: &str) -> Result<()> {
    eventually(&format!("Pod {pod} runs"), DEADLINE, async || {
        let phase = cluster.kubectl(&["get", "pod", pod, "--output=jsonpath={.status.phase}"]).await?;
        ensure!(phase == "Running", "it is {phase}");
        Ok(())
    })
    .await
}

async fn is_gone(cluster: &Cluster, kind: &str, name: &str) -> Result<()> {
    eventually(&format!("{kind} {name} is gone"), DEADLINE, async || {
        let found = cluster.kubectl(&["get", kind, name, "--ignore-not-found", "--output=name"]).await?;
        ensure!(found.is_empty(), "it is still there");
        Ok(())
    })
    .await
}

async fn is_being_deleted(cluster: &Cluster, kind: &str, name: &str) -> Result<()> {
    eventually(&format!("{kind} {name} is being deleted"), DEADLINE, async || {
        let time =
            cluster.kubectl(&["get", kind, name, "--output=jsonpath={.metadata.deletionTimestamp}"]).await?;
        ensure!(!time.is_empty(), "it has no deletionTimestamp");
        Ok(())
    })
    .await
}

const RELEASE: &str = r#"--patch={"metadata":{"finalizers":null}}"#;

#[tokio::test]
async fn pods_and_fake_nodes_do_what_tests_rely_on() -> Result<()> {
    let (cluster, _dir) = start(2).await?;
    a_pod_is_scheduled_runs_and_takes_its_dependents_with_it(&cluster).await?;
    a_pod_deleted_in_the_foreground_is_removed_after_its_dependents(&cluster).await?;
    a_fake_node_holds_a_lease_so_that_it_is_not_taken_for_lost(&cluster).await
}

async fn a_pod_is_scheduled_runs_and_takes_its_dependents_with_it(cluster: &Cluster) -> Result<()> {
    let owner = create(cluster, &pod("owner")).await?;
    runs(cluster, "owner").await?;
    create(cluster, &dependent("dependent", &owner)).await?;
    cluster.kubectl(&["delete", "pod", "owner", "--wait=false"]).await?;
    is_gone(cluster, "pod", "owner").await?;
    is_being_deleted(cluster, "configmap", "dependent").await?;
    cluster.kubectl(&["patch", "configmap", "dependent", RELEASE]).await?;
    is_gone(cluster, "configmap", "dependent").await
}

async fn a_pod_deleted_in_the_foreground_is_removed_after_its_dependents(cluster: &Cluster) -> Result<()> {
    let owner = create(cluster, &pod("last")).await?;
    runs(cluster, "last").await?;
    create(cluster, &dependent("first", &owner)).await?;
    cluster.kubectl(&["delete", "pod", "last", "--cascade=foreground", "--wait=false"]).await?;
    is_being_deleted(cluster, "configmap", "first").await?;
    is_being_deleted(cluster, "pod", "last").await?;
    cluster.kubectl(&["patch", "configmap", "first", RELEASE]).await?;
    is_gone(cluster, "pod", "last").await
}

async fn a_fake_node_holds_a_lease_so_that_it_is_not_taken_for_lost(cluster: &Cluster) -> Result<()> {
    let field = "--output=jsonpath={.spec.renewTime}";
    let lease = ["get", "lease", "fake-0", "--namespace=kube-node-lease", field];
    let held = eventually("the lease is held", DEADLINE, async || {
        let renewed = cluster.kubectl(&lease).await?;
        ensure!(!renewed.is_empty(), "nobody has renewed it");
        Ok(renewed)
    })
    .await?;
    eventually("the lease is renewed", DEADLINE, async || {
        let renewed = cluster.kubectl(&lease).await?;
        ensure!(renewed != held, "it is still that of {held}");
        Ok(())
    })
    .await
}

async fn a_component_is_disturbed_and_comes_back_at_its_address_with_its_data(
    cluster: &mut Cluster,
) -> Result<()> {
    create(cluster, &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept"}})).await?;
    let kept = ["get", "configmap", "kept", "--output=name"];

    cluster.pause(Component::ApiServer)?;
    let unanswered = timeout(Duration::from_secs(1), cluster.kubectl(&kept)).await;
    assert!(unanswered.is_err(), "a paused API server answers nothing");
    cluster.resume(Component::ApiServer)?;
    assert_eq!(cluster.kubectl(&kept).await?.trim(), "configmap/kept");

    let url = cluster.server_url();
    cluster.restart(Component::ApiServer).await?;
    assert_eq!(cluster.server_url(), url);
    assert_eq!(cluster.kubectl(&kept).await?.trim(), "configmap/kept");

    cluster.process(Component::Etcd).context("etcd runs")?.kill().await?;
    assert_eq!(cluster.ended(), [Component::Etcd]);
    cluster.start_component(Component::Etcd).await?;
    eventually("etcd's data is back", DEADLINE, async || Ok(cluster.kubectl(&kept).await.map(drop)?)).await?;
    assert!(cluster.ended().is_empty(), "the others did without etcd for a moment");
    Ok(())
}

#[tokio::test]
async fn clusters_run_side_by_side_and_none_of_their_processes_survives_them() -> Result<()> {
    let ((mut one, _one_dir), (other, _other_dir)) = tokio::try_join!(start(0), start(0))?;
    create(&one, &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "apart"}})).await?;
    assert_eq!(other.kubectl(&["get", "namespace", "apart", "--ignore-not-found"]).await?, "");
    a_component_is_disturbed_and_comes_back_at_its_address_with_its_data(&mut one).await?;

    let processes = |cluster: &Cluster| -> Vec<Identity> {
        Component::CONTROL_PLANE
            .iter()
            .filter_map(|c| Some(cluster.process(*c)?.identity().clone()))
            .collect()
    };
    let (of_one, of_other) = (processes(&one), processes(&other));
    assert_eq!(of_one.len(), Component::CONTROL_PLANE.len());
    drop(one);
    assert!(!of_one.iter().any(Identity::is_running));
    assert!(of_other.iter().all(Identity::is_running));
    let mut other = other;
    other.stop().await?;
    assert!(!of_other.iter().any(Identity::is_running));
    Ok(())
}

#[tokio::test]
async fn a_token_has_its_service_accounts_rights_under_an_older_kubernetes_too() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let options = ClusterOptions {
        emulated_version: Some("1.33".to_owned()),
        ..ClusterOptions::new(dir.path().join("c"))
    };
    let cluster = Cluster::start(&options).await?;
    let version: Value = serde_json::from_str(&cluster.kubectl(&["get", "--raw", "/version"]).await?)?;
    assert_eq!(version["emulationMinor"], "33", "{version}");
    let served = cluster.kubectl(&["get", "--raw", "/apis/admissionregistration.k8s.io/v1"]).await?;
    assert!(!served.contains("mutatingadmissionpolicies"), "these came later");

    let token = cluster.kubectl(&["create", "token", "default"]).await?;
    let kubeconfig = cluster.kubeconfig_for_token("default", token.trim())?;
    assert!(cluster.kubeconfig_for_token("admin", "x").is_err(), "the administrator's is not overwritten");
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    let me = cluster
        .kubectl(&[&kubeconfig, "auth", "whoami", "--output=jsonpath={.status.userInfo.username}"])
        .await?;
    assert_eq!(me, "system:serviceaccount:default:default");
    let refused = cluster.kubectl(&[&kubeconfig, "get", "secrets"]).await.expect_err("it has no rights");
    assert!(refused.to_string().contains("Forbidden"), "{refused:#}");
    Ok(())
}

#[tokio::test]
async fn a_start_that_fails_quotes_the_log_of_what_failed() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let options = ClusterOptions {
        api_server_flags: vec!["--no-such-flag".to_owned()],
        ..ClusterOptions::new(dir.path().join("c"))
    };
    let error = Cluster::start(&options).await.expect_err("no such flag");
    assert!(format!("{error:#}").contains("unknown flag: --no-such-flag"), "{error:#}");
    Ok(())
}
