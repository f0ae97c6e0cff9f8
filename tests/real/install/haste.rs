//! `kubectl delete -k` without `drain` before it, once and twice, and the objects that the guard keeps for a `PeerPodConfig`.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use cluster::Cluster;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, CustomResourceExt as _, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    core::Request,
};
use peerpod_operator::{
    NAMESPACE,
    api::v1alpha1::{PeerPod, PeerPodConfig},
    install::removal,
    names::PLACES,
    peerpodconfig::FINALIZER,
};
use serde_json::json;
use testbed::{
    Operator, OperatorOptions, Settings, Testbed,
    wait::{self, DEADLINE},
};

use crate::{
    install::kustomize::{LIBVIRT, allow_removal, forbid_removal, path, with_component},
    peerpodconfig::configuration::stage::{Stage, configuring},
    support::{Alone, PROGRAM, alone, without_operator},
};

/// The operator cannot undo a configuration without these objects.
const NEEDED: [&str; 15] = [
    "deployment/peerpod-operator",
    "serviceaccount/peerpod-operator",
    "role/peerpod-operator",
    "rolebinding/peerpod-operator",
    "clusterrole/peerpod-operator",
    "clusterrolebinding/peerpod-operator",
    "role/peerpod-operator-peerpodconfig",
    "rolebinding/peerpod-operator-peerpodconfig",
    "clusterrole/peerpod-operator-peerpodconfig",
    "clusterrolebinding/peerpod-operator-peerpodconfig",
    "serviceaccount/cloud-api-adaptor",
    "clusterrole/peerpod-recorder",
    "clusterrolebinding/peerpod-recorder",
    "serviceaccount/peerpod-webhook",
    "namespace/confidential-containers-system",
];

#[test]
fn a_hasty_removal_keeps_machines_and_a_reinstallation_deletes_due_ones() -> Result<()> {
    alone(async |alone| {
        let vm = alone.scene().pod_with_vm("web").await?;
        let cluster = alone.testbed.cluster();
        cluster.kubectl(&["apply", "--server-side", "--force-conflicts", "-k", LIBVIRT]).await?;
        until_refused(cluster, "namespace/confidential-containers-system").await?;
        let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let refusal = collection_refused(cluster, crds, "app.kubernetes.io%2Fpart-of=peer-pods").await?;
        ensure!(refusal.contains("allow-removal=true"), "{refusal}");

        let refusal = refused(cluster, LIBVIRT).await?;
        for kept in [
            "namespaces \"confidential-containers-system\" is forbidden",
            "\"peerpods.confidentialcontainers.org\" is forbidden",
            "\"peerpodconfigs.confidentialcontainers.org\" is forbidden",
            "install it again first",
            "kubectl get peerpods,peerpodconfigs -A",
            "allow-removal=true",
        ] {
            ensure!(refusal.contains(kept), "{kept}: {refusal}");
        }
        wait::eventually("everything else is gone", DEADLINE, async || {
            let left =
                ["get", "all,cm,secret,sa,role,rolebinding", "--namespace", NAMESPACE, "--output=name"];
            let left = cluster.kubectl(&left).await?;
            // The record of places stays as long as PeerPods do: the next operator needs it to find the machines.
            let record = format!("configmap/{PLACES}");
            ensure!(left.lines().all(|it| it == record || !it.contains("peer")), "{left}");
            Ok(())
        })
        .await?;
        // The machine runs, and is recorded.
        let peerpods: Api<PeerPod> = Api::namespaced(alone.testbed.client(), &alone.namespace);
        let peerpod = peerpods.get(&vm.name()).await?;
        ensure!(peerpod.metadata.deletion_timestamp.is_none() && !peerpod.finalizers().is_empty());
        alone.scene().lives(&vm).await?;

        // The Pod is deleted while no operator runs. After the reinstallation the operator finds the machine by its record.
        alone.operator.kill().await?;
        alone.scene().pods.delete("web").await?;
        alone.scene().lives(&vm).await?;
        let dir = tempfile::tempdir()?;
        let _operator = installed_again(alone, dir.path()).await?;
        alone.scene().reaped(&vm).await
    })
}

#[test]
fn a_second_hasty_removal_deletes_the_crds_and_no_machine() -> Result<()> {
    alone(async |alone| {
        let (stays, goes) =
            (alone.scene().pod_with_vm("stays").await?, alone.scene().pod_with_vm("goes").await?);
        let cluster = alone.testbed.cluster();
        cluster.kubectl(&["apply", "--server-side", "--force-conflicts", "-k", LIBVIRT]).await?;
        until_refused(cluster, "namespace/confidential-containers-system").await?;
        refused(cluster, LIBVIRT).await?;
        alone.operator.kill().await?;
        // The API server notices the end of a policy a moment later.
        let twice = ["delete", "-k", LIBVIRT, "--ignore-not-found", "--wait=false"];
        wait::eventually("nothing is refused", DEADLINE, async || cluster.kubectl(&twice).await).await?;
        for vm in [&stays, &goes] {
            alone.scene().going(&vm.name()).await?;
        }
        let namespaces: Api<Namespace> = Api::all(alone.testbed.client());
        wait::gone(&namespaces, NAMESPACE, DEADLINE).await?;

        // The API server accepts everything while it deletes the definition, which waits for the PeerPods.
        let dir = tempfile::tempdir()?;
        let operator = installed_again(alone, dir.path()).await?;
        alone.scene().held(&stays.name(), "WaitingForPod").await?;
        alone.scene().pods.delete("goes").await?;
        alone.scene().reaped(&goes).await?;
        alone.scene().lives(&stays).await?;
        alone.scene().pods.delete("stays").await?;
        // The definition is deleted with the last PeerPod.
        wait::gone(&alone.testbed.crds(), PeerPod::crd_name(), DEADLINE).await?;
        alone.scene().vanished(&stays).await?;
        alone.testbed.install_objects().await?;
        operator.stop().await.map(drop)
    })
}

/// Deletes a kustomization without draining first. Fails unless the API server refuses, and returns the refusals.
async fn refused(cluster: &Cluster, folder: &str) -> Result<String> {
    let refusal = cluster.kubectl(&["delete", "-k", folder, "--timeout=180s"]).await.err();
    let refusal = format!("{:#}", refusal.context("everything was deleted")?);
    ensure!(!refusal.contains("timed out"), "{refusal}");
    Ok(refusal)
}

/// Would delete all objects of a kind with this label. Fails unless the API server refuses, and returns the refusal.
async fn collection_refused(cluster: &Cluster, path: &str, label: &str) -> Result<String> {
    let refusal =
        delete_collection(cluster, path, label).await.err().context("all of them may be deleted")?;
    Ok(format!("{refusal:#}"))
}

async fn delete_collection(cluster: &Cluster, path: &str, label: &str) -> Result<String> {
    let path = format!("{path}?labelSelector={label}&dryRun=All");
    cluster.kubectl(&["delete", "--raw", &path]).await
}

/// Installs everything again, and starts another operator in this folder.
async fn installed_again(alone: &Alone<'_>, dir: &Path) -> Result<Operator> {
    let apply = ["apply", "--server-side", "--force-conflicts", "-k", LIBVIRT];
    alone.testbed.cluster().kubectl(&apply).await?;
    let settings = Settings::libvirt(&alone.libvirtd.host().uri().to_string());
    Operator::start(alone.testbed, &OperatorOptions::new(PROGRAM, dir, settings)).await
}

#[test]
fn a_hasty_removal_keeps_the_operator_until_configurations_are_cleaned_up() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 2).await?;
        let cluster = alone.testbed.cluster();
        let label = serde_json::to_string(&stage.label)?;
        let patch = format!(
            "patches:\n- target: {{kind: PeerPodConfig}}\n  patch: |\n    - {{op: replace, path: /spec/nodeSelector, \
             value: {label}}}\n    - {{op: add, path: /spec/admission, value: {{mode: None}}}}\n"
        );
        let folder = with_component("peerpodconfig", &patch)?;
        let folder = path(&folder)?;
        cluster.kubectl(&["apply", "--server-side", "--force-conflicts", "-k", folder]).await?;
        // The overlay has settings of its own.
        stage.mount(&mut alone.operator).await?;
        stage.shares(&[Some(5), Some(5)]).await?;

        until_refused(cluster, NEEDED[0]).await?;
        let refusal = refused(cluster, folder).await?;
        for kind in [
            "deployments.apps",
            "serviceaccounts",
            "roles.rbac.authorization.k8s.io",
            "rolebindings.rbac.authorization.k8s.io",
            "clusterroles.rbac.authorization.k8s.io",
            "clusterrolebindings.rbac.authorization.k8s.io",
        ] {
            let kept = format!("{kind} \"peerpod-operator\" is forbidden");
            ensure!(refusal.contains(&kept), "{kept}: {refusal}");
        }
        ensure!(refusal.contains("the PeerPodConfig config exists"), "{refusal}");
        // kubectl does not wait after refusals.
        wait::gone(&stage.configs, "config", DEADLINE).await?;
        stage.shares(&[None, None]).await?;

        // Without a configuration the guard lets the operator be deleted, once it knows that there is none.
        cluster.kubectl(&["apply", "--server-side", "--force-conflicts", "-k", LIBVIRT]).await?;
        allow_removal(cluster).await?;
        let delete = ["delete", "-k", LIBVIRT, "--ignore-not-found", "--timeout=180s"];
        cluster.kubectl(&delete).await?;
        stage.leave().await?;
        alone.testbed.install_objects().await
    })
}

/// Waits until the API server refuses to delete this object. The API server applies a new policy or a new definition only a moment
/// after it stored it. Also withdraws the permission that another test gave on this cluster.
async fn until_refused(cluster: &Cluster, object: &str) -> Result<()> {
    forbid_removal(cluster).await?;
    wait::eventually(&format!("{object} is kept"), DEADLINE, async || {
        let delete = ["delete", object, "--namespace", NAMESPACE, "--dry-run=server"];
        let refusal = cluster.kubectl(&delete).await.err().context("it may be deleted")?;
        ensure!(format!("{refusal:#}").contains("is forbidden"), "{refusal:#}");
        Ok(())
    })
    .await
}

/// Fails if the API server refuses to delete this object of the operator's namespace, or of none.
async fn may_be_deleted(client: &Client, object: &str) -> Result<()> {
    let (kind, name) = object.split_once('/').context("a kind and a name")?;
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let path = match kind {
        "namespace" => "/api/v1/namespaces".to_owned(),
        "serviceaccount" => format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts"),
        "deployment" => format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments"),
        "role" | "rolebinding" => format!("{rbac}/namespaces/{NAMESPACE}/{kind}s"),
        _ => format!("{rbac}/{kind}s"),
    };
    let request = Request::new(path).delete(name, &DeleteParams::background().dry_run())?;
    client.request_text(request).await?;
    Ok(())
}

/// Waits until the API server refuses to delete exactly these of the needed objects and of another Deployment.
async fn until_kept(testbed: &Testbed, expected: &[&str]) -> Result<()> {
    let client = testbed.client();
    wait::eventually(&format!("{expected:?} stay"), DEADLINE, async || {
        let mut kept = Vec::new();
        for object in NEEDED.into_iter().chain(["deployment/another"]) {
            if let Err(refusal) = may_be_deleted(&client, object).await {
                let refusal = format!("{refusal:#}");
                ensure!(refusal.contains("the PeerPodConfig config exists"), "{object}: {refusal}");
                kept.push(object);
            }
        }
        ensure!(kept == expected, "{kept:?}");
        Ok(())
    })
    .await
}

/// Makes all objects that an operator needs, of the same names, in another namespace.
async fn namesake(cluster: &Cluster, namespace: &str) -> Result<()> {
    for create in [
        "deployment peerpod-operator --image=any --replicas=0",
        "serviceaccount peerpod-operator",
        "role peerpod-operator --verb=get --resource=pods",
        "rolebinding peerpod-operator --role=peerpod-operator --serviceaccount=default:default",
    ] {
        let create: Vec<_> =
            ["create", "--namespace", namespace].into_iter().chain(create.split(' ')).collect();
        cluster.kubectl(&create).await?;
    }
    Ok(())
}

#[test]
fn the_guard_keeps_an_operator_with_configurations_and_allows_changes() -> Result<()> {
    without_operator(async |testbed| {
        let cluster = testbed.cluster();
        // Another policy protects the objects that record machines, so allow their removal.
        let definition = PeerPodConfig::crd_name();
        let allow = removal::ALLOW_ANNOTATION;
        for object in [["namespace", NAMESPACE], ["crd", definition]] {
            cluster.kubectl(&["annotate", object[0], object[1], &format!("{allow}=true")]).await?;
        }
        for name in ["peerpod-operator", "another"] {
            let create =
                ["create", "deployment", name, "--image=any", "--replicas=0", "--namespace", NAMESPACE];
            cluster.kubectl(&create).await?;
        }
        until_kept(testbed, &[]).await?;
        let configure = async |namespace: &str, finalizer: &str| {
            let configs: Api<PeerPodConfig> = Api::namespaced(testbed.client(), namespace);
            let config = serde_json::from_value(json!({
                "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig",
                "metadata": { "name": "config", "finalizers": [finalizer] }, "spec": {},
            }))?;
            configs.create(&PostParams::default(), &config).await?;
            anyhow::Ok(configs)
        };
        let finalizers = async |configs: &Api<PeerPodConfig>, finalizers: &[&str]| {
            let patch = Patch::Merge(json!({ "metadata": { "finalizers": finalizers } }));
            configs.patch("config", &PatchParams::default(), &patch).await
        };
        let here = configure(NAMESPACE, FINALIZER).await?;
        until_kept(testbed, &NEEDED).await?;
        let deployments = format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments");
        let refusal = collection_refused(cluster, &deployments, "app=peerpod-operator").await?;
        ensure!(refusal.contains("the PeerPodConfig config exists"), "{refusal}");
        delete_collection(cluster, &deployments, "app=another").await?;
        let change = ["annotate", NEEDED[0], "any=other", "--namespace", NAMESPACE];
        cluster.kubectl(&change).await?;
        let other_namespace = testbed.namespace("namesake").await?;
        namesake(cluster, &other_namespace).await?;
        for object in &NEEDED[..4] {
            cluster.kubectl(&["delete", object, "--namespace", &other_namespace]).await?;
        }

        // The guard ignores configurations that wait only for other programs, or for an operator in another namespace.
        let elsewhere = configure(&testbed.namespace("elsewhere").await?, FINALIZER).await?;
        finalizers(&here, &["example.com/other"]).await?;
        until_kept(testbed, &[]).await?;
        finalizers(&here, &[FINALIZER]).await?;
        until_kept(testbed, &NEEDED).await?;

        // Without the definition there is no configuration.
        for configs in [&here, &elsewhere] {
            finalizers(configs, &[]).await?;
        }
        cluster.kubectl(&["delete", "crd", definition, "--timeout=180s"]).await?;
        until_kept(testbed, &[]).await?;
        let both = ["delete", "deployment", "peerpod-operator", "another", "--namespace", NAMESPACE];
        cluster.kubectl(&both).await?;
        cluster.kubectl(&["annotate", "namespace", NAMESPACE, &format!("{allow}-")]).await?;
        testbed.install_objects().await
    })
}
