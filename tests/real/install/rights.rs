//! The operator runs under exactly the generated rights. They suffice for everything that it does.

use anyhow::Result;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
};
use peerpod_operator::{
    NAMESPACE,
    api::v1alpha1::PeerPodConfig,
    install::{self, PEERPODCONFIG_ROLE},
};
use serde_json::json;
use testbed::{Kubelet, Request, wait};

use crate::{
    cli::apply::{start_as, succeeds},
    support::{Alone, Scene, alone, next_second},
};

/// Brings about each of the operator's decisions once. Returns the namespace that was deleted.
pub(crate) async fn all_decisions(scene: &Scene<'_>) -> Result<String> {
    // Delete and release.
    let normal = scene.pod_with_vm("normal").await?;
    scene.pods.delete("normal").await?;
    scene.released(&normal.name()).await?;
    // Wait for a Pod that runs, then for one that ends.
    let kubelet = Kubelet::join(scene.testbed.client(), "rights").await?;
    let pod = kubelet.run(&scene.namespace, "waits", 300).await?;
    let waits = scene.caa.start_vm(&pod, scene.host).await?;
    scene.kubectl(&["delete", "peerpod", &waits.name(), "--wait=false"]).await?;
    scene.held(&waits.name(), "WaitingForPod").await?;
    scene.kubectl(&["delete", "pod", "waits", "--wait=false"]).await?;
    kubelet.end(&pod).await?;
    scene.released(&waits.name()).await?;
    kubelet.remove(&pod).await?;
    // Supersede, at once where no earlier Pod had the name.
    let pod = scene.pods.run("siblings-x7k2p").await?;
    let first = scene.caa.start_vm(&pod, scene.host).await?;
    next_second(std::slice::from_ref(&first)).await?;
    scene.pods.sandbox_is_lost("siblings-x7k2p").await?;
    scene.caa.start_vm(&pod, scene.host).await?;
    scene.released(&first.name()).await?;
    // Refuse, and release when an administrator asks for it.
    let pod = scene.pods.run("refused").await?;
    let refused = scene.caa.record(&pod, "nonsense", "i-1").await?.name_any();
    scene.pods.delete("refused").await?;
    scene.held(&refused, "UnknownProvider").await?;
    scene.abandon(&refused).await?;
    scene.released(&refused).await?;
    // Refuse in a namespace that is being deleted, which accepts no more events.
    let going = scene.elsewhere().await?;
    let pod = going.pods.run("refused").await?;
    let refused = going.caa.record(&pod, "nonsense", "i-1").await?.name_any();
    scene.testbed.cluster().kubectl(&["delete", "namespace", &going.namespace, "--wait=false"]).await?;
    going.held(&refused, "UnknownProvider").await?;
    going.abandon(&refused).await?;
    let namespaces: Api<Namespace> = Api::all(scene.testbed.client());
    wait::gone(&namespaces, &going.namespace, wait::DEADLINE).await?;
    scene.operator_catches_up().await?;
    Ok(going.namespace)
}

#[test]
fn no_request_of_the_operator_is_forbidden() -> Result<()> {
    alone(async |alone| {
        // The operator here does not run the other controller.
        let cluster = alone.testbed.cluster();
        for kinds in ["clusterrole,clusterrolebinding", "role,rolebinding"] {
            cluster.kubectl(&["delete", kinds, PEERPODCONFIG_ROLE, "--namespace", NAMESPACE]).await?;
        }
        let before = requests(&alone.scene())?.len();
        drained(alone).await?;
        let gone = Box::pin(all_decisions(&alone.scene())).await?;
        let requests = requests(&alone.scene())?.split_off(before);
        let kinds: std::collections::BTreeSet<_> =
            requests.iter().map(|request| format!("{} {}", request.verb, request.resource)).collect();
        for kind in
            ["delete peerpods", "patch peerpods", "patch peerpods/status", "create events", "get pods"]
        {
            assert!(kinds.contains(kind), "the scenario lacks {kind}: {kinds:?}");
        }
        // The refused events of a namespace that is being deleted.
        let expected = |request: &&Request| request.resource == "events" && request.namespace == gone;
        let forbidden = requests.iter().filter(|request| request.code == 403 && !expected(request));
        assert_eq!(forbidden.collect::<Vec<_>>(), Vec::<&Request>::new());
        Ok(())
    })
}

/// Runs `drain` as the operator, while there is a configuration that goes only later.
async fn drained(alone: &Alone<'_>) -> Result<()> {
    let configs: Api<PeerPodConfig> = Api::namespaced(alone.testbed.client(), NAMESPACE);
    let config = json!({
        "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig",
        "metadata": { "name": "config", "finalizers": ["test.example/stays"] },
        "spec": { "limit": 1, "nodeSelector": { "test.example/none": "" } },
    });
    configs.create(&PostParams::default(), &serde_json::from_value(config)?).await?;
    let drain = start_as(&alone.testbed.kubeconfig_of(install::NAME).await?, &["drain"])?;
    let going = |config: &PeerPodConfig| config.metadata.deletion_timestamp.is_some();
    wait::present(&configs, "config", "drain deletes it", wait::DEADLINE, going).await?;
    let released = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    configs.patch_metadata("config", &PatchParams::default(), &released).await?;
    succeeds(drain).await
}

fn requests(scene: &Scene<'_>) -> Result<Vec<Request>> {
    scene.testbed.audit()?.of_operator()
}
