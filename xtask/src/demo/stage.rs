//! The stage of the stories.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use cluster::process::Lifetime;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::{Api, api::PostParams};
use peerpod_operator::{
    api::v1alpha1::{PeerPod, RUNTIME_CLASS},
    install,
    peerpodconfig::selection::WORKER_LABEL,
};
use peers::libvirt::Libvirtd;
use serde_json::json;
use testbed::{
    Caa, FakeNodes, Kubelet, OperatorOptions, OperatorPods, Options, RealNode, Settings, Testbed,
    peerpod_object,
    wait::{self, DEADLINE},
};

use super::{kept, operator::Operator};

/// The number of nodes for peer pods.
const WORKERS: usize = 3;

/// The namespace of the stories' Pods.
pub(super) const NAMESPACE: &str = "shop";

/// A control plane with the generated installation, libvirtd, the operator, and the players of other roles.
pub(super) struct Stage {
    pub(super) dir: PathBuf,
    pub(super) operator: Operator,
    pub(super) libvirtd: Libvirtd,
    pub(super) testbed: Testbed,
    pub(super) caa: Caa,
    pub(super) kubelet: Kubelet,
    /// Nodes for peer pods, with kwok as their kubelet.
    pub(super) workers: FakeNodes,
}

impl Stage {
    /// Sets the stage up with all its files in `dir`. If it is to stay, its processes are recorded there, so that they can be ended later.
    pub(super) async fn start(
        dir: &Path,
        lifetime: Lifetime,
        program: PathBuf,
        real_node: bool,
    ) -> Result<Self> {
        let (testbed, libvirtd, operator) = if real_node {
            Box::pin(with_pods(dir, lifetime, &program)).await?
        } else {
            Box::pin(with_process(dir, lifetime, program)).await?
        };
        let caa = Caa::install(&testbed).await?;
        make_namespace(&testbed).await?;
        admit_a_peerpod(&testbed).await.context("trying whether PeerPods can be made")?;
        let kubelet = Kubelet::join(testbed.client(), "node").await?;
        let worker = [(WORKER_LABEL.to_owned(), String::new())].into();
        let workers = FakeNodes::join(testbed.client(), "worker", WORKERS, &worker).await?;
        let dir = dir.to_owned();
        Ok(Self { dir, operator, libvirtd, testbed, caa, kubelet, workers })
    }
}

/// The operator as users run it: Pods of its Deployment on a real node, which reach libvirt by TCP.
async fn with_pods(dir: &Path, lifetime: Lifetime, program: &Path) -> Result<(Testbed, Libvirtd, Operator)> {
    let RealNode { mut testbed, libvirtd, uri } = RealNode::start(dir, program, lifetime).await?;
    testbed.install_objects().await.context("installing the operator's objects")?;
    testbed.collect_new_kinds().await?;
    prepare_for_configurations(&testbed, Settings::libvirt(&uri)).await?;
    // The namespace is also for cloud-api-adaptor, which is privileged. The operator's own Pods are not.
    let enforce = async |profile: &str| {
        let namespace = peerpod_operator::NAMESPACE;
        let label = format!("pod-security.kubernetes.io/enforce={profile}");
        testbed.cluster().kubectl(&["label", "--overwrite", "namespace", namespace, &label]).await.map(drop)
    };
    enforce("restricted").await?;
    let mut objects = Vec::new();
    for manifest in install::objects(&install::Options::default())? {
        if manifest.object["kind"] == "Deployment" {
            objects.push(manifest.object);
        }
    }
    testbed.apply("operator", &objects).await?;
    let operator = OperatorPods::new(testbed.client());
    operator.available().await?;
    enforce("privileged").await?;
    Ok((testbed, libvirtd, Operator::Pods(operator)))
}

/// The operator as a process of this machine, with fake nodes only.
async fn with_process(
    dir: &Path,
    lifetime: Lifetime,
    program: PathBuf,
) -> Result<(Testbed, Libvirtd, Operator)> {
    let libvirtd = Libvirtd::start(&dir.join("libvirtd"), lifetime).await?;
    let options = Options { lifetime, audit: true, ..Options::new(dir.join("testbed")) };
    let testbed = Testbed::start(&options).await?;
    let settings = Settings::libvirt(&libvirtd.host().uri().to_string());
    prepare_for_configurations(&testbed, settings.clone()).await?;
    let options = OperatorOptions::new(program, kept::operator_dir(dir), settings);
    let arguments = vec!["--controllers=peerpod,peerpodconfig".to_owned()];
    let options = OperatorOptions { lifetime, arguments, ..options };
    let operator = testbed::Operator::spawn(&testbed, &options).await?;
    if lifetime == Lifetime::Detached {
        kept::note(dir, &operator)?;
    }
    operator.ready().await?;
    Ok((testbed, libvirtd, Operator::Process(Box::new(operator))))
}

async fn make_namespace(testbed: &Testbed) -> Result<()> {
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } });
    testbed.apply(NAMESPACE, &[namespace]).await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(testbed.client(), NAMESPACE);
    wait::present(&accounts, "default", "Pods can be made", DEADLINE, |_| true).await?;
    Ok(())
}

/// Makes the objects that must exist before a `PeerPodConfig`: the settings of cloud-api-adaptor and the operator, and the runtime
/// class that Kata Containers installs.
async fn prepare_for_configurations(testbed: &Testbed, settings: Settings) -> Result<()> {
    let metadata = |name: &str| json!({ "name": name, "namespace": peerpod_operator::NAMESPACE });
    let objects = [
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata("peer-pods-cm"),
            "data": settings.config_map,
        }),
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata("peer-pods-secret") }),
        json!({
            "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
            "metadata": { "name": RUNTIME_CLASS }, "handler": RUNTIME_CLASS,
        }),
    ];
    testbed.apply("settings", &objects).await
}

/// Creates a PeerPod by dry run. The first PeerPod takes the API server's admission of owner references two seconds, for discovery. No
/// story should begin with that delay.
async fn admit_a_peerpod(testbed: &Testbed) -> Result<()> {
    let nobody = json!({ "metadata": { "name": "nobody", "namespace": NAMESPACE, "uid": "none" } });
    let nobody: Pod = serde_json::from_value(nobody)?;
    let peerpod: PeerPod = serde_json::from_value(peerpod_object(&nobody, "libvirt", ""))?;
    let api: Api<PeerPod> = Api::namespaced(testbed.client(), NAMESPACE);
    api.create(&PostParams { dry_run: true, ..PostParams::default() }, &peerpod).await?;
    Ok(())
}
