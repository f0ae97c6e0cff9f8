//! The real API server calls the admission webhook: on this machine, under the webhook's own `ServiceAccount`, by its URL.

mod expiry;
mod injector;
mod listening;
mod memory;
mod metrics;
mod service;
pub mod stage;
mod trust;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{ResourceQuota, Secret};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use peerpod_operator::webhook::certificates::{managed_secret::blank, rotation::SECRET};
use serde_json::{Value, json};
use testbed::wait::{self, DEADLINE};

use self::{
    injector::Injector,
    stage::{VM, Webhook, asks, create, dry_run, peer_pod, register, resources, share, sizes},
};
use crate::support::{Scene, beside_others};

#[test]
fn pods_become_peer_pods_under_limit_ranges_and_quotas() -> Result<()> {
    beside_others(async |scene| {
        let webhook = Webhook::start(scene, &[]).await?;
        let one_vm = json!({ "limits": { VM: "1" }, "requests": { VM: "1" } });
        let four = json!({ "limits": { "cpu": "4", "memory": "2Gi" } });
        let pod =
            create(scene, &peer_pod("plain", &json!([asks("a", &four)])), &PostParams::default()).await?;
        assert_eq!(sizes(&pod), [Some("4"), Some("2048"), None]);
        assert_eq!(resources(&pod)?, std::slice::from_ref(&one_vm));

        // The API server does not call it for another runtime class, and itself refuses an invalid quantity.
        let mut other = peer_pod("other", &json!([asks("a", &four)]));
        other["spec"].as_object_mut().context("a spec")?.remove("runtimeClassName");
        assert_eq!(sizes(&dry_run(scene, &other).await?), [None, None, None]);
        let negative = peer_pod("negative", &json!([asks("a", &json!({ "requests": { "cpu": "-1" } }))]));
        let problem = dry_run(scene, &negative).await.err().context("it is refused")?.to_string();
        assert!(problem.contains("is negative"), "{problem}");

        // Resources of the Pod as a whole.
        let mut whole = peer_pod("whole", &json!([asks("a", &json!({ "requests": { "cpu": "1" } }))]));
        whole["spec"]["resources"] = json!({ "limits": { "cpu": "3", "memory": "1Gi" } });
        let pod = dry_run(scene, &whole).await?;
        assert_eq!(sizes(&pod), [Some("3"), Some("1024"), None]);
        assert_eq!(resources(&pod)?, std::slice::from_ref(&one_vm));
        let left = pod.spec.as_ref().and_then(|spec| spec.resources.clone()).unwrap_or_default();
        assert_eq!((left.requests, left.limits), (None, None));

        // A LimitRange fills in defaults before the first look and after it. The webhook counts them once and then removes them.
        scene.testbed.apply("limits", &[limit_range(scene, &json!({ "default": { "cpu": "1" } }))]).await?;
        let pod = wait::eventually("the defaults are in force", DEADLINE, async || {
            let containers = json!([asks("a", &four), asks("b", &json!({}))]);
            let pod = dry_run(scene, &peer_pod("defaults", &containers)).await?;
            ensure!(sizes(&pod)[0] == Some("5"), "{:?}", sizes(&pod));
            Ok(pod)
        })
        .await?;
        assert_eq!(resources(&pod)?, [one_vm.clone(), json!({})]);

        // A minimum, a maximum and a ratio make the API server refuse every peer pod. The webhook's warning says why if defaults were
        // filled in. For Pods as a whole there are none.
        for (kind, limit, refused) in [
            ("Container", json!({ "min": { "cpu": "100m" } }), "minimum cpu usage per Container is 100m"),
            (
                "Container",
                json!({ "max": { "cpu": "8" } }),
                "maximum cpu usage per Container is 8.  No limit is",
            ),
            (
                "Container",
                json!({ "max": { "ephemeral-storage": "8Gi" } }),
                "maximum ephemeral-storage usage per Container is 8Gi.  No limit is",
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

        // A quota of cpu makes the API server demand an amount of every container. The warning says so, also if there are defaults. A
        // quota of VMs counts VMs.
        scene.testbed.apply("limits", &[limit_range(scene, &json!({ "default": { "cpu": "1" } }))]).await?;
        let quota = |hard: Value| {
            json!({ "apiVersion": "v1", "kind": "ResourceQuota", "spec": { "hard": hard },
                "metadata": { "name": "quota", "namespace": scene.namespace } })
        };
        for (hard, words) in [
            (
                json!({ "requests.cpu": "100" }),
                ["must specify requests.cpu", "a ResourceQuota of cpu or memory, rejects"],
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

/// kubectl's message about the refused Pod, with the warnings.
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
fn containers_that_another_webhook_injects_later_are_counted() -> Result<()> {
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
fn a_webhook_that_may_not_make_its_secret_waits_for_it() -> Result<()> {
    beside_others(async |scene| {
        let webhook = Webhook::spawn(scene, &[]).await?;
        wait::eventually("it says what it waits for", DEADLINE, async || {
            let log = webhook.process.log_tail();
            for words in ["the Secret does not exist", "the lease cannot be written"] {
                ensure!(log.contains(words), "{words:?} is not in:\n{log}");
            }
            Ok(())
        })
        .await?;
        // A Secret of this type would get another account's token.
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
