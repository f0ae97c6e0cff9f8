//! One `PeerPodConfig`, three nodes, and one peer pod too many.

use std::{collections::BTreeMap, fs};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Pod};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams},
};
use peerpod_operator::{
    NAMESPACE as OPERATORS,
    api::v1alpha1::{EXTENDED_RESOURCE, RUNTIME_CLASS},
};
use serde_json::{Value, json};
use testbed::wait::{self, DEADLINE};

use super::{Outcome, Scene, Story};
use crate::demo::{
    columns::columns,
    fact::{ConfigChange, Fact, PodChange},
    stage::NAMESPACE,
};

/// The file of the configuration, in the stage's folder.
pub(in crate::demo) const CONFIG_FILE: &str = "peerpodconfig.yaml";
pub(in crate::demo) const PODS_FILE: &str = "peer-pods.json";
/// The configuration.
const CONFIG: &str = "\
apiVersion: confidentialcontainers.org/v1alpha1
kind: PeerPodConfig
metadata: {name: peer-pods, namespace: confidential-containers-system}
spec:
  limit: 10
  admission: {mode: Policy}  # in the API server: no webhook to run
";
const CONFIG_NAME: &str = "peer-pods";
/// One more than the limit.
const PODS: usize = 11;
/// The resources that a Pod asks for, and the size of the VM for them.
const VM_SIZE: [(&str, &str); 2] = [
    ("io.katacontainers.config.hypervisor.default_vcpus", "2"),
    ("io.katacontainers.config.hypervisor.default_memory", "512"),
];

pub(super) const STORY: Story = Story {
    title: "one PeerPodConfig, and a peer pod too many",
    about: "One object asks for ten VMs on three nodes. The operator must deploy cloud-api-adaptor, \
            turn Pods of the runtime class kata-remote into peer pods, and spread the ten VMs, so \
            that exactly ten of eleven Pods run. kwok plays the kubelet of these nodes: it reports \
            Pods as running, and no VMs are created.",
    play: |scene| Box::pin(play(scene)),
};

async fn play(scene: &mut Scene<'_>) -> Result<Outcome> {
    let (stage, nodes) = (scene.stage, scene.stage.workers.names());
    let config_file = stage.dir.join(CONFIG_FILE).display().to_string();
    fs::write(&config_file, CONFIG).with_context(|| format!("writing {config_file}"))?;
    scene.timeline.output(CONFIG).await?;
    scene.kubectl_in(OPERATORS, &["apply", "-f", &config_file]).await?;
    scene.config_until("is ready", |change| is_condition(change, "AllReady")).await?;
    until_admitted(scene).await?;

    let pods_file = stage.dir.join(PODS_FILE).display().to_string();
    fs::write(&pods_file, pods().to_string()).with_context(|| format!("writing {pods_file}"))?;
    scene.kubectl(&["create", "-f", &pods_file]).await?;
    let (waiting, why) = scene.unschedulable().await?;
    for name in (1..=PODS).map(pod_name).filter(|name| *name != waiting) {
        scene.pod_until(&name, "runs", |change| *change == PodChange::Runs).await?;
    }
    let pods: Api<Pod> = Api::namespaced(stage.testbed.client(), NAMESPACE);
    let peer_pods = pods.list(&ListParams::default()).await?.items;
    let advertised = stage.workers.advertised(EXTENDED_RESOURCE).await?;
    let advertised: Vec<_> = advertised.into_iter().map(Option::unwrap_or_default).collect();
    let running: Vec<_> = nodes.iter().map(|node| running_on(node, &peer_pods)).collect();
    let rows = nodes.iter().zip(&advertised).zip(&running);
    let rows =
        rows.map(|((node, advertised), running)| [node.clone(), advertised.to_string(), running.to_string()]);
    let headings = ["node", "VMs advertised", "peer pods running"].map(str::to_owned);
    let table: Vec<_> = [headings].into_iter().chain(rows).collect();
    scene.timeline.output(&columns(&table).join("\n")).await?;

    let mut shares = advertised.clone();
    shares.sort_unstable();
    scene.check("The operator spreads ten VMs over three nodes: 4, 3 and 3.", &shares, &vec![3, 3, 4])?;
    let mut written = scene.written(|resource| resource == "nodes/status");
    written.sort();
    let expected: Vec<_> = nodes.iter().map(|node| format!("nodes/status {node}")).collect();
    scene.check("The operator wrote once to each node (audit log).", &written, &expected)?;
    let objects = [
        format!("daemonsets {CONFIG_NAME}-cloud-api-adaptor"),
        format!("mutatingadmissionpolicies peer-pods-{CONFIG_NAME}"),
        format!("mutatingadmissionpolicybindings peer-pods-{CONFIG_NAME}"),
    ];
    // cloud-api-adaptor and the admission are set up at the same time.
    let mut written = scene.written(|resource| resource == "daemonsets" || resource.starts_with("mutating"));
    written.sort();
    scene.check("It also wrote once to each object of the configuration.", &written, &objects.to_vec())?;
    let all = peer_pods.len() == PODS && peer_pods.iter().all(is_peer_pod);
    let what = format!(
        "Each of the eleven Pods requests one {EXTENDED_RESOURCE} of its node, but no cpu and no memory: \
         annotations pass these to the VM."
    );
    scene.check(&what, &all, &true)?;
    let what = format!("Ten Pods run, on each node as many as it advertises; {waiting} is Pending.");
    scene.check(&what, &running, &advertised)?;
    let what = format!("The scheduler says why: Insufficient {EXTENDED_RESOURCE}.");
    scene.check(&what, &why.contains(&format!("Insufficient {EXTENDED_RESOURCE}")), &true)?;

    put_back(scene).await?;
    let uids = |pods: &[Pod]| pods.iter().filter_map(Pod::uid).collect::<Vec<_>>();
    let still = pods.list(&ListParams::default()).await?.items;
    let running: usize = nodes.iter().map(|node| running_on(node, &still)).sum::<u32>().try_into()?;
    let what = "After the deletion of the object, no node advertises VMs, and the DaemonSet and the policy are \
         deleted. The ten Pods still run.";
    scene.check(what, &(uids(&still), running), &(uids(&peer_pods), PODS - 1))?;
    for pod in &still {
        pods.delete(&pod.name_any(), &DeleteParams::default()).await?;
    }
    Ok(Outcome { machine: "–".to_owned(), release: "–".to_owned() })
}

/// Deletes the configuration, and waits until nothing of it is left.
async fn put_back(scene: &mut Scene<'_>) -> Result<()> {
    let stage = scene.stage;
    scene.kubectl_in(OPERATORS, &["delete", "peerpodconfig", CONFIG_NAME]).await?;
    scene.config_until("is gone", |change| *change == ConfigChange::Gone).await?;
    for node in stage.workers.names() {
        let is_it = |fact: &_| matches!(fact, Fact::Node { name, vms: None } if name == node);
        scene.timeline.until(&format!("{node} advertises no VMs any more"), is_it).await?;
    }
    let daemon_sets: Api<DaemonSet> = Api::namespaced(stage.testbed.client(), OPERATORS);
    wait::eventually("the DaemonSet and the policy are gone", DEADLINE, async || {
        let left = daemon_sets.list(&ListParams::default()).await?.items.len();
        let kinds = "mutatingadmissionpolicies,mutatingadmissionpolicybindings";
        let policies = stage.testbed.cluster().kubectl(&["get", kinds, "--output=name"]).await?;
        ensure!(left == 0 && policies.is_empty(), "{left} DaemonSets and {policies}");
        Ok(())
    })
    .await?;
    scene.timeline.settle().await
}

/// Waits until Pods become peer pods. An API server enforces a new policy only a moment later.
async fn until_admitted(scene: &Scene<'_>) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(scene.stage.testbed.client(), NAMESPACE);
    let pod: Pod = serde_json::from_value(pod(&pod_name(0)))?;
    let params = PostParams { dry_run: true, ..PostParams::default() };
    wait::eventually("Pods become peer pods", DEADLINE, async || {
        ensure!(is_peer_pod(&pods.create(&params, &pod).await?), "the Pod stays as it is");
        Ok(())
    })
    .await
}

fn pod_name(number: usize) -> String {
    format!("batch-{number:02}")
}

fn pod(name: &str) -> Value {
    let requests = json!({ "cpu": "1500m", "memory": "512Mi" });
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name },
        "spec": {
            "runtimeClassName": RUNTIME_CLASS,
            "automountServiceAccountToken": false,
            "containers": [{ "name": "main", "image": "any", "resources": { "requests": requests } }],
        },
    })
}

fn pods() -> Value {
    let pods: Vec<_> = (1..=PODS).map(|number| pod(&pod_name(number))).collect();
    json!({ "apiVersion": "v1", "kind": "List", "items": pods })
}

/// Whether a Pod asks its node for exactly one VM, and has the VM's size in its annotations.
fn is_peer_pod(pod: &Pod) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let requests: BTreeMap<_, _> = containers
        .filter_map(|container| container.resources.as_ref()?.requests.as_ref())
        .flatten()
        .map(|(name, quantity)| (name.as_str(), quantity.0.as_str()))
        .collect();
    let is_sized = |(key, size): &(&str, &str)| pod.annotations().get(*key).is_some_and(|it| it == size);
    requests == [(EXTENDED_RESOURCE, "1")].into() && VM_SIZE.iter().all(is_sized)
}

/// How many of these Pods run on a node.
fn running_on(node: &str, pods: &[Pod]) -> u32 {
    let runs = |pod: &&Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        phase == Some("Running") && pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node)
    };
    pods.iter().filter(runs).map(|_| 1).sum()
}

fn is_condition(change: &ConfigChange, expected: &str) -> bool {
    matches!(change, ConfigChange::Condition { reason, .. } if reason == expected)
}

impl Scene<'_> {
    /// Waits for a change of the configuration.
    async fn config_until(&mut self, what: &str, is_it: impl Fn(&ConfigChange) -> bool) -> Result<()> {
        let looked_for =
            |fact: &_| matches!(fact, Fact::Config { name, change } if name == CONFIG_NAME && is_it(change));
        self.timeline.until(&format!("the PeerPodConfig {CONFIG_NAME} {what}"), looked_for).await?;
        Ok(())
    }

    /// Waits for a Pod that finds no node. Returns its name and the scheduler's message.
    async fn unschedulable(&mut self) -> Result<(String, String)> {
        let refused = |fact: &Fact| match fact {
            Fact::Pod { name, change: PodChange::Unschedulable { message } } => {
                Some((name.clone(), message.clone()))
            }
            _ => None,
        };
        self.timeline.until("a Pod fits on no node", |fact| refused(fact).is_some()).await?;
        self.timeline.facts().find_map(refused).context("it was seen a moment ago")
    }

    /// The operator's writes to these resources in this story, as `resource name`.
    fn written(&self, of: impl Fn(&str) -> bool) -> Vec<String> {
        let writes = self.timeline.facts().filter_map(|fact| match fact {
            Fact::Write(request) if request.is_operators() && of(&request.resource) => {
                Some(format!("{} {}", request.resource, request.name))
            }
            _ => None,
        });
        writes.collect()
    }
}
