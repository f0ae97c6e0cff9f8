//! The operator on a real control plane. KMM is only its CRD of the Module, which the tests install late.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")]

mod definition;
mod drift;

use std::{sync::LazyLock, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Pod};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use ptemplate::{
    NAME,
    api::{Ptemplate, PtemplateStatus},
    module::Module,
    owned::MANAGED_BY,
};
use serde_json::{Value, json};
use stage::{
    Shared, Stage,
    wait::{DEADLINE, eventually, gone, present},
};
use tokio::{
    sync::{OnceCell, RwLock},
    time::{Instant, sleep},
};

const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/manifests");
const KMM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cluster/kmm.yaml");

static SHARED: LazyLock<Shared> = LazyLock::new(|| {
    Shared::new(ptemplate::operator().unwrap(), MANIFESTS, env!("CARGO_BIN_EXE_ptemplate")).unwrap()
});

/// The tests install KMM once.
static INSTALLED: OnceCell<Early> = OnceCell::const_new();

/// The test that damages the definition has the cluster to itself.
static TURN: RwLock<()> = RwLock::const_new(());

/// What became of a Ptemplate that was created before KMM was installed.
struct Early {
    /// Its status while KMM was missing.
    before: PtemplateStatus,
    /// Whether its DaemonSet existed then.
    consumed: bool,
    /// How long after the installation its Module existed and the status said so.
    made: Result<Duration>,
}

/// A namespace of a test.
struct Scene<'a> {
    stage: &'a Stage,
    namespace: String,
    ptemplates: Api<Ptemplate>,
    daemon_sets: Api<DaemonSet>,
    modules: Api<Module>,
}

/// Runs a test with KMM.
fn test(test: impl AsyncFnOnce(&Scene) -> Result<()>) -> Result<()> {
    SHARED.test(async |stage| {
        let _turn = TURN.read().await;
        INSTALLED.get_or_try_init(|| install_kmm(stage)).await?;
        test(&Scene::new(stage).await?).await
    })
}

/// Installs KMM after the operator found that it is missing.
async fn install_kmm(stage: &Stage) -> Result<Early> {
    let scene = Scene::new(stage).await?;
    scene.create("early", json!({})).await?;
    let before = scene.told("early", "ModuleApplied", "KmmNotInstalled").await?;
    let consumed = scene.daemon_sets.get_opt("early-consumer").await?.is_some();
    let start = Instant::now();
    stage.kubectl(&["apply", "--server-side", "--filename", KMM]).await?;
    let made = async {
        scene.told("early", "ModuleApplied", "AsWanted").await?;
        scene.modules.get("early").await?;
        Ok(start.elapsed())
    };
    let made = made.await;
    stage.collect_new_kinds().await?;
    Ok(Early { before, consumed, made })
}

/// Status and reason of a condition.
fn condition<'a>(status: &'a PtemplateStatus, type_: &str) -> Option<(&'a str, &'a str)> {
    let found = status.conditions.iter().find(|it| it.type_ == type_)?;
    Some((&found.status, &found.reason))
}

impl<'a> Scene<'a> {
    async fn new(stage: &'a Stage) -> Result<Self> {
        let namespace = stage.namespace().await?;
        let ptemplates = Api::namespaced(stage.client(), &namespace);
        let daemon_sets = Api::namespaced(stage.client(), &namespace);
        let modules = Api::namespaced(stage.client(), &namespace);
        Ok(Self { stage, namespace, ptemplates, daemon_sets, modules })
    }

    /// A Ptemplate for the fake node, with these further fields.
    async fn create(&self, name: &str, mut spec: Value) -> Result<Ptemplate> {
        spec["selector"] = json!({ "kubernetes.io/hostname": "fake-0" });
        let (api, metadata) = ("pt.example.com/v1alpha1", json!({ "name": name }));
        let object = json!({ "apiVersion": api, "kind": "Ptemplate", "metadata": metadata, "spec": spec });
        Ok(self.ptemplates.create(&PostParams::default(), &serde_json::from_value(object)?).await?)
    }

    /// Waits until a condition has this reason; gives the status.
    async fn told(&self, name: &str, type_: &str, reason: &str) -> Result<PtemplateStatus> {
        let what = format!("{type_} is {reason}");
        let told = |it: &Ptemplate| {
            it.status.as_ref().and_then(|status| condition(status, type_)).is_some_and(|it| it.1 == reason)
        };
        present(&self.ptemplates, name, &what, DEADLINE, told).await?.status.context("it was there")
    }

    /// Waits until the status lists the consumer's Pod.
    async fn consumes(&self, name: &str) -> Result<Vec<String>> {
        let consumers = |it: &Ptemplate| it.status.clone().unwrap_or_default().consumers;
        let told = |it: &Ptemplate| !consumers(it).is_empty();
        Ok(consumers(&present(&self.ptemplates, name, "a consumer is told", DEADLINE, told).await?))
    }

    /// Waits until this namespace has so many Pods of consumers, and the operator counts those of all namespaces.
    async fn counted(&self, own: usize) -> Result<()> {
        let pods: Api<Pod> = Api::all(self.stage.client());
        let params = ListParams::default().labels(&format!("{MANAGED_BY}={NAME}"));
        eventually("the consumers' Pods are counted", DEADLINE, async || {
            let found = pods.list_metadata(&params).await?.items;
            let here =
                found.iter().filter(|pod| pod.namespace().as_deref() == Some(&*self.namespace)).count();
            ensure!(here == own, "{here} are in {}", self.namespace);
            let counted = self.stage.metrics().await?.sum("ptemplate_operator_consumer_pods", &[]);
            let all = f64::from(u32::try_from(found.len())?);
            ensure!((counted - all).abs() < 0.5, "the operator counts {counted} of {all}");
            Ok(())
        })
        .await
    }

    async fn patch_spec(&self, name: &str, spec: Value) -> kube::Result<Ptemplate> {
        let patch = Patch::Merge(json!({ "spec": spec }));
        self.ptemplates.patch(name, &PatchParams::default(), &patch).await
    }
}

#[test]
fn a_module_is_made_as_soon_as_kmm_is_installed() -> Result<()> {
    test(async |_| {
        let Early { before, consumed, made } = INSTALLED.get().context("KMM is not installed")?;
        let consumer = condition(before, "ConsumerApplied").context("the condition is missing")?;
        ensure!(consumer.0 == "True" && *consumed, "{before:?}");
        match made {
            // Without a watch of KMM's CRD it would take ten minutes.
            Ok(took) => ensure!(*took < Duration::from_secs(40), "the Module took {took:?}"),
            Err(error) => bail!("there is no Module: {error:#}"),
        }
        Ok(())
    })
}

#[test]
fn both_objects_follow_their_ptemplate_and_deletion_leaves_nothing() -> Result<()> {
    test(async |scene| {
        scene.create("a", json!({})).await?;
        let consumers = scene.consumes("a").await?;
        ensure!(consumers.len() == 1 && consumers[0].starts_with("a-consumer-"), "{consumers:?}");
        scene.told("a", "ModuleApplied", "AsWanted").await?;
        scene.patch_spec("a", json!({ "consumer": "mine", "maxdev": 7 })).await?;
        let image = |it: &DaemonSet| {
            let pod = it.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
            pod.is_some_and(|pod| pod.containers[0].image.as_deref() == Some("mine"))
        };
        present(&scene.daemon_sets, "a-consumer", "it has the new image", DEADLINE, image).await?;
        let parameters = |it: &Module| {
            json!(it.spec.fields)["moduleLoader"]["container"]["modprobe"]["parameters"]
                == json!(["max_dev=7"])
        };
        present(&scene.modules, "a", "it has the new parameter", DEADLINE, parameters).await?;
        scene.counted(1).await?;
        // One for each of the two specs, and those of other tests.
        let metrics = scene.stage.metrics().await?;
        ensure!(metrics.sum("ptemplate_operator_reconciles_total", &[]) > 1.5, "{}", metrics.text());
        scene.ptemplates.delete("a", &DeleteParams::default()).await?;
        gone(&scene.daemon_sets, "a-consumer", DEADLINE).await?;
        gone(&scene.modules, "a", DEADLINE).await?;
        scene.counted(0).await
    })
}

#[test]
fn both_spellings_are_accepted_and_a_contradiction_is_refused() -> Result<()> {
    test(async |scene| {
        let spellings = [
            ("consumer", "consumerimage", json!("mine"), json!("other")),
            ("imagePullSecret", "imageRepoSecret", json!({ "name": "key" }), json!({ "name": "other" })),
        ];
        for (number, (one, two, value, other)) in spellings.into_iter().enumerate() {
            for spec in [json!({ one: value }), json!({ two: value }), json!({ one: value, two: value })] {
                let ptemplate = scene.create(&format!("a-{number}"), spec).await?;
                let spec = (ptemplate.spec.consumer_image(), ptemplate.spec.pull_secret().map(|it| it.name));
                ensure!(spec.0 == "mine" || spec.1.as_deref() == Some("key"), "{spec:?}");
                scene.ptemplates.delete(&ptemplate.name_any(), &DeleteParams::default()).await?;
            }
            let error =
                scene.create("both", json!({ one: value, two: other })).await.unwrap_err().to_string();
            ensure!(error.contains(&format!("{one} and {two} are one field in two spellings")), "{error}");
        }
        Ok(())
    })
}

#[test]
fn a_selector_that_is_empty_or_that_no_label_can_match_is_refused() -> Result<()> {
    test(async |scene| {
        scene.create("a", json!({})).await?;
        let none = json!({ "selector": { "kubernetes.io/hostname": null } });
        let error = scene.patch_spec("a", none).await.unwrap_err().to_string();
        ensure!(error.contains("should have at least 1"), "{error}");
        let long = |prefix, name| format!("{}/{}", "x".repeat(prefix), "y".repeat(name));
        let selector = json!({ long(253, 63): "z".repeat(63), "a_B.c-d": "", "e.f/G": "H_i.j-k" });
        scene.patch_spec("a", json!({ "selector": selector })).await?;
        for key in [&*long(254, 1), &*long(1, 64), "", "/a", "a/", "a b", "-a", "A/b", "a/b/c"] {
            let error =
                scene.patch_spec("a", json!({ "selector": { key: "b" } })).await.unwrap_err().to_string();
            ensure!(error.contains("each key of the selector must be a label's"), "{key}: {error}");
        }
        for value in ["a b", "-a", "a/b"] {
            let error =
                scene.patch_spec("a", json!({ "selector": { "a": value } })).await.unwrap_err().to_string();
            ensure!(error.contains("spec.selector.a") && error.contains("should match"), "{value}: {error}");
        }
        Ok(())
    })
}

#[test]
fn nothing_is_written_when_nothing_changes() -> Result<()> {
    test(async |scene| {
        scene.create("a", json!({ "imagePullSecret": { "name": "key" }, "defaultmsg": "hello" })).await?;
        scene.told("a", "ModuleApplied", "AsWanted").await?;
        scene.consumes("a").await?;
        // Fields that other programs set stay.
        let version =
            Patch::Merge(json!({ "spec": { "moduleLoader": { "container": { "version": "1" } } } }));
        scene.modules.patch("a", &PatchParams::default(), &version).await?;
        let label = Patch::Merge(json!({ "metadata": { "labels": { "theirs": "yes" } } }));
        scene.daemon_sets.patch("a-consumer", &PatchParams::default(), &label).await?;
        sleep(Duration::from_secs(2)).await;
        let before = scene.stage.writes(&scene.namespace)?.len();
        sleep(Duration::from_secs(10)).await;
        let after = scene.stage.writes(&scene.namespace)?;
        ensure!(after.len() == before && before <= 5, "{after:?}");
        for made in ["modules", "daemonsets"] {
            ensure!(after.iter().filter(|it| it.resource == made).count() == 1, "{after:?}");
        }
        ensure!(scene.daemon_sets.get("a-consumer").await?.labels().contains_key("theirs"));
        let module = scene.modules.get("a").await?;
        ensure!(module.spec.fields["moduleLoader"]["container"]["version"] == "1", "{module:?}");
        Ok(())
    })
}

#[test]
fn an_object_of_another_program_stays_as_it_is() -> Result<()> {
    test(async |scene| {
        let labels = json!({ "app": "theirs" });
        let pod = json!({ "metadata": { "labels": labels }, "spec": { "containers": [{ "name": "a", "image": "a" }] } });
        let spec = json!({ "selector": { "matchLabels": labels }, "template": pod });
        let theirs = json!({ "metadata": { "name": "a-consumer" }, "spec": spec });
        let theirs: DaemonSet = serde_json::from_value(theirs)?;
        scene.daemon_sets.create(&PostParams::default(), &theirs).await?;
        scene.create("a", json!({})).await?;
        let status = scene.told("a", "ConsumerApplied", "NameTaken").await?;
        ensure!(condition(&status, "ModuleApplied") == Some(("True", "AsWanted")), "{status:?}");
        ensure!(scene.daemon_sets.get("a-consumer").await?.owner_references().is_empty());
        Ok(())
    })
}
