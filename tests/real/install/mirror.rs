//! Who may create mirror Pods.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use serde_json::{Value, from_value, json};

use testbed::wait::{self, DEADLINE};

use crate::support::{Scene, beside_others};

/// Creates an object at this path of the namespace as another user, by a dry run.
async fn post(scene: &Scene<'_>, path: &str, user: &[&str], object: &Value) -> Result<String> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("object.json");
    std::fs::write(&file, object.to_string())?;
    let file = file.to_str().context("UTF-8")?;
    let url = format!("/api/v1/namespaces/{}/{path}?dryRun=All", scene.namespace);
    scene.kubectl(&[&["create", "--raw", &*url, "--filename", file], user].concat()).await
}

async fn create(scene: &Scene<'_>, user: &[&str], pod: &Value) -> Result<String> {
    post(scene, "pods", user, pod).await
}

fn is_refused(asked: Result<String>) -> Result<()> {
    let refused = format!("{:#}", asked.err().context("it was accepted")?);
    ensure!(refused.contains("peerpod-mirror") && refused.contains("only a kubelet"), "{refused}");
    Ok(())
}

#[test]
fn kubelets_alone_create_mirror_pods() -> Result<()> {
    beside_others(async |scene| {
        let nodes: Api<Node> = Api::all(scene.testbed.client());
        let node = nodes.list_metadata(&ListParams::default()).await?.items.remove(0).metadata;
        let (node, uid) = (node.name.context("a name")?, node.uid.context("a uid")?);
        let pod = |annotation: &str| {
            let owner =
                json!({ "apiVersion": "v1", "kind": "Node", "name": node, "uid": uid, "controller": true });
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {
                    "name": "web", "namespace": scene.namespace, "ownerReferences": [owner],
                    "annotations": { annotation: "1" },
                },
                "spec": {
                    "nodeName": node, "automountServiceAccountToken": false, "enableServiceLinks": false,
                    "containers": [{ "name": "main", "image": "any" }],
                },
            })
        };
        let (mirror, ordinary) = (pod("kubernetes.io/config.mirror"), pod("kubernetes.io/config.other"));
        scene.kubectl(&["create", "rolebinding", "tenant", "--clusterrole=edit", "--user=tenant"]).await?;
        let tenant = ["--as=tenant"];
        let may_create = async || create(scene, &tenant, &ordinary).await.map(drop);
        wait::eventually("the API server applies the tenant's rights", DEADLINE, may_create).await?;
        is_refused(create(scene, &tenant, &mirror).await)?;
        let kubelet = [&*format!("--as=system:node:{node}"), "--as-group=system:nodes"];
        create(scene, &kubelet, &mirror).await?;
        // A backup that is restored, for one.
        create(scene, &[], &mirror).await.map(drop)
    })
}

/// A binding to a node adds its annotations to the Pod. A tenant may have a scheduler.
#[test]
fn no_binding_makes_a_mirror_pod() -> Result<()> {
    beside_others(async |scene| {
        let pod = json!({
            "metadata": { "name": "web" },
            "spec": { "schedulerName": "tenants", "containers": [{ "name": "main", "image": "any" }] },
        });
        let pods: Api<Pod> = Api::namespaced(scene.testbed.client(), &scene.namespace);
        pods.create(&PostParams::default(), &from_value(pod)?).await?;
        let rights = ["--verb=create", "--resource=pods/binding,bindings"];
        scene.kubectl(&[&["create", "role", "scheduler"], &rights[..]].concat()).await?;
        scene.kubectl(&["create", "rolebinding", "scheduler", "--role=scheduler", "--user=tenant"]).await?;
        for path in ["pods/web/binding", "bindings"] {
            let bind = async |annotation: &str| {
                let binding = json!({
                    "apiVersion": "v1", "kind": "Binding", "metadata": { "name": "web", "annotations": { annotation: "1" } },
                    "target": { "kind": "Node", "name": "none" },
                });
                post(scene, path, &["--as=tenant"], &binding).await
            };
            let may_bind = async || bind("kubernetes.io/config.other").await.map(drop);
            wait::eventually("the API server applies the tenant's rights", DEADLINE, may_bind).await?;
            is_refused(bind("kubernetes.io/config.mirror").await)?;
        }
        Ok(())
    })
}
