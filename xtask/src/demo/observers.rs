//! The observers: watches of the API server, its audit log, and virsh. None of them asks the operator.

use std::{collections::HashMap, fs, path::PathBuf, pin::pin, time::Duration};

use anyhow::{Context as _, Result};
use cluster::process::Process;
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::{Node, Pod},
        events::v1::Event,
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Condition},
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    runtime::{WatchStreamExt as _, watcher},
};
use peerpod_operator::api::v1alpha1::{EXTENDED_RESOURCE, PeerPod, PeerPodConfig};
use serde::de::DeserializeOwned;
use testbed::Audit;
use tokio::{
    sync::mpsc::{self, Receiver, Sender},
    task::JoinSet,
    time::sleep,
};

use super::{
    fact::{ConfigChange, Fact, Observation, PeerPodChange, PodChange},
    stage::{NAMESPACE, Stage},
};

/// How often logs are read.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The size of the queue of observations. If a story does not read it for a while, the observers wait.
const QUEUE: usize = 256;

/// All observers. They stop when this is dropped.
pub(super) struct Observers {
    _tasks: JoinSet<()>,
    _virsh: Process,
}

/// Starts all observers of this stage. Returns the queue of their observations.
pub(super) async fn start(stage: &Stage) -> Result<(Observers, Receiver<Result<Observation>>)> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let mut tasks = JoinSet::new();
    let client = stage.testbed.client();
    let mut pods = Pods::default();
    tasks.spawn(watch(Api::namespaced(client.clone(), NAMESPACE), sender.clone(), move |it| pods.see(it)));
    let mut peerpods = PeerPods::default();
    tasks
        .spawn(watch(Api::namespaced(client.clone(), NAMESPACE), sender.clone(), move |it| peerpods.see(it)));
    tasks.spawn(watch(Api::namespaced(client.clone(), NAMESPACE), sender.clone(), see_event));
    let mut nodes = Nodes::default();
    tasks.spawn(watch(Api::all(client.clone()), sender.clone(), move |it| nodes.see(it)));
    let mut configs = Configs::default();
    tasks.spawn(watch(Api::all(client), sender.clone(), move |it| configs.see(it)));
    let audit = stage.testbed.audit()?.clone();
    tasks.spawn(report_failure(read_audit(audit, sender.clone()), sender.clone()));
    let virsh = stage.libvirtd.follow("virsh-events").await?;
    tasks.spawn(report_failure(read_virsh(virsh.log().to_owned(), sender.clone()), sender));
    Ok((Observers { _tasks: tasks, _virsh: virsh }, receiver))
}

/// Starts the observers of a namespace's Pods and of writes.
pub(super) fn of_pods(
    client: Client,
    namespace: &str,
    audit: Audit,
) -> (JoinSet<()>, Receiver<Result<Observation>>) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let (mut tasks, mut pods) = (JoinSet::new(), Pods::default());
    tasks.spawn(watch(Api::namespaced(client, namespace), sender.clone(), move |it| pods.see(it)));
    tasks.spawn(report_failure(read_audit(audit, sender.clone()), sender));
    (tasks, receiver)
}

async fn report_failure(observer: impl Future<Output = Result<()>>, sender: Sender<Result<Observation>>) {
    if let Err(error) = observer.await {
        // When the demo ends, the queue has no reader.
        let _ = sender.send(Err(error)).await;
    }
}

async fn send(sender: &Sender<Result<Observation>>, at: Timestamp, fact: Fact) -> Result<()> {
    sender.send(Ok(Observation { at, fact })).await.context("nobody listens any more")
}

/// Watches all objects of a kind, and sends the changes that `see` finds.
async fn watch<K>(
    api: Api<K>,
    sender: Sender<Result<Observation>>,
    mut see: impl FnMut(watcher::Event<K>) -> Vec<Fact>,
) where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let mut events = pin!(watcher::watcher(api, watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        // A failed watch restarts by itself.
        for fact in event.map(&mut see).unwrap_or_default() {
            if send(&sender, Timestamp::now(), fact).await.is_err() {
                return;
            }
        }
    }
}

/// The last state of each Pod.
#[derive(Default)]
struct Pods(HashMap<String, Pod>);

impl Pods {
    fn see(&mut self, event: watcher::Event<Pod>) -> Vec<Fact> {
        let fact = |name: String, change| Fact::Pod { name, change };
        match event {
            watcher::Event::Apply(pod) | watcher::Event::InitApply(pod) => {
                let before = self.0.insert(pod.name_any(), pod.clone());
                let changes = pod_changes(before.as_ref(), &pod);
                changes.into_iter().map(|change| fact(pod.name_any(), change)).collect()
            }
            watcher::Event::Delete(pod) => {
                self.0.remove(&pod.name_any());
                vec![fact(pod.name_any(), PodChange::Gone)]
            }
            watcher::Event::Init | watcher::Event::InitDone => Vec::new(),
        }
    }
}

fn pod_changes(before: Option<&Pod>, now: &Pod) -> Vec<PodChange> {
    let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
    let mut changes = Vec::new();
    let new_phase = Some(phase(now)).filter(|now| before.map(phase).as_ref() != Some(now));
    match new_phase.as_deref() {
        Some("Running") => changes.push(PodChange::Runs),
        Some(ended @ ("Succeeded" | "Failed")) => {
            changes.push(PodChange::Through { phase: ended.to_owned() });
        }
        _ => {}
    }
    let now_refused = refusal(now);
    if now_refused.is_some() && now_refused != before.and_then(refusal) {
        changes.extend(now_refused.map(|message| PodChange::Unschedulable { message }));
    }
    let ending = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
    if ending(now) && !before.is_some_and(ending) {
        let grace_seconds = now.metadata.deletion_grace_period_seconds.unwrap_or_default();
        changes.push(PodChange::Ending { grace_seconds });
    }
    changes
}

/// Why the scheduler finds no node for a Pod.
fn refusal(pod: &Pod) -> Option<String> {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let refused = conditions.find(|it| it.reason.as_deref() == Some("Unschedulable"))?;
    refused.message.clone()
}

/// The last state of each PeerPod.
#[derive(Default)]
struct PeerPods(HashMap<String, PeerPod>);

impl PeerPods {
    fn see(&mut self, event: watcher::Event<PeerPod>) -> Vec<Fact> {
        let fact = |name: String, change| Fact::PeerPod { name, change };
        match event {
            watcher::Event::Apply(peerpod) | watcher::Event::InitApply(peerpod) => {
                let before = self.0.insert(peerpod.name_any(), peerpod.clone());
                let changes = peerpod_changes(before.as_ref(), &peerpod);
                changes.into_iter().map(|change| fact(peerpod.name_any(), change)).collect()
            }
            watcher::Event::Delete(peerpod) => {
                let before = self.0.remove(&peerpod.name_any());
                let mut changes = peerpod_changes(before.as_ref(), &peerpod);
                // A PeerPod that has no finalizer when it is deleted disappears at once, without a mark.
                changes.retain(|change| *change == PeerPodChange::Released);
                changes.push(PeerPodChange::Gone);
                changes.into_iter().map(|change| fact(peerpod.name_any(), change)).collect()
            }
            watcher::Event::Init | watcher::Event::InitDone => Vec::new(),
        }
    }
}

fn peerpod_changes(before: Option<&PeerPod>, now: &PeerPod) -> Vec<PeerPodChange> {
    let mut changes = Vec::new();
    let marked = |peerpod: &PeerPod| peerpod.metadata.deletion_timestamp.is_some();
    if marked(now) && !before.is_some_and(marked) {
        changes.push(PeerPodChange::Marked { finalizers: now.finalizers().to_vec() });
    }
    let held = |peerpod: &PeerPod| !peerpod.finalizers().is_empty();
    if !held(now) && before.is_some_and(held) {
        changes.push(PeerPodChange::Released);
    }
    let of = |peerpod: Option<&'_ PeerPod>| -> Vec<Condition> {
        peerpod
            .and_then(|peerpod| peerpod.status.as_ref())
            .map(|it| it.conditions.clone())
            .unwrap_or_default()
    };
    changes.extend(new_conditions(&of(before), of(Some(now))).map(|it| PeerPodChange::Condition {
        type_: it.type_,
        reason: it.reason,
        message: it.message,
    }));
    changes
}

/// The conditions that have become True, or are True for another reason.
fn new_conditions(before: &[Condition], now: Vec<Condition>) -> impl Iterator<Item = Condition> {
    now.into_iter().filter(move |it| {
        let known = |other: &&Condition| {
            (&other.type_, &other.status, &other.reason, &other.message)
                == (&it.type_, &it.status, &it.reason, &it.message)
        };
        it.status == "True" && !before.iter().any(|other| known(&other))
    })
}

/// The VMs that each node advertises.
#[derive(Default)]
struct Nodes(HashMap<String, String>);

impl Nodes {
    fn see(&mut self, event: watcher::Event<Node>) -> Vec<Fact> {
        let (watcher::Event::Apply(node) | watcher::Event::InitApply(node)) = event else {
            return Vec::new();
        };
        let (name, vms) = (node.name_any(), vms(&node));
        let before = match &vms {
            Some(vms) => self.0.insert(name.clone(), vms.clone()),
            None => self.0.remove(&name),
        };
        if before == vms { Vec::new() } else { vec![Fact::Node { name, vms }] }
    }
}

/// How many VMs a node advertises to the scheduler.
fn vms(node: &Node) -> Option<String> {
    let allocatable = node.status.as_ref()?.allocatable.as_ref()?;
    allocatable.get(EXTENDED_RESOURCE).map(|Quantity(vms)| vms.clone())
}

/// The conditions of each `PeerPodConfig`.
#[derive(Default)]
struct Configs(HashMap<String, Vec<Condition>>);

impl Configs {
    fn see(&mut self, event: watcher::Event<PeerPodConfig>) -> Vec<Fact> {
        let fact = |name: &str, change| Fact::Config { name: name.to_owned(), change };
        match event {
            watcher::Event::Apply(config) | watcher::Event::InitApply(config) => {
                let name = config.name_any();
                let now = config.status.map(|status| status.conditions).unwrap_or_default();
                let before = self.0.insert(name.clone(), now.clone()).unwrap_or_default();
                // The message may change while the reason stays.
                let news = new_conditions(&before, now)
                    .filter(|new| !before.iter().any(|it| it.status == "True" && it.reason == new.reason));
                news.map(|it| fact(&name, ConfigChange::Condition { type_: it.type_, reason: it.reason }))
                    .collect()
            }
            watcher::Event::Delete(config) => {
                self.0.remove(&config.name_any());
                vec![fact(&config.name_any(), ConfigChange::Gone)]
            }
            watcher::Event::Init | watcher::Event::InitDone => Vec::new(),
        }
    }
}

fn see_event(event: watcher::Event<Event>) -> Vec<Fact> {
    let watcher::Event::Apply(event) = event else { return Vec::new() };
    if event.regarding.and_then(|it| it.kind).as_deref() != Some("PeerPod") {
        return Vec::new();
    }
    vec![Fact::Event {
        warning: event.type_.as_deref() == Some("Warning"),
        reason: event.reason.unwrap_or_default(),
        note: event.note.unwrap_or_default(),
    }]
}

/// Sends every write in the audit log, also those before: the timeline drops what is older than its story.
async fn read_audit(audit: Audit, sender: Sender<Result<Observation>>) -> Result<()> {
    let mut position = 0;
    loop {
        for request in audit.requests(&mut position)? {
            // Leases are renewed all the time, so they are left out.
            let told =
                request.namespace == NAMESPACE || request.is_operators() && request.resource != "leases";
            if request.is_write() && told {
                send(&sender, request.time, Fact::Write(request)).await?;
            }
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Sends every event of a domain that virsh writes to its log.
async fn read_virsh(log: PathBuf, sender: Sender<Result<Observation>>) -> Result<()> {
    let mut position = 0;
    loop {
        let text = fs::read_to_string(&log).with_context(|| format!("reading {}", log.display()))?;
        let new = text.get(position..).unwrap_or_default();
        let whole = new.rfind('\n').map_or(0, |last| last + 1);
        for line in new[..whole].lines() {
            if let Some((at, fact)) = domain_event(line) {
                send(&sender, at, fact).await?;
            }
        }
        position += whole;
        sleep(POLL_INTERVAL).await;
    }
}

/// Reads `2026-08-01 12:00:00.123+0000: event 'lifecycle' for domain 'NAME': Stopped Destroyed`.
fn domain_event(line: &str) -> Option<(Timestamp, Fact)> {
    let (at, rest) = line.split_once(": event 'lifecycle' for domain '")?;
    let (name, event) = rest.split_once("': ")?;
    let at = Timestamp::strptime("%Y-%m-%d %H:%M:%S%.f%z", at).ok()?;
    Some((at, Fact::Domain { name: name.to_owned(), event: event.to_owned() }))
}

#[cfg(test)]
mod tests;
