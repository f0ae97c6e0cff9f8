//! The admission webhook, called by the real API server: on this machine, under its own `ServiceAccount`, by its URL.

mod expiry;
mod injector;
mod listening;
mod metrics;
mod service;
mod trust;

use std::{net::Ipv4Addr, pin::pin, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use cluster::process::{Lifetime, Process};
use futures::StreamExt as _;
use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::MutatingWebhookConfiguration,
        core::v1::{Pod, ResourceQuota, Secret},
    },
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    runtime::{WatchStreamExt as _, watcher},
};
use peerpod_operator::{
    NAMESPACE,
    permissions::Permission,
    webhook::{
        certificates::{
            keeper::{CLUSTER_PERMISSIONS, LEASE, PERMISSIONS, SECRET, authorities},
            kept::blank,
        },
        marker::COUNTED,
        mutate::ANNOTATIONS,
        server::PATH,
    },
};
use serde_json::{Value, json};
use testbed::wait::{self, DEADLINE};
use tokio::task::JoinHandle;

use self::injector::Injector;
use crate::support::{PROGRAM, Scene, beside_others};

const VM: &str = "kata.peerpods.io/vm";
const READY: Duration = Duration::from_secs(30);

/// A webhook that runs, for the Pods of one namespace, which is also its own.
struct Webhook {
    process: Process,
    address: Ipv4Addr,
    configurations: Api<MutatingWebhookConfiguration>,
    name: String,
    trust: JoinHandle<()>,
    _dir: tempfile::TempDir,
}

impl Webhook {
    /// Starts the webhook without any certificate, and waits until the API server can call it.
    async fn start(scene: &Scene<'_>, arguments: &[&str]) -> Result<Self> {
        share(scene).await?;
        let webhook = Self::spawn(scene, arguments).await?;
        webhook.is_called(scene).await?;
        Ok(webhook)
    }

    /// Starts the webhook.
    async fn spawn(scene: &Scene<'_>, arguments: &[&str]) -> Result<Self> {
        let (namespace, dir) = (&scene.namespace, tempfile::tempdir()?);
        let address = address();
        let kubeconfig = service_account(scene).await?;
        let mut command = Command::new(PROGRAM);
        command.env("KUBECONFIG", kubeconfig).arg("webhook").arg(format!("--addr={address}:9443"));
        command.arg(format!("--health-addr={address}:8081")).arg(format!("--metrics-addr={address}:8080"));
        command.arg(format!("--namespace={namespace}")).arg(format!("--tls-names={address}"));
        command.arg(format!("--configurations=test={namespace}")).args(arguments);
        let process = Process::start("webhook", &command, dir.path(), Lifetime::Owned)?;
        // Those that inject call after this one.
        let name = format!("a-{namespace}");
        let url = format!("https://{address}:9443{PATH}");
        register(scene, &name, &url, None).await?;
        let configurations: Api<MutatingWebhookConfiguration> = Api::all(scene.testbed.client());
        let secrets: Api<Secret> = Api::namespaced(scene.testbed.client(), namespace);
        let trust = tokio::spawn(keep_trust(secrets, configurations.clone(), name.clone()));
        Ok(Self { process, address, configurations, name, trust, _dir: dir })
    }

    /// Waits until peer pods are changed. The API server itself takes a moment to hear of the webhook.
    async fn is_called(&self, scene: &Scene<'_>) -> Result<()> {
        wait::eventually("the API server calls the webhook", DEADLINE, async || {
            let pod = dry_run(scene, &peer_pod("probe", &json!([asks("a", &json!({}))]))).await?;
            ensure!(pod.annotations().contains_key(COUNTED), "the Pod is not changed");
            Ok(())
        })
        .await
        .with_context(|| self.process.log_tail())
    }

    /// Takes everything away that other tests could meet.
    async fn stop(self) -> Result<()> {
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
async fn share(scene: &Scene<'_>) -> Result<()> {
    let lease = json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": LEASE, "namespace": scene.namespace } });
    scene.testbed.apply("lease", &[lease]).await?;
    let secrets: Api<Secret> = Api::namespaced(scene.testbed.client(), &scene.namespace);
    secrets.create(&PostParams::default(), &blank(SECRET)).await?;
    Ok(())
}

/// Lets a webhook configuration trust the authorities in the Secret, as the operator does for its own.
async fn keep_trust(secrets: Api<Secret>, configurations: Api<MutatingWebhookConfiguration>, name: String) {
    let mut states = pin!(watcher::watch_object(secrets, SECRET).default_backoff());
    while let Some(state) = states.next().await {
        let Ok(Some(secret)) = state else { continue };
        let Some(authorities) = authorities(&secret) else { continue };
        let bundle =
            json!([{ "op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": authorities }]);
        let Ok(patch) = serde_json::from_value(bundle) else { continue };
        // Without it the API server does not call the webhook, which fails the test.
        let _ = configurations.patch(&name, &PatchParams::default(), &Patch::<()>::Json(patch)).await;
    }
}

/// An address of its own among 16 million, so that its ports are free.
fn address() -> Ipv4Addr {
    Ipv4Addr::new(127, fastrand::u8(1..), fastrand::u8(..), fastrand::u8(1..255))
}

/// The kubeconfig of a `ServiceAccount` with the webhook's rights in the namespace of the test, and no more.
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
async fn register(scene: &Scene<'_>, name: &str, url: &str, ca: Option<&str>) -> Result<()> {
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

fn asks(name: &str, resources: &Value) -> Value {
    json!({ "name": name, "image": "any", "resources": resources })
}

fn peer_pod(name: &str, containers: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": { "runtimeClassName": "kata-remote", "containers": containers },
    })
}

async fn dry_run(scene: &Scene<'_>, pod: &Value) -> Result<Pod> {
    create(scene, pod, &PostParams { dry_run: true, ..PostParams::default() }).await
}

async fn create(scene: &Scene<'_>, pod: &Value, params: &PostParams) -> Result<Pod> {
    let api: Api<Pod> = Api::namespaced(scene.testbed.client(), &scene.namespace);
    Ok(api.create(params, &serde_json::from_value(pod.clone())?).await?)
}

fn sizes(pod: &Pod) -> [Option<&str>; 3] {
    ANNOTATIONS.map(|key| pod.annotations().get(key).map(String::as_str))
}

/// The resources of every container, init containers first.
fn resources(pod: &Pod) -> Result<Vec<Value>> {
    let spec = pod.spec.as_ref().context("a Pod has a spec")?;
    let all = spec.init_containers.iter().flatten().chain(&spec.containers);
    all.map(|container| Ok(serde_json::to_value(container.resources.clone().unwrap_or_default())?)).collect()
}

#[test]
fn pods_become_peer_pods_whatever_limit_ranges_and_quotas_say() -> Result<()> {
    beside_others(async |scene| {
        let webhook = Webhook::start(scene, &[]).await?;
        let one_vm = json!({ "limits": { VM: "1" }, "requests": { VM: "1" } });
        let four = json!({ "limits": { "cpu": "4", "memory": "2Gi" } });
        let pod =
            create(scene, &peer_pod("plain", &json!([asks("a", &four)])), &PostParams::default()).await?;
        assert_eq!(sizes(&pod), [Some("4"), Some("2048"), None]);
        assert_eq!(resources(&pod)?, std::slice::from_ref(&one_vm));

        // Another runtime class does not reach it, and what is no quantity is told by the API server.
        let mut other = peer_pod("other", &json!([asks("a", &four)]));
        other["spec"].as_object_mut().context("a spec")?.remove("runtimeClassName");
        assert_eq!(sizes(&dry_run(scene, &other).await?), [None, None, None]);
        let negative = peer_pod("negative", &json!([asks("a", &json!({ "requests": { "cpu": "-1" } }))]));
        let problem = dry_run(scene, &negative).await.err().context("it is refused")?.to_string();
        assert!(problem.contains("is below zero"), "{problem}");

        // What is asked of the Pod as a whole.
        let mut whole = peer_pod("whole", &json!([asks("a", &json!({ "requests": { "cpu": "1" } }))]));
        whole["spec"]["resources"] = json!({ "limits": { "cpu": "3", "memory": "1Gi" } });
        let pod = dry_run(scene, &whole).await?;
        assert_eq!(sizes(&pod), [Some("3"), Some("1024"), None]);
        assert_eq!(resources(&pod)?, std::slice::from_ref(&one_vm));
        let left = pod.spec.as_ref().and_then(|spec| spec.resources.clone()).unwrap_or_default();
        assert_eq!((left.requests, left.limits), (None, None));

        // Defaults are filled in before the first look and after it: they count once, and do not stay.
        scene.testbed.apply("limits", &[limit_range(scene, &json!({ "default": { "cpu": "1" } }))]).await?;
        let pod = wait::eventually("the defaults are in force", DEADLINE, async || {
            let containers = json!([asks("a", &four), asks("b", &json!({}))]);
            let pod = dry_run(scene, &peer_pod("defaults", &containers)).await?;
            ensure!(sizes(&pod)[0] == Some("5"), "{:?}", sizes(&pod));
            Ok(pod)
        })
        .await?;
        assert_eq!(resources(&pod)?, [one_vm.clone(), json!({})]);

        // A minimum, a maximum and a ratio refuse every peer pod. Where something was filled in the webhook's warning says
        // why; for Pods as a whole nothing is.
        for (kind, limit, refused) in [
            ("Container", json!({ "min": { "cpu": "100m" } }), "minimum cpu usage per Container is 100m"),
            (
                "Container",
                json!({ "max": { "cpu": "8" } }),
                "maximum cpu usage per Container is 8.  No limit is",
            ),
            (
                "Pod",
                json!({ "max": { "cpu": "8" } }),
                "maximum cpu usage per Pod is 8.  No limit is specified",
            ),
            (
                "Pod",
                json!({ "maxLimitRequestRatio": { "cpu": "2" } }),
                "cpu max limit to request ratio per Pod is 2",
            ),
        ] {
            let mut range = limit_range(scene, &limit);
            range["spec"]["limits"][0]["type"] = kind.into();
            scene.kubectl(&["delete", "limitrange", "limits"]).await?;
            scene.testbed.apply("limits", &[range]).await?;
            wait::eventually("the limit is in force, and explained", DEADLINE, async || {
                let problem = refusal(scene, &peer_pod("limited", &json!([asks("a", &four)]))).await?;
                ensure!(problem.contains(refused), "{problem}");
                let told = problem.contains("A LimitRange with min, max or ratio");
                ensure!(told == (kind == "Container"), "{problem}");
                Ok(())
            })
            .await?;
        }
        scene.kubectl(&["delete", "limitrange", "limits"]).await?;

        // A quota of cpu wants every container to name some, which the warning says where there are defaults, too; one of
        // VMs counts them.
        scene.testbed.apply("limits", &[limit_range(scene, &json!({ "default": { "cpu": "1" } }))]).await?;
        let quota = |hard: Value| {
            json!({ "apiVersion": "v1", "kind": "ResourceQuota", "spec": { "hard": hard },
                "metadata": { "name": "quota", "namespace": scene.namespace } })
        };
        for (hard, words) in [
            (
                json!({ "requests.cpu": "100" }),
                ["must specify requests.cpu", "a ResourceQuota of cpu or memory, refuse"],
            ),
            (
                json!({ "requests.kata.peerpods.io/vm": "1" }),
                ["exceeded quota", "requests.kata.peerpods.io/vm=1"],
            ),
        ] {
            scene.testbed.apply("quota", &[quota(hard.clone())]).await?;
            let quotas: Api<ResourceQuota> = Api::namespaced(scene.testbed.client(), &scene.namespace);
            let counted = |quota: &ResourceQuota| {
                let status =
                    serde_json::to_value(quota.status.as_ref().and_then(|status| status.hard.clone()));
                status.is_ok_and(|status| status == hard)
            };
            wait::present(&quotas, "quota", "the quota is counted", DEADLINE, counted).await?;
            wait::eventually("the quota refuses the Pod", DEADLINE, async || {
                let problem = refusal(scene, &peer_pod("quota", &json!([asks("a", &four)]))).await?;
                ensure!(words.iter().all(|words| problem.contains(words)), "{problem}");
                Ok(())
            })
            .await?;
            scene.kubectl(&["delete", "resourcequota", "quota"]).await?;
        }
        webhook.stop().await
    })
}

/// What kubectl says when the Pod is refused, with the warnings.
async fn refusal(scene: &Scene<'_>, pod: &Value) -> Result<String> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), pod.to_string())?;
    let path = file.path().to_str().context("the file's name is UTF-8")?;
    let outcome = scene.kubectl(&["create", "--dry-run=server", "--filename", path]).await;
    Ok(outcome.err().context("it is not refused")?.to_string())
}

fn limit_range(scene: &Scene<'_>, of_containers: &Value) -> Value {
    let mut limit = of_containers.clone();
    limit["type"] = "Container".into();
    json!({ "apiVersion": "v1", "kind": "LimitRange", "spec": { "limits": [limit] },
        "metadata": { "name": "limits", "namespace": scene.namespace } })
}

#[test]
fn what_another_webhook_injects_afterwards_is_counted_too() -> Result<()> {
    beside_others(async |scene| {
        let webhook = Webhook::start(scene, &[]).await?;
        let sidecar = json!({
            "name": "mesh", "image": "any", "restartPolicy": "Always",
            "resources": { "requests": { "cpu": "500m", "memory": "1Gi" }, "limits": { "cpu": "1", "memory": "1Gi" } },
        });
        let patch = json!([{ "op": "add", "path": "/spec/initContainers", "value": [sidecar] }]);
        let injector = Injector::start(patch).await?;
        let name = format!("z-{}", scene.namespace);
        register(scene, &name, &injector.url(), Some(injector.authority())).await?;
        let containers = json!([asks("a", &json!({ "limits": { "cpu": "2", "memory": "2Gi" } }))]);
        let pod = wait::eventually("the other webhook is called", DEADLINE, async || {
            let pod = dry_run(scene, &peer_pod("meshed", &containers)).await?;
            ensure!(resources(&pod)?.len() == 2, "nothing is injected");
            Ok(pod)
        })
        .await?;
        assert_eq!(sizes(&pod), [Some("3"), Some("3072"), None]);
        assert_eq!(resources(&pod)?, [json!({}), json!({ "limits": { VM: "1" }, "requests": { VM: "1" } })]);
        webhook.configurations.delete(&name, &DeleteParams::default()).await?;
        webhook.stop().await
    })
}

#[test]
fn certificates_are_renewed_under_load_and_no_request_fails() -> Result<()> {
    beside_others(async |scene| {
        // Another certificate every 10 s, which is trusted for 750 ms before it is shown.
        let webhook = Webhook::start(scene, &["--tls-lifetime=15s"]).await?;
        let secrets: Api<Secret> = Api::namespaced(scene.testbed.client(), &scene.namespace);
        let shown = async || {
            let secret = secrets.get(SECRET).await?;
            let certificate = secret.data.and_then(|data| data.get("tls.crt").cloned());
            certificate.filter(|certificate| !certificate.0.is_empty()).context("a certificate")
        };
        let mut seen = vec![shown().await?];
        let until = tokio::time::Instant::now() + 3 * DEADLINE;
        while seen.len() < 3 {
            ensure!(tokio::time::Instant::now() < until, "it is not renewed\n{}", webhook.process.log_tail());
            let pod = dry_run(scene, &peer_pod("load", &json!([asks("a", &json!({}))]))).await;
            pod.with_context(|| {
                format!("after {} certificates: {}", seen.len(), webhook.process.log_tail())
            })?;
            let now = shown().await?;
            if seen.last() != Some(&now) {
                seen.push(now);
            }
        }
        // Whoever deletes the Secret wants another certificate, and that too without a failure.
        secrets.delete(SECRET, &DeleteParams::default()).await?;
        secrets.create(&PostParams::default(), &blank(SECRET)).await?;
        let deleted = seen.last().context("a certificate")?.clone();
        while shown().await.ok().is_none_or(|shown| shown == deleted) {
            ensure!(
                tokio::time::Instant::now() < until,
                "there is no other one\n{}",
                webhook.process.log_tail()
            );
            dry_run(scene, &peer_pod("load", &json!([asks("a", &json!({}))]))).await?;
        }
        webhook.stop().await
    })
}

#[test]
fn without_its_secret_it_waits_as_it_may_make_none() -> Result<()> {
    beside_others(async |scene| {
        let webhook = Webhook::spawn(scene, &[]).await?;
        wait::eventually("it says what it waits for", DEADLINE, async || {
            let log = webhook.process.log_tail();
            for words in ["the Secret does not exist", "the lease could not be written"] {
                ensure!(log.contains(words), "{words:?} is not in:\n{log}");
            }
            Ok(())
        })
        .await?;
        // By a Secret of this kind it would get another account's token.
        let account = format!("webhook-{}", scene.namespace);
        let client = scene.testbed.client_of(&account).await?;
        let mut secret = blank(SECRET);
        secret.type_ = Some("kubernetes.io/service-account-token".to_owned());
        let secrets: Api<Secret> = Api::namespaced(client, &scene.namespace);
        let refused = secrets.create(&PostParams::default(), &secret).await;
        ensure!(matches!(&refused, Err(kube::Error::Api(status)) if status.code == 403), "{refused:?}");
        let problem = refusal(scene, &peer_pod("early", &json!([asks("a", &json!({}))]))).await?;
        ensure!(problem.contains("failed calling webhook"), "{problem}");
        share(scene).await?;
        webhook.is_called(scene).await?;
        webhook.stop().await
    })
}
