//! A webhook on this machine, and the Pods that it reviews.

use std::{net::Ipv4Addr, pin::pin, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use cluster::{
    address::loopback,
    process::{Lifetime, Process},
};
use futures::StreamExt as _;
use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::MutatingWebhookConfiguration,
        core::v1::{Pod, Secret},
    },
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    runtime::{WatchStreamExt as _, watcher},
};
use operator_kit::Permission;
use peerpod_operator::{
    NAMESPACE,
    webhook::{
        PATH,
        certificates::{
            managed_secret::blank,
            rotation::{CLUSTER_PERMISSIONS, LEASE, PERMISSIONS, SECRET, authorities},
        },
        marker::COUNTED,
        sizing::ANNOTATIONS,
    },
};
use serde_json::{Value, json};
use testbed::wait::{self, DEADLINE};
use tokio::task::JoinHandle;

use crate::support::{PROGRAM, Scene};

pub(super) const VM: &str = "kata.peerpods.io/vm";
pub(super) const READY: Duration = Duration::from_secs(60);
/// The pause of a client between two requests under load. Clients with a much shorter one take the processors from what they load. The
/// steps under load last several seconds each, so there are dozens of requests in each.
pub const LOAD_PAUSE: Duration = Duration::from_millis(100);

/// A running webhook for the Pods of one namespace, which is also its own.
pub struct Webhook {
    pub process: Process,
    pub(super) address: Ipv4Addr,
    pub(super) configurations: Api<MutatingWebhookConfiguration>,
    name: String,
    trust: JoinHandle<()>,
    _dir: tempfile::TempDir,
}

impl Webhook {
    /// Starts the webhook without a certificate, and waits until the API server can call it.
    pub async fn start(scene: &Scene<'_>, arguments: &[&str]) -> Result<Self> {
        share(scene).await?;
        let webhook = Self::spawn(scene, arguments).await?;
        webhook.is_called(scene).await?;
        Ok(webhook)
    }

    /// Starts the webhook.
    pub(super) async fn spawn(scene: &Scene<'_>, arguments: &[&str]) -> Result<Self> {
        let (namespace, dir) = (&scene.namespace, tempfile::tempdir()?);
        let address = loopback();
        let kubeconfig = service_account(scene).await?;
        let mut command = Command::new(PROGRAM);
        command.env("KUBECONFIG", kubeconfig).arg("webhook").arg(format!("--addr={address}:9443"));
        command.arg(format!("--health-addr={address}:8081")).arg(format!("--metrics-addr={address}:8080"));
        command.arg(format!("--namespace={namespace}")).arg(format!("--tls-names={address}"));
        command.arg(format!("--configurations=test={namespace}")).args(arguments);
        let process = Process::start("webhook", &command, dir.path(), Lifetime::Owned)?;
        // Webhooks are called in the order of their names: this one before those that inject.
        let name = format!("a-{namespace}");
        let url = format!("https://{address}:9443{PATH}");
        register(scene, &name, &url, None).await?;
        let configurations: Api<MutatingWebhookConfiguration> = Api::all(scene.testbed.client());
        let secrets: Api<Secret> = Api::namespaced(scene.testbed.client(), namespace);
        let trust = tokio::spawn(keep_trust(secrets, configurations.clone(), name.clone()));
        Ok(Self { process, address, configurations, name, trust, _dir: dir })
    }

    /// Waits until the webhook changes peer pods. The API server notices a new webhook only a moment later.
    pub(super) async fn is_called(&self, scene: &Scene<'_>) -> Result<()> {
        wait::eventually("the API server calls the webhook", DEADLINE, async || {
            let pod = dry_run(scene, &peer_pod("probe", &json!([asks("a", &json!({}))]))).await?;
            ensure!(pod.annotations().contains_key(COUNTED), "the Pod is not changed");
            Ok(())
        })
        .await
        .with_context(|| self.process.log_tail())
    }

    /// Removes everything that other tests could notice.
    pub async fn stop(self) -> Result<()> {
        self.configurations.delete(&self.name, &DeleteParams::default()).await?;
        let status = self.process.stop(READY).await?.context("how it ended is not known")?;
        ensure!(status.success(), "the webhook ended with {status}\n{}", self.process.log_tail());
        Ok(())
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        self.trust.abort();
    }
}

/// Makes the Secret that the webhook fills, and its Lease, as the operator does.
pub(super) async fn share(scene: &Scene<'_>) -> Result<()> {
    let lease = json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": LEASE, "namespace": scene.namespace } });
    scene.testbed.apply("lease", &[lease]).await?;
    let secrets: Api<Secret> = Api::namespaced(scene.testbed.client(), &scene.namespace);
    secrets.create(&PostParams::default(), &blank(SECRET)).await?;
    Ok(())
}

/// Makes a webhook configuration trust the authorities in the Secret, as the operator does for its own.
async fn keep_trust(secrets: Api<Secret>, configurations: Api<MutatingWebhookConfiguration>, name: String) {
    let mut states = pin!(watcher::watch_object(secrets, SECRET).default_backoff());
    while let Some(state) = states.next().await {
        let Ok(Some(secret)) = state else { continue };
        let Some(authorities) = authorities(&secret) else { continue };
        let bundle =
            json!([{ "op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": authorities }]);
        let Ok(patch) = serde_json::from_value(bundle) else { continue };
        // Without the authorities the API server does not call the webhook, and the test fails.
        let _ = configurations.patch(&name, &PatchParams::default(), &Patch::<()>::Json(patch)).await;
    }
}

/// The kubeconfig of a `ServiceAccount` with exactly the webhook's rights in the test's namespace.
async fn service_account(scene: &Scene<'_>) -> Result<std::path::PathBuf> {
    let (namespace, name) = (&scene.namespace, format!("webhook-{}", scene.namespace));
    let rules = |permissions: &[Permission]| {
        let rule = |it: &Permission| json!({ "apiGroups": [it.group], "resources": it.resources, "verbs": it.verbs, "resourceNames": it.names });
        permissions.iter().map(rule).collect::<Vec<_>>()
    };
    let rbac = "rbac.authorization.k8s.io";
    let subjects = json!([{ "kind": "ServiceAccount", "name": name, "namespace": NAMESPACE }]);
    let role = |kind: &str| json!({ "apiGroup": rbac, "kind": kind, "name": name });
    let objects = [
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": name, "namespace": NAMESPACE } }),
        json!({ "apiVersion": format!("{rbac}/v1"), "kind": "Role", "metadata": { "name": name, "namespace": namespace },
            "rules": rules(PERMISSIONS) }),
        json!({ "apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding", "metadata": { "name": name, "namespace": namespace },
            "roleRef": role("Role"), "subjects": subjects }),
        json!({ "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole", "metadata": { "name": name },
            "rules": rules(CLUSTER_PERMISSIONS) }),
        json!({ "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding", "metadata": { "name": name },
            "roleRef": role("ClusterRole"), "subjects": subjects }),
        json!({ "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": { "name": "kata-remote" },
            "handler": "kata-remote" }),
    ];
    scene.testbed.apply(&name, &objects).await?;
    scene.testbed.kubeconfig_of(&name).await
}

/// Registers a webhook for the peer pods of the test's namespace.
pub(super) async fn register(scene: &Scene<'_>, name: &str, url: &str, ca: Option<&str>) -> Result<()> {
    let mut client = json!({ "url": url });
    if let Some(ca) = ca {
        client["caBundle"] = serde_json::to_value(ByteString(ca.as_bytes().to_vec()))?;
    }
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": { "name": name, "labels": { "test": scene.namespace } },
        "webhooks": [{
            "name": "mwebhook.peerpods.io",
            "clientConfig": client,
            "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail",
            "reinvocationPolicy": "IfNeeded", "timeoutSeconds": 10,
            "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"] }],
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": scene.namespace } },
            "matchConditions": [{
                "name": "runtime-class", "expression": "object.spec.?runtimeClassName.orValue('') == 'kata-remote'",
            }],
        }],
    });
    let api: Api<MutatingWebhookConfiguration> = Api::all(scene.testbed.client());
    api.create(&PostParams::default(), &serde_json::from_value(configuration)?).await?;
    Ok(())
}

pub fn asks(name: &str, resources: &Value) -> Value {
    json!({ "name": name, "image": "any", "resources": resources })
}

pub fn peer_pod(name: &str, containers: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": { "runtimeClassName": "kata-remote", "containers": containers },
    })
}

pub async fn dry_run(scene: &Scene<'_>, pod: &Value) -> Result<Pod> {
    create(scene, pod, &PostParams { dry_run: true, ..PostParams::default() }).await
}

pub(super) async fn create(scene: &Scene<'_>, pod: &Value, params: &PostParams) -> Result<Pod> {
    let api: Api<Pod> = Api::namespaced(scene.testbed.client(), &scene.namespace);
    Ok(api.create(params, &serde_json::from_value(pod.clone())?).await?)
}

pub(super) fn sizes(pod: &Pod) -> [Option<&str>; 3] {
    ANNOTATIONS.map(|key| pod.annotations().get(key).map(String::as_str))
}

/// The resources of every container, init containers first.
pub(super) fn resources(pod: &Pod) -> Result<Vec<Value>> {
    let spec = pod.spec.as_ref().context("a Pod has a spec")?;
    let all = spec.init_containers.iter().flatten().chain(&spec.containers);
    all.map(|container| Ok(serde_json::to_value(container.resources.clone().unwrap_or_default())?)).collect()
}
