//! The printed findings of `status`. Fields and their values are added, never renamed, while `version` is 1 *(no client)*.

use std::{fmt, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::{
    capacity::{self, ConfigRow, NodeRow, Usage},
    peer_pods::{self, Row},
    problem::{Problem, Severity},
};
use crate::{
    api::v1alpha1::PeerPodConfig,
    peerpodconfig::capacity::Node,
    sweep::{CloudSnapshot, LostVm, Snapshot},
};

/// A leader that has not renewed its lease for this long is gone, even if the clocks of two machines differ.
const STALE: SignedDuration = SignedDuration::from_secs(60);

/// The report as a whole.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// Of this format: 1.
    pub(super) version: u32,
    /// When it was made.
    pub(super) time: Timestamp,
    /// What fails and what could not be read, the worst first.
    pub(super) problems: Vec<Problem>,
    /// The leader; null if there is none, or if the lease cannot be read.
    pub(super) leader: Option<Leader>,
    /// Each `ConfigMap` with settings.
    pub(super) settings: Vec<Settings>,
    /// What the operator last saw of each cloud; null if that is not known.
    pub(super) clouds: Option<Vec<CloudSnapshot>>,
    pub(super) peer_pod_configs: Vec<ConfigRow>,
    pub(super) nodes: Vec<NodeRow>,
    /// PeerPods, the worst first; null if they cannot be read.
    pub(super) peer_pods: Option<Vec<Row>>,
}

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Leader {
    /// Its identity in the Lease: its Pod's name, and some random digits.
    pub(super) identity: String,
    /// Since when it leads.
    pub(super) since: Option<Timestamp>,
    /// When it last renewed the Lease.
    pub(super) renewed: Option<Timestamp>,
}

impl Leader {
    /// The name of its Pod.
    pub(super) fn pod(&self) -> &str {
        self.identity.rsplit_once('_').map_or(&*self.identity, |(pod, _)| pod)
    }
}

/// A ConfigMap with settings, without any value but the cloud's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Settings {
    pub(super) name: String,
    /// `CLOUD_PROVIDER`.
    pub(super) provider: Option<String>,
    /// When it was last changed.
    pub(super) changed: Option<Timestamp>,
}

/// All that was read, or the reason why it could not be read.
#[derive(Debug)]
pub(super) struct Observed {
    pub(super) peer_pods: Result<Vec<Row>, String>,
    pub(super) configs: Result<Vec<PeerPodConfig>, String>,
    pub(super) nodes: Result<Vec<Arc<Node>>, String>,
    pub(super) pods: (Usage, Option<String>),
    pub(super) leader: Result<Option<Leader>, String>,
    pub(super) settings: Result<Vec<Settings>, String>,
    pub(super) sweep: Result<Snapshot, String>,
}

impl Report {
    /// The report of this, for the operator in this namespace. It has only those lost VMs that are in the PeerPods' namespace.
    pub(super) fn new(observed: Observed, operator: &str, namespace: Option<&str>, now: Timestamp) -> Self {
        let Observed { peer_pods, configs, nodes, pods: (usage, unread), leader, settings, sweep } = observed;
        let mut problems = Problems(Vec::new());
        let mut peer_pods = problems.unless(peer_pods, "PeerPods");
        let configs = problems.unless(configs, "PeerPodConfigs").unwrap_or_default();
        let nodes = problems.unless(nodes, "nodes").unwrap_or_default();
        problems.0.extend(unread.map(|text| unknown("Pods", text)));
        problems.0.extend(configs.iter().flat_map(capacity::problems));
        if !configs.is_empty() && configs.iter().all(|it| it.metadata.namespace.as_deref() != Some(operator))
        {
            let text = format!(
                "none is in the namespace {operator} (--operator-namespace), and no other one takes effect"
            );
            problems.0.push(unknown("PeerPodConfigs", text));
        }
        let leader = problems.leader(leader, now);
        let settings = problems.unless(settings, "settings").unwrap_or_default();
        let clouds = problems.clouds(sweep, namespace);
        let nodes = capacity::nodes(&nodes, &configs, operator, &usage);
        if let Some(rows) = &mut peer_pods {
            peer_pods::complete(rows, &usage.nodes);
        }
        problems.0.sort_by_key(|it| it.severity);
        Self {
            version: 1,
            time: now,
            problems: problems.0,
            leader,
            settings,
            clouds,
            peer_pod_configs: capacity::configs(&configs, &nodes, operator),
            nodes,
            peer_pods,
        }
    }

    /// How long ago that was.
    pub(super) fn age(&self, time: Timestamp) -> Age {
        Age(self.time.duration_since(time))
    }

    /// How many PeerPods are in each state, the worst first. States without PeerPods are left out.
    pub(super) fn states(&self) -> Vec<(peer_pods::State, usize)> {
        let count = |state| self.peer_pods.iter().flatten().filter(|row| row.state == state).count();
        let counts = peer_pods::State::ALL.into_iter().map(|state| (state, count(state)));
        counts.filter(|(_, count)| *count > 0).collect()
    }
}

struct Problems(Vec<Problem>);

fn unknown(subject: &str, text: String) -> Problem {
    Problem { severity: Severity::Warning, subject: subject.to_owned(), text }
}

impl Problems {
    /// What was read. If it could not be read, adds that as a problem.
    fn unless<T>(&mut self, read: Result<T, String>, subject: &str) -> Option<T> {
        read.map_err(|text| self.0.push(unknown(subject, text))).ok()
    }

    fn error(&mut self, subject: &str, text: String) {
        self.0.push(Problem { severity: Severity::Error, ..unknown(subject, text) });
    }

    fn leader(&mut self, leader: Result<Option<Leader>, String>, now: Timestamp) -> Option<Leader> {
        let Some(leader) = self.unless(leader, "leader")? else {
            self.error(
                "leader",
                "no operator holds the Lease of --lease-name: no operator acts, unless one runs with --leader-elect=false, or in another namespace \
                 (--operator-namespace) or with another Lease (--lease-namespace, --lease-name)".to_owned(),
            );
            return None;
        };
        let age = leader.renewed.map(|renewed| now.duration_since(renewed));
        if let Some(age) = age.filter(|age| *age > STALE) {
            let text =
                format!("{} has not renewed the lease for {}: no operator acts", leader.pod(), Age(age));
            self.error("leader", text);
        }
        Some(leader)
    }

    fn clouds(
        &mut self,
        sweep: Result<Snapshot, String>,
        namespace: Option<&str>,
    ) -> Option<Vec<CloudSnapshot>> {
        let Snapshot { leads, mut clouds, settings } = self.unless(sweep, "clouds")?;
        for (name, problem) in settings {
            self.error(
                &name,
                format!("{problem}; until this is corrected, deletions wait, or use the last good settings"),
            );
        }
        if !leads {
            let text = "the operator has listed no cloud yet, or runs with --sweep=off";
            self.0.push(unknown("clouds", text.to_owned()));
            return None;
        }
        for cloud in &mut clouds {
            let shown = |lost: &LostVm| namespace.is_none_or(|it| it == lost.namespace);
            cloud.lost.retain(shown);
            if let Some(problem) = &cloud.problem {
                self.error(&cloud.cloud, format!("the newest listing failed: {problem}"));
            }
        }
        Some(clouds)
    }
}

/// How long something lasts, as kubectl writes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Age(pub(super) SignedDuration);

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The clock of this machine may be behind.
        let seconds = self.0.as_secs().max(0);
        let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
        match seconds {
            ..120 => write!(f, "{seconds}s"),
            120..600 if seconds % 60 > 0 => write!(f, "{minutes}m{}s", seconds % 60),
            120..10_800 => write!(f, "{minutes}m"),
            10_800..28_800 if minutes % 60 > 0 => write!(f, "{hours}h{}m", minutes % 60),
            10_800..172_800 => write!(f, "{hours}h"),
            172_800..691_200 if hours % 24 > 0 => write!(f, "{days}d{}h", hours % 24),
            _ => write!(f, "{days}d"),
        }
    }
}

#[cfg(test)]
mod tests;
