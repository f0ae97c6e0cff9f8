//! The five stories, and what they have in common.

mod capacity;
mod crash;
mod foreign;
mod healthy;
mod running;

use std::fmt::Debug;

use anyhow::{Context as _, Result, ensure};
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

/// How long a Pod's containers have to end, as Kubernetes grants unless told otherwise.
const GRACE_SECONDS: i64 = 30;

#[derive(Clone, Copy, Debug)]
pub(super) enum Story {
    Healthy,
    Crash,
    Running,
    Foreign,
    Capacity,
}

impl Story {
    pub(super) const ALL: [Self; 5] =
        [Self::Healthy, Self::Crash, Self::Running, Self::Foreign, Self::Capacity];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Healthy => "cloud-api-adaptor does its job",
            Self::Crash => "cloud-api-adaptor dies",
            Self::Running => "a PeerPod is deleted under a running Pod",
            Self::Foreign => "a PeerPod names a VM that is not a pod VM",
            Self::Capacity => "one PeerPodConfig, and a peer pod too many",
        }
    }

    /// What it is about.
    pub(super) fn about(self) -> &'static str {
        match self {
            Self::Healthy => {
                "A Pod is deleted, and cloud-api-adaptor deletes its VM. Nothing is left, so the operator \
                 must do nothing."
            }
            Self::Crash => {
                "A Pod is deleted, and cloud-api-adaptor has crashed. The operator has only the PeerPod. \
                 It must delete the VM and its own two volumes, and nothing else. The VM also has a volume \
                 with a user's data."
            }
            Self::Running => {
                "A user deletes the PeerPod while its Pod still runs. The operator must keep the VM until \
                 the Pod has ended, and delete it then."
            }
            Self::Foreign => {
                "A user who may create PeerPods can write any VM's identifier into one. Here the VM is a \
                 database. The operator must not touch it and must say why. The administrator then \
                 releases the PeerPod with an annotation."
            }
            Self::Capacity => {
                "One object asks for ten VMs on three nodes. The operator must deploy cloud-api-adaptor, \
                 turn Pods of the runtime class kata-remote into peer pods, and spread the ten VMs, so \
                 that exactly ten of eleven Pods run. kwok plays the kubelet of these nodes: it reports \
                 Pods as running, and no VMs are created."
            }
        }
    }

    pub(super) async fn play(self, stage: &Stage, timeline: &mut Timeline) -> Result<Outcome> {
        timeline.begin();
        let scene = &mut Scene { stage, timeline };
        match self {
            Self::Healthy => healthy::play(scene).await,
            Self::Crash => crash::play(scene).await,
            Self::Running => running::play(scene).await,
            Self::Foreign => foreign::play(scene).await,
            Self::Capacity => capacity::play(scene).await,
        }
    }
}

/// What the summary says of a story: what became of the VM and of the PeerPod, and how long after the Pod's deletion; a
/// dash where there was none.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) machine: String,
    pub(super) release: String,
}

/// What a story is told with.
struct Scene<'a> {
    stage: &'a Stage,
    timeline: &'a mut Timeline,
}

impl Scene<'_> {
    /// A Pod that runs on the played kubelet's node.
    async fn pod(&mut self, name: &str) -> Result<Pod> {
        let pod = self.stage.kubelet.run(NAMESPACE, name, GRACE_SECONDS).await?;
        self.pod_until(name, "runs", |change| *change == PodChange::Runs).await?;
        Ok(pod)
    }

    /// Waits until everybody has seen the VM: the operator its PeerPod, too.
    async fn started(&mut self, vm: &Vm) -> Result<()> {
        self.domain_until(&vm.machine.domain.name, "Started").await?;
        self.operator_knows(1.0).await
    }

    /// Waits until the operator's own count of PeerPods is this.
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

    /// How many times the operator has told a cloud to delete something.
    async fn deletions(&self) -> Result<f64> {
        let metrics = self.stage.operator.metrics().await?;
        let deletions = |it: &Metrics| it.sum("peerpod_operator_provider_calls_total", &[("call", "delete")]);
        Ok(metrics.iter().map(deletions).sum())
    }

    /// Tells all that has happened, then runs kubectl and tells so; gives what it printed.
    async fn kubectl(&mut self, arguments: &[&str]) -> Result<String> {
        self.kubectl_in(NAMESPACE, arguments).await
    }

    /// The same in another namespace than that of the Pods.
    async fn kubectl_in(&mut self, namespace: &str, arguments: &[&str]) -> Result<String> {
        let arguments = [&["-n", namespace], arguments].concat();
        self.timeline.settle().await?;
        self.timeline.command(format!("kubectl {}", arguments.join(" ")));
        self.stage.testbed.cluster().kubectl(&arguments).await
    }

    /// Runs kubectl, and shows and gives what it printed.
    async fn show(&mut self, arguments: &[&str]) -> Result<String> {
        let printed = self.kubectl(arguments).await?;
        self.timeline.output(&printed).await?;
        Ok(printed)
    }

    /// Deletes a Pod as its user does; gives the time at which it was seen to be going.
    async fn delete_pod(&mut self, name: &str) -> Result<Timestamp> {
        self.kubectl(&["delete", "pod", name, "--wait=false"]).await?;
        self.pod_until(name, "is being deleted", |change| matches!(change, PodChange::Ending { .. })).await
    }

    /// Nothing of the Pod is left on its node.
    async fn remove_pod(&mut self, pod: &Pod) -> Result<()> {
        let name = pod.metadata.name.as_deref().context("a Pod without name")?;
        self.stage.kubelet.remove(pod).await?;
        self.pod_until(name, "is gone", |change| *change == PodChange::Gone).await?;
        Ok(())
    }

    /// Waits for a change of a Pod; gives its time.
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

    /// Waits for a change of a PeerPod; gives its time.
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

    /// Waits until a PeerPod is held for this reason.
    async fn held_until(&mut self, peerpod: &str, expected: &str) -> Result<Timestamp> {
        let is_it =
            |change: &_| matches!(change, PeerPodChange::Condition { reason, .. } if reason == expected);
        self.peerpod_until(peerpod, &format!("has a condition with the reason {expected}"), is_it).await
    }

    /// Waits until virsh tells of an event of a domain, by its first word; gives the event's time.
    async fn domain_until(&mut self, domain: &str, kind: &str) -> Result<Timestamp> {
        let looked_for = |fact: &_| matches!(fact, Fact::Domain { name, event } if name == domain && event.starts_with(kind));
        self.timeline.until(&format!("virsh tells of the domain {domain}: {kind}"), looked_for).await
    }

    /// Waits until a PeerPod is gone, released by a user whose name ends like this; gives the time of the release.
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

    /// What the operator has written to the API server in this story, as `verb resource`.
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

    /// Fails unless what was seen is what is expected; else says that it is so.
    fn check<T: PartialEq + Debug>(&self, what: &str, seen: &T, expected: &T) -> Result<()> {
        ensure!(seen == expected, "not so: {what}\n  expected: {expected:?}\n  seen:     {seen:?}");
        self.timeline.checked(what)
    }
}

/// The time between, for people.
fn seconds(from: Timestamp, to: Timestamp) -> String {
    format!("{:.3} s", to.duration_since(from).as_secs_f64())
}
