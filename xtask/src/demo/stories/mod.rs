//! The stories, and their common parts.

mod capacity;
mod crash;
mod foreign;
mod healthy;
mod running;

use std::fmt::Debug;

use anyhow::{Context as _, Result, ensure};
use futures::future::LocalBoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use peers::libvirt::POOL;
use testbed::{
    Metrics, Request, Vm,
    wait::{self, DEADLINE},
};

pub(super) use self::capacity::{CONFIG_FILE, PODS_FILE};
use super::{
    fact::{Fact, PeerPodChange, PodChange, releases},
    stage::{NAMESPACE, Stage},
    timeline::Timeline,
};

/// How long a Pod's containers have to end: Kubernetes' default.
const GRACE_SECONDS: i64 = 30;

/// The stories in their order.
pub(super) const STORIES: &[Story] =
    &[healthy::STORY, crash::STORY, running::STORY, foreign::STORY, capacity::STORY];

/// A story of the demo.
pub(super) struct Story {
    pub(super) title: &'static str,
    /// What it is about.
    pub(super) about: &'static str,
    play: for<'a> fn(&'a mut Scene<'_>) -> LocalBoxFuture<'a, Result<Outcome>>,
}

impl Story {
    pub(super) async fn play(&self, stage: &Stage, timeline: &mut Timeline) -> Result<Outcome> {
        timeline.begin();
        (self.play)(&mut Scene { stage, timeline }).await
    }
}

/// The summary of a story: the outcome of the VM and of the PeerPod, and the times since the Pod's deletion. A dash if there is none.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) machine: String,
    pub(super) release: String,
}

/// The stage, timeline and players of a story.
struct Scene<'a> {
    stage: &'a Stage,
    timeline: &'a mut Timeline,
}

impl Scene<'_> {
    /// A running Pod on the node whose kubelet the demo plays.
    async fn pod(&mut self, name: &str) -> Result<Pod> {
        let pod = self.stage.kubelet.run(NAMESPACE, name, GRACE_SECONDS).await?;
        self.pod_until(name, "runs", |change| *change == PodChange::Runs).await?;
        Ok(pod)
    }

    /// Waits until libvirt has started the VM and the operator knows its PeerPod.
    async fn started(&mut self, vm: &Vm) -> Result<()> {
        self.domain_until(&vm.machine.domain.name, "Started").await?;
        self.operator_knows(1.0).await
    }

    /// Waits until the operator's metrics count this number of PeerPods.
    async fn operator_knows(&self, count: f64) -> Result<()> {
        let what = format!("the operator has seen that there are {count} PeerPods");
        wait::eventually(&what, DEADLINE, async || {
            for metrics in self.stage.operator.metrics().await? {
                let seen = metrics.sum("peerpod_operator_peerpods", &[]);
                ensure!((seen - count).abs() < 0.5, "it counts {seen}");
            }
            Ok(())
        })
        .await
    }

    /// How many times the operator has asked a cloud to delete something.
    async fn deletions(&self) -> Result<f64> {
        let metrics = self.stage.operator.metrics().await?;
        let deletions = |it: &Metrics| it.sum("peerpod_operator_provider_calls_total", &[("call", "delete")]);
        Ok(metrics.iter().map(deletions).sum())
    }

    /// Prints everything that has happened, then prints and runs the kubectl command. Returns its output.
    async fn kubectl(&mut self, arguments: &[&str]) -> Result<String> {
        self.kubectl_in(NAMESPACE, arguments).await
    }

    /// The same in a namespace other than that of the Pods.
    async fn kubectl_in(&mut self, namespace: &str, arguments: &[&str]) -> Result<String> {
        let arguments = [&["-n", namespace], arguments].concat();
        self.timeline.settle().await?;
        self.timeline.command(format!("kubectl {}", arguments.join(" ")));
        self.stage.testbed.cluster().kubectl(&arguments).await
    }

    /// Runs kubectl, and both prints and returns its output.
    async fn show(&mut self, arguments: &[&str]) -> Result<String> {
        let printed = self.kubectl(arguments).await?;
        self.timeline.output(&printed).await?;
        Ok(printed)
    }

    /// Deletes a Pod as a user would. Returns the time at which its deletion was observed.
    async fn delete_pod(&mut self, name: &str) -> Result<Timestamp> {
        self.kubectl(&["delete", "pod", name, "--wait=false"]).await?;
        self.pod_until(name, "is being deleted", |change| matches!(change, PodChange::Ending { .. })).await
    }

    /// Plays that nothing of the Pod is left on its node.
    async fn remove_pod(&mut self, pod: &Pod) -> Result<()> {
        let name = pod.metadata.name.as_deref().context("a Pod without name")?;
        self.stage.kubelet.remove(pod).await?;
        self.pod_until(name, "is gone", |change| *change == PodChange::Gone).await?;
        Ok(())
    }

    /// Waits for a change of a Pod. Returns its time.
    async fn pod_until(
        &mut self,
        pod: &str,
        what: &str,
        is_it: impl Fn(&PodChange) -> bool,
    ) -> Result<Timestamp> {
        let looked_for =
            |fact: &_| matches!(fact, Fact::Pod { name, change } if name == pod && is_it(change));
        self.timeline.until(&format!("the Pod {pod} {what}"), looked_for).await
    }

    /// Waits for a change of a PeerPod. Returns its time.
    async fn peerpod_until(
        &mut self,
        peerpod: &str,
        what: &str,
        is_it: impl Fn(&PeerPodChange) -> bool,
    ) -> Result<Timestamp> {
        let looked_for =
            |fact: &_| matches!(fact, Fact::PeerPod { name, change } if name == peerpod && is_it(change));
        self.timeline.until(&format!("the PeerPod {peerpod} {what}"), looked_for).await
    }

    /// Waits until the operator holds a PeerPod for this reason.
    async fn held_until(&mut self, peerpod: &str, expected: &str) -> Result<Timestamp> {
        let is_it =
            |change: &_| matches!(change, PeerPodChange::Condition { reason, .. } if reason == expected);
        self.peerpod_until(peerpod, &format!("has a condition with the reason {expected}"), is_it).await
    }

    /// Waits until virsh reports an event of a domain that begins with this word. Returns the event's time.
    async fn domain_until(&mut self, domain: &str, kind: &str) -> Result<Timestamp> {
        let looked_for = |fact: &_| matches!(fact, Fact::Domain { name, event } if name == domain && event.starts_with(kind));
        self.timeline.until(&format!("virsh tells of the domain {domain}: {kind}"), looked_for).await
    }

    /// Waits until a PeerPod is gone that a user with this ending of the name has released. Returns the time of the release.
    async fn released_by(&mut self, user: &str, peerpod: &str) -> Result<Timestamp> {
        self.peerpod_until(peerpod, "is gone", |change| *change == PeerPodChange::Gone).await?;
        let is_it = |request: &Request| {
            request.user.ends_with(user)
                && request.name == peerpod
                && request.code == 200
                && releases(request)
        };
        let looked_for = |fact: &_| matches!(fact, Fact::Write(request) if is_it(request));
        self.timeline.until(&format!("{user} releases the PeerPod {peerpod}"), looked_for).await
    }

    /// The operator's writes to the API server in this story, as `verb resource`.
    fn operator_writes(&self) -> Vec<String> {
        let writes = self.timeline.facts().filter_map(|fact| match fact {
            Fact::Write(request) if request.is_operators() => {
                Some(format!("{} {}", request.verb, request.resource))
            }
            _ => None,
        });
        writes.collect()
    }

    /// The state of a domain, as virsh sees it.
    async fn domain_state(&self, domain: &str) -> Result<String> {
        let domains = self.stage.libvirtd.host().virsh().domains().await?;
        if !domains.iter().any(|it| it == domain) {
            return Ok("gone".to_owned());
        }
        Ok(self.stage.libvirtd.host().virsh().run(&["domstate", domain]).await?.trim().to_owned())
    }

    /// The volumes of the pool, as virsh sees them.
    async fn volumes(&self) -> Result<Vec<String>> {
        self.stage.libvirtd.host().virsh().volumes(POOL).await
    }

    /// Fails unless `seen` is `expected`; else prints that it is.
    fn check<T: PartialEq + Debug>(&self, what: &str, seen: &T, expected: &T) -> Result<()> {
        ensure!(seen == expected, "not so: {what}\n  expected: {expected:?}\n  seen:     {seen:?}");
        self.timeline.checked(what)
    }
}

/// The time between, as text.
fn seconds(from: Timestamp, to: Timestamp) -> String {
    format!("{:.3} s", to.duration_since(from).as_secs_f64())
}
