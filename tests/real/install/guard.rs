//! Who may write what in a PeerPod. The generated admission policy runs on the real API server, against a user with all ordinary rights
//! to PeerPods but none of the rights that the guard asks for.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, ResourceExt as _};
use peerpod_operator::{
    NAMESPACE,
    api::v1alpha1::{FINALIZER, PeerPod},
    install::guard::{self, Action},
};
use serde_json::{Value, json, to_value};
use testbed::{Kubelet, Testbed, Vm, peerpod_object, wait};

use crate::{
    install::rights::all_decisions,
    support::{Scene, alone, beside_others},
};

const STRANGER: &str = "stranger";

/// The guard's message, up to the verb, about the stranger.
const NAMED: &str = "system:serviceaccount:confidential-containers-system:stranger may not";

/// A user with all of Kubernetes' own rights to PeerPods, and the right to read Pods.
struct Stranger {
    kubeconfig: PathBuf,
}

impl Stranger {
    async fn join(testbed: &Testbed) -> Result<Self> {
        let may = |group: &str, resources: &[&str], verbs: &[&str]| json!({ "apiGroups": [group], "resources": resources, "verbs": verbs });
        let ordinary = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
        let objects = [
            json!({
                "apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": { "name": STRANGER, "namespace": NAMESPACE },
            }),
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                "metadata": { "name": STRANGER },
                "rules": [
                    may("confidentialcontainers.org", &["peerpods"], &ordinary),
                    may("", &["pods"], &["get", "list"]),
                ],
            }),
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                "metadata": { "name": STRANGER },
                "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": STRANGER },
                "subjects": [{ "kind": "ServiceAccount", "name": STRANGER, "namespace": NAMESPACE }],
            }),
        ];
        testbed.apply(STRANGER, &objects).await?;
        Ok(Self { kubeconfig: testbed.kubeconfig_of(STRANGER).await? })
    }

    /// kubectl under the stranger's own rights. kubectl reports a warning as a failure, although the write took place.
    async fn kubectl(&self, scene: &Scene<'_>, arguments: &[&str]) -> Result<String> {
        let kubeconfig = self.kubeconfig.to_str().context("UTF-8")?;
        let own = ["--warnings-as-errors", "--kubeconfig", kubeconfig];
        scene.kubectl(&[&own, arguments].concat()).await
    }

    /// The API server's answer to this command.
    async fn told(&self, scene: &Scene<'_>, arguments: &[&str]) -> Result<String> {
        let answer = self.kubectl(scene, arguments).await;
        let error = answer.err().with_context(|| format!("nothing was said to {arguments:?}"))?;
        Ok(format!("{error:#}"))
    }

    /// Creates an object.
    async fn create(&self, scene: &Scene<'_>, object: &Value, options: &[&str]) -> Result<String> {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("peerpod.json");
        std::fs::write(&file, object.to_string())?;
        let arguments = ["create", "--filename", file.to_str().context("UTF-8")?];
        self.told(scene, &[&arguments, options].concat()).await
    }
}

/// Sets the guard to refuse, and waits until it does.
async fn deny(scene: &Scene<'_>, stranger: &Stranger) -> Result<()> {
    scene.testbed.apply("guard", &[to_value(guard::binding(Action::Deny))?]).await?;
    let pod = scene.pods.run("bait").await?;
    let object = peerpod_object(&pod, "libvirt", "");
    wait::eventually("the guard refuses", wait::DEADLINE, async || {
        let told = stranger.create(scene, &unblocking(object.clone()), &["--dry-run=server"]).await?;
        ensure!(told.contains("denied request"), "{told}");
        Ok(())
    })
    .await
}

/// The same without `blockOwnerDeletion`, which takes a right to the owner.
fn unblocking(mut peerpod: Value) -> Value {
    peerpod["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] = false.into();
    peerpod
}

/// Writes to a PeerPod that the guard forbids a stranger, and the words of its answer.
fn attacks(other_pod_uid: &str) -> [(&'static str, String, &'static str); 5] {
    let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": "other", "uid": other_pod_uid });
    let release = json!({ "peerpods.confidentialcontainers.org/release": "abandon" });
    [
        (
            "re-points",
            json!({ "metadata": { "ownerReferences": [owner] } }).to_string(),
            "change its spec or owner",
        ),
        (
            "disowns",
            json!({ "metadata": { "ownerReferences": null } }).to_string(),
            "remove the owner of a PeerPod",
        ),
        (
            "holds",
            json!({ "metadata": { "finalizers": [FINALIZER, "x/y"] } }).to_string(),
            "add a finalizer to a PeerPod",
        ),
        (
            "strips",
            json!({ "metadata": { "finalizers": ["x/y"] } }).to_string(),
            "remove the finalizer peer.pod/finalizer",
        ),
        ("abandons", json!({ "metadata": { "annotations": release } }).to_string(), "abandon the VM"),
    ]
}

async fn a_strangers_writes_are_refused(scene: &Scene<'_>, stranger: &Stranger) -> Result<()> {
    let (vm, other) = (scene.pod_with_vm("web").await?, scene.pods.run("other").await?);
    let told = stranger.create(scene, &unblocking(peerpod_object(&other, "libvirt", "17")), &[]).await?;
    for words in [NAMED, "create a PeerPod", "record peerpods", "bind that role to the account"] {
        assert!(told.contains(words), "{words:?} is not in {told}");
    }
    // The schema forbids to change or remove a spec, and not to add one.
    let mut bare = peerpod_object(&other, "libvirt", "17");
    bare.as_object_mut().and_then(|bare| bare.remove("spec")).context("a spec")?;
    let bare = scene.caa.create(bare).await?.name_any();
    let attacks = attacks(&other.uid().context("an uid")?);
    let mut attacks = Vec::from(attacks.map(|(attack, patch, words)| (vm.name(), attack, patch, words)));
    let spec = json!({ "spec": { "instanceID": "17" } }).to_string();
    attacks.push((bare, "fills", spec, "change its spec or owner"));
    for (name, attack, patch, words) in attacks {
        let arguments = ["patch", "peerpod", &name, "--type=merge", "--patch", &patch];
        let told = stranger.told(scene, &arguments).await?;
        for words in ["Forbidden", "denied request", NAMED, words] {
            assert!(told.contains(words), "{attack}: {words:?} is not in {told}");
        }
    }
    let unchanged = scene.peerpods.get(&vm.name()).await?;
    assert_eq!(unchanged.resource_version(), vm.peerpod.resource_version());
    // Every user with the right to write may set fields that have no effect.
    for harmless in [["label", "a=b"], ["annotate", "peerpods.confidentialcontainers.org/release=later"]] {
        let [verb, value] = harmless;
        stranger.kubectl(scene, &[verb, "peerpod", &vm.name(), value]).await?;
    }
    scene.pods.delete("web").await?;
    scene.reaped(&vm).await
}

/// Deletes a Pod as its owner would. The garbage collector does the rest.
async fn delete_pod(scene: &Scene<'_>, name: &str, cascade: &str) -> Result<Vm> {
    let vm = scene.pod_with_vm(name).await?;
    scene.kubectl(&["delete", "pod", name, &format!("--cascade={cascade}")]).await?;
    Ok(vm)
}

#[test]
fn the_deny_mode_refuses_strangers_and_lets_the_usual_writers_pass() -> Result<()> {
    alone(async |alone| {
        let scene = alone.scene();
        let stranger = Stranger::join(scene.testbed).await?;
        deny(&scene, &stranger).await?;
        a_strangers_writes_are_refused(&scene, &stranger).await?;

        // cloud-api-adaptor records and releases; the garbage collector deletes, and a Pod waits for its PeerPod.
        let vm = scene.pod_with_vm("stopped").await?;
        scene.caa.stop_vm(&vm, scene.host).await?;
        scene.pods.delete("stopped").await?;
        scene.released(&vm.name()).await?;
        let vm = delete_pod(&scene, "background", "background").await?;
        scene.reaped(&vm).await?;
        let kubelet = Kubelet::join(scene.testbed.client(), "foreground").await?;
        let pod = kubelet.run(&scene.namespace, "foreground", 300).await?;
        let vm = scene.caa.start_vm(&pod, scene.host).await?;
        scene.kubectl(&["delete", "pod", "foreground", "--cascade=foreground", "--wait=false"]).await?;
        scene.held(&vm.name(), "WaitingForPod").await?;
        kubelet.end(&pod).await?;
        scene.reaped(&vm).await?;
        kubelet.remove(&pod).await?;
        wait::gone(scene.pods.api(), "foreground", wait::DEADLINE).await?;
        kubelet.leave().await?;
        // The API server orphans the PeerPod. An administrator must decide what happens to it.
        let orphan = delete_pod(&scene, "orphan", "orphan").await?.name();
        let what = "the PeerPod is an orphan";
        let orphaned = |it: &PeerPod| it.owner_references().is_empty();
        wait::present(&scene.peerpods, &orphan, what, wait::DEADLINE, orphaned).await?;
        scene.abandon(&orphan).await?;
        scene.kubectl(&["delete", "peerpod", &orphan, "--wait=false"]).await?;
        scene.released(&orphan).await?;
        // Kubernetes deletes a namespace with everything in it.
        let going = scene.elsewhere().await?;
        let vm = going.pod_with_vm("web").await?;
        scene.testbed.cluster().kubectl(&["delete", "namespace", &going.namespace, "--wait=false"]).await?;
        let namespaces: Api<Namespace> = Api::all(scene.testbed.client());
        wait::gone(&namespaces, &going.namespace, wait::DEADLINE).await?;
        going.vanished(&vm).await?;
        // The guard must also allow everything that the operator does.
        Box::pin(all_decisions(&scene)).await.map(drop)
    })
}

#[test]
fn by_default_only_a_stranger_is_warned() -> Result<()> {
    beside_others(async |scene| {
        let stranger = Stranger::join(scene.testbed).await?;
        let (web, other) = (scene.pods.run("web").await?, scene.pods.run("other").await?);
        // kubectl cannot tell an answer with a warning from a refusal. Only the object shows which it was.
        let told = stranger.create(scene, &unblocking(peerpod_object(&web, "nonsense", "i-1")), &[]).await?;
        assert!(told.contains("Warning") && told.contains(NAMED), "{told}");
        let created = scene.peerpods.list(&kube::api::ListParams::default()).await?.items;
        let name = created.first().context("it was created")?.name_any();
        for (attack, patch, words) in attacks(&other.uid().context("an uid")?) {
            let arguments = ["patch", "peerpod", &name, "--type=merge", "--patch", &patch];
            let told = stranger.told(scene, &arguments).await?;
            for words in ["Warning", NAMED, words] {
                assert!(told.contains(words), "{attack}: {words:?} is not in {told}");
            }
        }
        let changed = scene.peerpods.get(&name).await?;
        assert!(changed.owner_references().is_empty(), "{changed:?}");
        assert_eq!((changed.finalizers(), changed.annotations().len()), (&["x/y".to_owned()][..], 1));
        let recorded = scene.caa.record(&web, "nonsense", "i-2").await?.name_any();
        let harmless = ["--warnings-as-errors", "label", "peerpod", &recorded, "a=b"];
        scene.kubectl(&harmless).await.map(drop)
    })
}
