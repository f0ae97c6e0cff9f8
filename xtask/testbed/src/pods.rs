//! Pods on a fake node.

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use crate::wait::{self, DEADLINE};

/// The fake node of the Pods.
const NODE: &str = "fake-0";

/// A node that is not there.
const NO_NODE: &str = "none";

/// Pods of one namespace on a fake node. They run at once, and end as soon as they are deleted.
#[derive(Clone, Debug)]
pub struct Pods {
    api: Api<Pod>,
}

impl Pods {
    /// Those of this namespace.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { api: Api::namespaced(client, namespace) }
    }

    /// Makes a Pod and waits until it runs.
    pub async fn run(&self, name: &str) -> Result<Pod> {
        let pod = pod(name, NODE, 1)?;
        self.api
            .create(&PostParams::default(), &pod)
            .await
            .with_context(|| format!("creating the Pod {name}"))?;
        let runs = |pod: &Pod| phase(pod) == "Running";
        wait::present(&self.api, name, &format!("the Pod {name} runs"), DEADLINE, runs).await
    }

    /// Reports, as a kubelet does, since when the Pod's present sandbox is ready.
    pub async fn sandbox_is_ready_since(&self, name: &str, since: Timestamp) -> Result<Pod> {
        let ready =
            json!({ "type": "PodReadyToStartContainers", "status": "True", "lastTransitionTime": since });
        let status = Patch::Strategic(json!({ "status": { "conditions": [ready] } }));
        let patched = self.api.patch_status(name, &PatchParams::default(), &status).await;
        patched.with_context(|| format!("saying of the Pod {name} that its sandbox is ready"))
    }

    /// Reports, as a kubelet does, that a Pod's sandbox is gone and its containers wait for another one.
    pub async fn sandbox_is_lost(&self, name: &str) -> Result<Pod> {
        let pod = self.api.get(name).await?;
        let spec = pod.spec.with_context(|| format!("the Pod {name} has a spec"))?;
        let waits = |container: &str| {
            json!({
                "name": container, "image": "any", "imageID": "", "ready": false, "restartCount": 1,
                "state": { "waiting": { "reason": "ContainerCreating" } },
            })
        };
        let containers: Vec<_> = spec.containers.iter().map(|container| waits(&container.name)).collect();
        let lost = json!({ "type": "PodReadyToStartContainers", "status": "False", "lastTransitionTime": Timestamp::now() });
        let status = json!({ "status": { "conditions": [lost], "containerStatuses": containers } });
        let patched = self.api.patch_status(name, &PatchParams::default(), &Patch::Strategic(status)).await;
        patched.with_context(|| format!("saying of the Pod {name} that its sandbox is lost"))
    }

    /// Deletes a Pod, as `kubectl delete pod` does, and waits until it is gone.
    pub async fn delete(&self, name: &str) -> Result<()> {
        self.api
            .delete(name, &DeleteParams::background())
            .await
            .with_context(|| format!("deleting the Pod {name}"))?;
        wait::gone(&self.api, name, DEADLINE).await
    }

    /// Makes a Pod and removes it. No kubelet sees it: kwok deletes by name what is being deleted, also when another Pod already has the name.
    pub async fn come_and_go(&self, name: &str) -> Result<()> {
        let created = self.api.create(&PostParams::default(), &pod(name, NO_NODE, 0)?).await;
        created.with_context(|| format!("creating the Pod {name}"))?;
        let at_once = DeleteParams::default().grace_period(0);
        self.api.delete(name, &at_once).await.with_context(|| format!("deleting the Pod {name}"))?;
        wait::gone(&self.api, name, DEADLINE).await
    }

    /// Removes all Pods of the namespace, also those on nodes without a kubelet, and waits until they are gone.
    pub async fn clear(&self) -> Result<()> {
        let at_once = DeleteParams::default().grace_period(0);
        self.api.delete_collection(&at_once, &ListParams::default()).await.context("removing all Pods")?;
        wait::eventually("all Pods are gone", DEADLINE, async || {
            let left = self.api.list_metadata(&ListParams::default()).await?.items.len();
            ensure!(left == 0, "{left} are left");
            Ok(())
        })
        .await
    }

    /// The Pods themselves.
    pub fn api(&self) -> &Api<Pod> {
        &self.api
    }
}

/// The phase of a Pod.
pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// A Pod for this node. As by controllers, also those that name their Pods themselves, it has the start of its name as `generateName`.
pub(crate) fn pod(name: &str, node: &str, grace_seconds: i64) -> Result<Pod> {
    let start = name.rsplit_once('-').map(|(start, _)| format!("{start}-"));
    let pod = json!({
        "metadata": { "name": name, "generateName": start },
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": grace_seconds,
            "automountServiceAccountToken": false,
            "containers": [{ "name": "main", "image": "any" }],
        },
    });
    Ok(serde_json::from_value(pod)?)
}
