//! From `helm upgrade --install` to the first reaped machine, on a real node that already has the image.

use std::{
    fmt::Debug,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use cluster::progress::Progress;
use k8s_openapi::{
    api::{apps::v1::Deployment, core::v1::Namespace},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{DeleteParams, PostParams},
};
use peerpod_operator::{
    NAMESPACE,
    api::v1alpha1::PeerPod,
    install::{NAME, removal::ALLOW_ANNOTATION},
};
use serde::{Serialize, de::DeserializeOwned};
use testbed::{Pods, RealNode, Shell, peerpod_object, vm_name, wait};

use super::{
    figures::{Figures, median_and_slowest},
    real_node,
};

/// The number of installations, each into a cluster without remains of the last one.
const RUNS: usize = 5;
/// The seconds until the first machine is reaped: the target.
const TARGET: f64 = 8.0;
/// The definitions, which stay when helm has removed an installation.
const DEFINITIONS: [&str; 2] =
    ["peerpods.confidentialcontainers.org", "peerpodconfigs.confidentialcontainers.org"];
const DEADLINE: Duration = Duration::from_secs(120);

pub(super) async fn run() -> Result<Figures> {
    let mut progress = Progress::new(real_node::STEPS + RUNS);
    let dir = tempfile::tempdir()?;
    let (node, shell) = real_node::start(dir.path(), &mut progress).await?;
    let bench = Bench { namespace: node.testbed.namespace("bench").await?, shell, node };
    let mut runs = Vec::new();
    for run in 1..=RUNS {
        progress.step(format!("installation {run} of {RUNS}"));
        runs.push(Box::pin(bench.install()).await?);
        bench.remove().await.context("removing everything again")?;
    }
    progress.finish();

    let mut figures = Figures::default();
    let [median, slowest] = of(&runs, |run| run.defined);
    figures.info("helm until a PeerPod can be made, median", median, "s");
    figures.info("helm until a PeerPod can be made, slowest", slowest, "s");
    let [median, slowest] = of(&runs, |run| run.available);
    figures.info("helm until an operator is available, median", median, "s");
    figures.info("helm until an operator is available, slowest", slowest, "s");
    // The bench deletes the PeerPod directly. The garbage collector would do it after the Pod, but looks for new kinds only every 30 s.
    let [median, slowest] = of(&runs, |run| run.reaped);
    figures.at_most("helm until a machine is reaped, PeerPod deleted directly, median", median, "s", TARGET);
    figures.at_most(
        "helm until a machine is reaped, PeerPod deleted directly, slowest",
        slowest,
        "s",
        TARGET,
    );
    let [median, slowest] = of(&runs, |run| run.returned);
    figures.info("helm until it returns (--wait), median", median, "s");
    figures.info("helm until it returns (--wait), slowest", slowest, "s");
    Ok(figures)
}

/// The seconds of the median run and of the slowest run.
fn of(runs: &[Run], figure: impl Fn(&Run) -> Duration) -> [f64; 2] {
    median_and_slowest(&runs.iter().map(figure).collect::<Vec<_>>())
}

/// Times since the start of helm.
struct Run {
    /// A PeerPod could be created.
    defined: Duration,
    /// One of the operators was ready.
    available: Duration,
    /// Machine and PeerPod are gone.
    reaped: Duration,
    /// helm returned.
    returned: Duration,
}

struct Bench {
    node: RealNode,
    shell: Shell,
    /// The namespace of the PeerPods.
    namespace: String,
}

impl Bench {
    /// Installs by the README's commands into a cluster in which no PeerPod can be created yet. There is a machine whose Pod is gone.
    /// As soon as its PeerPod can be created, this creates and deletes it.
    async fn install(&self) -> Result<Run> {
        let client = self.node.testbed.client();
        let (pods, host) = (Pods::new(client.clone(), &self.namespace), self.node.libvirtd.host());
        let pod = pods.run("web").await?;
        let machine = host.start_pod_vm(&vm_name("web")).await?;
        pods.delete("web").await?;
        let object = peerpod_object(&pod, "libvirt", &machine.domain.uuid.to_string());
        let object: PeerPod = serde_json::from_value(object)?;

        let peerpods: Api<PeerPod> = Api::namespaced(client.clone(), &self.namespace);
        let deployments: Api<Deployment> = Api::namespaced(client, NAMESPACE);
        let started = Instant::now();
        let returned = async {
            self.shell.documented("helm").await?;
            anyhow::Ok(started.elapsed())
        };
        let available = async {
            let available = |it: &Deployment| {
                it.status.as_ref().and_then(|status| status.available_replicas).is_some_and(|count| count > 0)
            };
            wait::present(&deployments, NAME, "an operator is available", DEADLINE, available).await?;
            anyhow::Ok(started.elapsed())
        };
        let reaped = async {
            let made = wait::eventually("a PeerPod can be made", DEADLINE, async || {
                Ok(peerpods.create(&PostParams::default(), &object).await?)
            });
            let name = made.await?.name_any();
            let defined = started.elapsed();
            // The garbage collector may be faster, as its Pod is gone.
            wait::unless_gone(peerpods.delete(&name, &DeleteParams::default()).await)?;
            wait::gone(&peerpods, &name, DEADLINE).await?;
            anyhow::Ok((defined, started.elapsed()))
        };
        let (returned, available, (defined, reaped)) = tokio::try_join!(returned, available, reaped)?;
        let left = host.virsh().domains().await?;
        ensure!(!left.contains(&machine.domain.name), "its domain is left: {left:?}");
        Ok(Run { defined, available, reaped, returned })
    }

    /// Removes the release and the definitions that helm keeps.
    async fn remove(&self) -> Result<()> {
        // For a moment after its end the API server still applies the policy that keeps them.
        let commands = format!(
            "kubectl annotate crd/{} crd/{} namespace/{NAMESPACE} {ALLOW_ANNOTATION}=true\n\
             helm uninstall {NAME} --namespace {NAMESPACE} --wait",
            DEFINITIONS[0], DEFINITIONS[1]
        );
        self.shell.run(&commands).await?;
        let client = self.node.testbed.client();
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        for name in DEFINITIONS {
            remove(&definitions, name).await?;
        }
        let namespaces: Api<Namespace> = Api::all(client);
        remove(&namespaces, NAMESPACE).await
    }
}

/// Deletes an object and waits until it is gone.
async fn remove<K>(api: &Api<K>, name: &str) -> Result<()>
where
    K: Resource + Clone + DeserializeOwned + Serialize + Debug + Send + 'static,
{
    api.delete(name, &DeleteParams::default()).await?;
    wait::gone(api, name, DEADLINE).await
}
