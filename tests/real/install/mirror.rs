//! Who may create mirror Pods.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::ListParams};
use serde_json::{Value, json};

use crate::support::{Scene, beside_others};

/// Creates a Pod as another user, by a dry run.
async fn create(scene: &Scene<'_>, user: &[&str], pod: &Value) -> Result<String> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("pod.json");
    std::fs::write(&file, pod.to_string())?;
    let file = file.to_str().context("UTF-8")?;
    scene.kubectl(&[&["create", "--dry-run=server", "--filename", file], user].concat()).await
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
        create(scene, &tenant, &ordinary).await?;
        let refused = create(scene, &tenant, &mirror).await.err().context("a tenant's mirror Pod")?;
        let refused = format!("{refused:#}");
        ensure!(refused.contains("peerpod-mirror") && refused.contains("only a kubelet"), "{refused}");
        let kubelet = [&*format!("--as=system:node:{node}"), "--as-group=system:nodes"];
        create(scene, &kubelet, &mirror).await?;
        // A backup that is restored, for one.
        create(scene, &[], &mirror).await.map(drop)
    })
}
