//! The operator on a real control plane. A fake node's kubelet says of each Pod that it runs.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::BTreeSet, sync::LazyLock, time::Duration};

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use podset::api::{PodSet, PodSetSpec};
use serde_json::json;
use stage::{
    Shared, Stage,
    wait::{DEADLINE, eventually, gone, present},
};
use tokio::{sync::RwLock, time::sleep};

static SHARED: LazyLock<Shared> = LazyLock::new(|| {
    let manifests = concat!(env!("CARGO_MANIFEST_DIR"), "/manifests");
    Shared::new(podset::operator().unwrap(), manifests, env!("CARGO_BIN_EXE_podset")).unwrap()
});

/// A namespace with the PodSet `web`.
struct Scene<'a> {
    stage: &'a Stage,
    namespace: String,
    podsets: Api<PodSet>,
    pods: Api<Pod>,
}

/// Each test shares it, and the one that kills the operator takes it: an operator that starts anew may write again what the former one
/// wrote last, and other tests count writes.
static OPERATOR: RwLock<()> = RwLock::const_new(());

fn test(test: impl AsyncFnOnce(&Scene) -> Result<()>) -> Result<()> {
    SHARED.test(async |stage| {
        let _shared = OPERATOR.read().await;
        test(&Scene::new(stage).await?).await
    })
}

/// Runs a test that may kill the operator.
fn alone(test: impl AsyncFnOnce(&Scene) -> Result<()>) -> Result<()> {
    SHARED.test(async |stage| {
        let _alone = OPERATOR.write().await;
        test(&Scene::new(stage).await?).await
    })
}

impl<'a> Scene<'a> {
    async fn new(stage: &'a Stage) -> Result<Self> {
        let namespace = stage.namespace().await?;
        let podsets = Api::namespaced(stage.client(), &namespace);
        let pods = Api::namespaced(stage.client(), &namespace);
        Ok(Self { stage, namespace, podsets, pods })
    }

    async fn create(&self, name: &str, replicas: i32) -> Result<PodSet> {
        let podset = PodSet::new(name, PodSetSpec { replicas });
        Ok(self.podsets.create(&PostParams::default(), &podset).await?)
    }

    async fn scale(&self, replicas: i32) -> Result<()> {
        let patch = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
        self.podsets.patch("web", &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// The names of the Pods that are not being deleted.
    async fn living(&self, name: &str) -> Result<BTreeSet<String>> {
        let params = ListParams::default().labels(&format!("app={name}"));
        let pods = self.pods.list(&params).await?.into_iter();
        Ok(pods.filter(|pod| pod.metadata.deletion_timestamp.is_none()).map(|pod| pod.name_any()).collect())
    }

    /// Waits until the status of a PodSet has so many Pods and these are there; gives their names.
    async fn reaches(&self, name: &str, replicas: i32) -> Result<BTreeSet<String>> {
        eventually(&format!("{name} has {replicas} Pods"), DEADLINE, async || {
            let status = self.podsets.get(name).await?.status.unwrap_or_default();
            let (told, living) = (status.pod_names.into_iter().collect(), self.living(name).await?);
            ensure!(
                status.available_replicas == replicas && living == told,
                "told {told:?}, living {living:?}"
            );
            Ok(living)
        })
        .await
    }

    async fn run(&self, pods: &BTreeSet<String>) -> Result<()> {
        let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone());
        for name in pods {
            present(&self.pods, name, "it runs", DEADLINE, |pod| phase(pod).as_deref() == Some("Running"))
                .await?;
        }
        Ok(())
    }

    /// How often the operator wrote in this namespace: `create pods`, …
    fn writes(&self, what: &str) -> Result<usize> {
        let writes = self.stage.writes(&self.namespace)?;
        Ok(writes.iter().filter(|it| format!("{} {}", it.verb, it.resource) == what).count())
    }
}

#[test]
fn pods_follow_the_number_up_and_down() -> Result<()> {
    test(async |scene| {
        scene.create("web", 3).await?;
        let three = scene.reaches("web", 3).await?;
        scene.run(&three).await?;
        // The newest ones are to go, and creation times are whole seconds.
        sleep(Duration::from_secs(1)).await;
        scene.scale(5).await?;
        let five = scene.reaches("web", 5).await?;
        ensure!(five.is_superset(&three), "{five:?} lacks some of {three:?}");
        scene.scale(1).await?;
        let one = scene.reaches("web", 1).await?;
        ensure!(one.is_subset(&three), "{one:?} is none of the oldest, {three:?}");
        ensure!((scene.writes("create pods")?, scene.writes("delete pods")?) == (5, 4), "not each Pod once");
        // Other tests add to the metrics.
        let metrics = scene.stage.metrics().await?;
        ensure!(metrics.sum("podset_operator_reconciles_total", &[]) > 2.5);
        let pods = |verb| metrics.sum("podset_operator_pods_total", &[("verb", verb)]);
        ensure!(pods("create") > 4.5 && pods("delete") > 3.5, "{}", metrics.text());

        let own = format!("--namespace={}", scene.namespace);
        scene.stage.kubectl(&["scale", "podset/web", "--replicas=2", &own]).await?;
        scene.reaches("web", 2).await?;
        let scale = scene.podsets.get_scale("web").await?.status.expect("it has a status");
        ensure!(
            (scale.replicas, scale.selector.as_deref()) == (2, Some("app=web,version=v0.1")),
            "{scale:?}"
        );
        Ok(())
    })
}

#[test]
fn a_pod_that_is_killed_or_ends_is_replaced() -> Result<()> {
    test(async |scene| {
        scene.create("web", 2).await?;
        let before = scene.reaches("web", 2).await?;
        scene.run(&before).await?;
        let killed = before.first().expect("there are two");
        scene.pods.delete(killed, &DeleteParams::default().grace_period(0)).await?;
        let replaced = |now: &BTreeSet<String>, old: &str| now.len() == 2 && !now.contains(old);
        eventually("it is replaced", DEADLINE, async || {
            let now = scene.reaches("web", 2).await?;
            ensure!(replaced(&now, killed), "{now:?}");
            Ok(())
        })
        .await?;
        let ended = before.last().expect("there are two");
        let failed = Patch::Merge(json!({ "status": { "phase": "Failed" } }));
        scene.pods.patch_status(ended, &PatchParams::default(), &failed).await?;
        eventually("the one that failed no longer counts", DEADLINE, async || {
            let names = scene.podsets.get("web").await?.status.unwrap_or_default().pod_names;
            ensure!(replaced(&names.iter().cloned().collect(), ended), "{names:?}");
            Ok(())
        })
        .await
    })
}

#[test]
fn a_pod_that_loses_its_owner_or_its_label_is_replaced_at_once() -> Result<()> {
    test(async |scene| {
        scene.create("web", 2).await?;
        let before = scene.reaches("web", 2).await?;
        let without_owner = json!({ "metadata": { "ownerReferences": null } });
        let without_label = json!({ "metadata": { "labels": { "app": null } } });
        for (name, change) in before.iter().zip([without_owner, without_label]) {
            scene.pods.patch(name, &PatchParams::default(), &Patch::Merge(change)).await?;
        }
        eventually("both are replaced", DEADLINE, async || {
            let names = scene.podsets.get("web").await?.status.unwrap_or_default().pod_names;
            ensure!(names.len() == 2 && !names.iter().any(|name| before.contains(name)), "{names:?}");
            Ok(())
        })
        .await
    })
}

#[test]
fn replicas_out_of_range_are_refused_and_the_default_is_one() -> Result<()> {
    test(async |scene| {
        for (replicas, bound) in
            [(0, "should be greater than or equal to 1"), (11, "should be less than or equal to 10")]
        {
            let error = scene.create("web", replicas).await.unwrap_err().to_string();
            ensure!(error.contains("spec.replicas") && error.contains(bound), "{error}");
        }
        let none = json!({ "apiVersion": "app.example.com/v1alpha1", "kind": "PodSet", "metadata": { "name": "web" }, "spec": {} });
        scene.podsets.create(&PostParams::default(), &serde_json::from_value(none)?).await?;
        scene.reaches("web", 1).await.map(drop)
    })
}

#[test]
fn a_foreign_pod_with_the_same_labels_is_left_alone() -> Result<()> {
    test(async |scene| {
        let foreign = json!({
            "metadata": { "name": "foreign", "labels": { "app": "web", "version": "v0.1" } },
            "spec": { "containers": [{ "name": "a", "image": "a" }] },
        });
        let foreign = scene.pods.create(&PostParams::default(), &serde_json::from_value(foreign)?).await?;
        scene.create("web", 2).await?;
        let told = eventually("two Pods are told", DEADLINE, async || {
            let told = scene.podsets.get("web").await?.status.unwrap_or_default().pod_names;
            ensure!(told.len() == 2, "{told:?}");
            Ok(told)
        })
        .await?;
        ensure!(!told.contains(&"foreign".to_owned()), "{told:?}");
        scene.podsets.delete("web", &DeleteParams::default()).await?;
        for name in told {
            gone(&scene.pods, &name, DEADLINE).await?;
        }
        let left = scene.pods.get("foreign").await?;
        ensure!(left.uid() == foreign.uid() && left.owner_references().is_empty(), "{left:?}");
        Ok(())
    })
}

#[test]
fn nothing_is_written_when_nothing_changes() -> Result<()> {
    test(async |scene| {
        scene.create("web", 3).await?;
        let pods = scene.reaches("web", 3).await?;
        scene.run(&pods).await?;
        sleep(Duration::from_secs(1)).await;
        let before = scene.stage.writes(&scene.namespace)?.len();
        let label = Patch::Merge(json!({ "metadata": { "labels": { "touched": "yes" } } }));
        scene.podsets.patch("web", &PatchParams::default(), &label).await?;
        for name in &pods {
            let annotation = Patch::Merge(json!({ "metadata": { "annotations": { "touched": "yes" } } }));
            scene.pods.patch(name, &PatchParams::default(), &annotation).await?;
        }
        sleep(Duration::from_secs(5)).await;
        let after = scene.stage.writes(&scene.namespace)?;
        ensure!(after.len() == before, "{:?}", &after[before..]);
        // While the cache lags, each Pod's event has the same status written again, which changes nothing.
        ensure!(scene.writes("patch podsets/status")? <= 2 * pods.len(), "{after:?}");
        Ok(())
    })
}

#[test]
fn fifty_podsets_get_each_pod_once_although_the_operator_is_killed() -> Result<()> {
    alone(async |scene| {
        let names: Vec<_> = (0..50).map(|number| format!("many-{number}")).collect();
        try_join_all(names.iter().map(|name| scene.create(name, 3))).await?;
        eventually("some Pods are there", DEADLINE, async || {
            ensure!(scene.pods.list_metadata(&ListParams::default()).await?.items.len() > 20);
            Ok(())
        })
        .await?;
        scene.stage.kill_operator().await?;
        for name in &names {
            scene.reaches(name, 3).await?;
        }
        // A Pod too many may be deleted already, so the list does not show it. The log of the API server does. It may lack a Pod if the
        // operator was killed before the answer.
        let writes = scene.stage.writes(&scene.namespace)?.into_iter();
        let created = writes.filter(|it| it.verb == "create" && it.resource == "pods" && it.code == 201);
        let created = created.count();
        ensure!(created <= 150, "some were made twice: {created} were created");
        ensure!(created > 130, "the log has only {created} of 150");
        Ok(())
    })
}
