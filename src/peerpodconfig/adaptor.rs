//! The part of a reconcile that deploys cloud-api-adaptor on the nodes.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::{ResourceExt, runtime::reflector::ObjectRef};
use operator_kit::{api_call::ApiError, text::listed};

use super::{
    Context,
    apply::{self, Wanted},
    capacity::Summary,
    conditions::{Finding, Reason},
    observe::Sources,
    reconcile::{Part, ReconcileError, name_taken},
    resources::{self, Inputs, InstanceType, Names},
    settings,
};
use crate::api::v1alpha1::PeerPodConfig;

/// How often the operator checks what it does not watch: whether an unmanaged object still conflicts.
pub(super) const UNWATCHED_RESYNC: Duration = Duration::from_secs(20);

/// How often the operator lists Pods on older settings that were not ready when they ended or restarted. In a large cluster the
/// list is long.
const OLDER_PODS_RESYNC: Duration = Duration::from_secs(60);

impl Context {
    /// cloud-api-adaptor on the nodes.
    pub(super) async fn adaptor(
        &self,
        config: &PeerPodConfig,
        summary: &Summary,
        sources: Result<Sources, ApiError>,
    ) -> Result<Part, ReconcileError> {
        let sources = &sources?;
        let mut findings: Vec<_> = self.unmet_precondition(config, summary, sources).into_iter().collect();
        let is_obstructed = !findings.is_empty();
        let mounted = self.options.mounted.as_ref();
        findings.extend(mounted.and_then(|mounted| settings::not_mounted(&config.spec, mounted)));
        if findings.iter().any(|it| matches!(it.reason, Reason::InvalidSpec | Reason::SettingsMissing)) {
            return Ok(Part { findings, again: None });
        }
        let name = Names::of(config).adaptor;
        let current = self.current_daemon_set(&name);
        // A cloud-api-adaptor that runs keeps running: without it, its VMs would be lost.
        if is_obstructed && current.is_none() {
            let withheld = "the operator does not deploy cloud-api-adaptor; the condition Conflict says why";
            findings.push(Finding::new(Reason::AdaptorWithheld, withheld));
            return Ok(Part { findings, again: Some(UNWATCHED_RESYNC) });
        }

        let restarts = config.spec.adaptor.restart_on_settings_change;
        let in_force = sources.settings.in_force(current.as_ref(), restarts);
        let inputs = &self.inputs(config, &in_force);
        let mut daemon_set = resources::daemon_set(inputs);
        let since = settings::since(current.as_ref(), &sources.settings.hash, Timestamp::now());
        let older = match since {
            Some(since) => self.observer.pods_older_than(&config.name_any(), since).await?,
            None => Vec::new(),
        };
        // After the last of them has ended, no further list is needed.
        let since = since.filter(|_| !older.is_empty());
        let record = settings::record(&sources.settings.hash, since);
        daemon_set.metadata.annotations.get_or_insert_default().extend(record);
        let kinds = [self.kind::<DaemonSet>(true)];
        let found =
            apply::bring(&self.client, &self.drifts, &config.name_any(), &kinds, &[Wanted::of(&daemon_set)?])
                .await?;
        let has_account = self.annotate_service_account().await?;
        let mut part = Part { findings, again: None };
        if let Some(taken) = name_taken(&found) {
            part.findings = vec![
                taken,
                Finding::new(Reason::AdaptorWithheld, "the operator cannot create the DaemonSet"),
            ];
            return Ok(part);
        }
        if !has_account {
            let message = format!(
                "the ServiceAccount {} does not exist in the namespace {}, so cloud-api-adaptor gets no \
                 Pods; apply the operator's installation again: it contains the ServiceAccount",
                resources::SERVICE_ACCOUNT,
                self.options.namespace
            );
            part.findings.push(Finding::new(Reason::ServiceAccountMissing, message));
            part.again = Some(UNWATCHED_RESYNC);
        }
        part.findings.extend(unusable_annotations(config));
        let remedy = resources::Part::Adaptor.diagnosis(config, &self.options.namespace);
        let hint = settings::hint(&config.spec, &sources.missing);
        let remedy = hint.into_iter().fold(remedy, |remedy, hint| format!("{remedy}; {hint}"));
        part.findings.push(rollout(found.get(&name).as_ref(), summary, &remedy, instance_type(inputs)));
        let misfit = sources.settings.shape_differs(&in_force).then_some(&in_force);
        if !older.is_empty() || misfit.is_some() {
            // The DaemonSet's status shows when a ready Pod ends or restarts.
            part.findings.push(settings::older(&older, restarts, misfit));
            part.again.get_or_insert(OLDER_PODS_RESYNC);
        }
        Ok(part)
    }

    /// Annotates the ServiceAccount, which all configurations share, with the union of what they want. Returns whether it exists.
    pub(super) async fn annotate_service_account(&self) -> Result<bool, ReconcileError> {
        let mut here = self.here();
        here.retain(|config| config.metadata.deletion_timestamp.is_none());
        let account = resources::service_account(here.iter().map(AsRef::as_ref), &self.options.namespace);
        Ok(apply::adjust(&self.client, &self.drifts, &Wanted::of(&account)?).await?)
    }

    pub(super) fn current_daemon_set(&self, name: &str) -> Option<DaemonSet> {
        let key = ObjectRef::new(name).within(&self.options.namespace);
        self.daemon_sets.get(&key).map(|found| (*found).clone())
    }

    pub(super) fn unmanaged_adaptors(&self, config: &PeerPodConfig) -> Vec<resources::Unmanaged> {
        let mut candidates = self.daemon_sets.state();
        candidates.retain(|it| resources::runs_anothers_adaptor(it, config));
        // Usually there is none, which saves a loop over thousands of nodes.
        if candidates.is_empty() {
            return Vec::new();
        }
        let nodes: Vec<_> =
            self.capacity.nodes().snapshot().unwrap_or_default().iter().map(|it| it.as_node()).collect();
        resources::unmanaged_adaptors(candidates.iter().map(AsRef::as_ref), config, &nodes)
    }
}

/// The problem with the annotations of the ServiceAccount, if there is one.
fn unusable_annotations(config: &PeerPodConfig) -> Option<Finding> {
    let keys: Vec<_> = resources::unusable_annotations(config).iter().map(|key| format!("{key:?}")).collect();
    (!keys.is_empty()).then(|| {
        let message = format!(
            "spec.adaptor.serviceAccountAnnotations: these are no valid names of annotations, so the \
             operator leaves them out: {}",
            listed(&keys)
        );
        Finding::new(Reason::AnnotationsLeftOut, message)
    })
}

/// The problem with `instanceType`, if there is one.
fn instance_type(inputs: &Inputs<'_>) -> Option<String> {
    match resources::instance_type(&inputs.config.spec, inputs.settings) {
        InstanceType::Unset | InstanceType::Reaches(_) => None,
        InstanceType::Overruled(key) => {
            Some(format!("instanceType has no effect: the setting {key} overrules it"))
        }
        InstanceType::NoEffect { cloud } => {
            Some(format!("instanceType has no effect: cloud-api-adaptor has no such setting on {cloud}"))
        }
    }
}

/// The state of the DaemonSet's rollout. `remedy`: what to do while its Pods do not run.
fn rollout(
    daemon_set: Option<&DaemonSet>,
    summary: &Summary,
    remedy: &str,
    remark: Option<String>,
) -> Finding {
    let finding = |reason, message: String| {
        let remark = remark.map(|remark| format!("; {remark}")).unwrap_or_default();
        Finding::new(reason, message + &remark)
    };
    let observed = daemon_set.and_then(|it| {
        let status = it.status.as_ref()?;
        (status.observed_generation == it.metadata.generation).then_some(status)
    });
    let Some(status) = observed else {
        return finding(Reason::AdaptorStarting, "the DaemonSet is new or has changed".into());
    };
    let [ready, updated] = [status.number_available, status.updated_number_scheduled]
        .map(|pods| usize::try_from(pods.unwrap_or(0)).unwrap_or(0));
    if summary.nodes == 0 {
        let message = match &summary.selection {
            Ok(selection) => selection.unmatched(),
            Err(problem) => problem.to_string(),
        };
        return finding(Reason::NoNodes, message);
    }
    // The number of wanted Pods comes from the nodes, not from the status: the DaemonSet controller still counts a Pod that waited
    // for a node which is no longer selected. And in a large cluster some node is always lost, and no configuration waits for it.
    // The numbers do not show which Pod is that node's, but they show whether others are missing.
    let open = summary.nodes - summary.tainted.len();
    let expected = open.saturating_sub(summary.lost.len());
    let lost = not_counted(&summary.lost);
    if ready < expected || updated < expected {
        let message =
            format!("{ready} of {expected} Pods are ready, and {updated} are up to date{lost}; {remedy}");
        return finding(Reason::AdaptorStarting, message);
    }
    if let Some(message) = summary.kept_off() {
        return finding(Reason::NodesTainted, message);
    }
    if expected == 0 {
        return finding(
            Reason::NodesNotReady,
            format!("no selected node is ready: {}", listed(&summary.lost)),
        );
    }
    finding(Reason::AdaptorRunning, format!("cloud-api-adaptor runs on {expected} nodes{lost}"))
}

/// The appendix of a message about lost nodes.
fn not_counted(lost: &[Arc<str>]) -> String {
    if lost.is_empty() {
        return String::new();
    }
    format!("; without the nodes that are not ready: {}", listed(lost))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::capacity::NodeRequest, *};
    use crate::api::v1alpha1::PeerPodConfigSpec;

    #[test]
    fn it_is_ready_when_it_runs_on_every_node_that_is_selected_and_ready() {
        let config = PeerPodConfig::new("config", PeerPodConfigSpec::default());
        let summary = Summary { nodes: 3, ..Summary::of(&NodeRequest::of(&config)) };
        let taint = |node: &str| (node.into(), "x:NoSchedule".into());
        let tainted = Summary { tainted: vec![taint("a")], ..summary.clone() };
        let all_tainted = Summary { tainted: ["a", "b", "c"].map(taint).into(), ..summary.clone() };
        let lost = Summary { lost: vec!["b".into()], ..summary.clone() };
        let lost_and_tainted = Summary { lost: vec!["b".into()], ..tainted.clone() };
        let all_lost = Summary { lost: ["a", "b", "c"].map(Into::into).into(), ..summary.clone() };
        let none = Summary { nodes: 0, ..summary.clone() };
        let daemon_set = |(desired, available, updated): (i32, i32, i32)| -> DaemonSet {
            let status = json!({
                "observedGeneration": 2, "desiredNumberScheduled": desired, "numberAvailable": available,
                "updatedNumberScheduled": updated, "currentNumberScheduled": available, "numberMisscheduled": 0,
                "numberReady": available,
            });
            serde_json::from_value(json!({ "metadata": { "generation": 2 }, "status": status })).unwrap()
        };
        for (pods, summary, expected) in [
            ((3, 3, 3), &summary, "AdaptorRunning"),
            ((3, 2, 3), &summary, "AdaptorStarting"),
            ((3, 3, 2), &summary, "AdaptorStarting"),
            ((2, 2, 2), &summary, "AdaptorStarting"),
            ((2, 2, 2), &tainted, "NodesTainted"),
            ((0, 0, 0), &all_tainted, "NodesTainted"),
            ((2, 1, 2), &tainted, "AdaptorStarting"),
            ((0, 0, 0), &summary, "AdaptorStarting"),
            ((0, 0, 0), &none, "NoNodes"),
            ((4, 3, 4), &summary, "AdaptorRunning"),
            ((3, 3, 3), &lost, "AdaptorRunning"),
            ((3, 2, 3), &lost, "AdaptorRunning"),
            ((3, 2, 2), &lost, "AdaptorRunning"),
            ((2, 2, 2), &lost, "AdaptorRunning"),
            ((3, 1, 3), &lost, "AdaptorStarting"),
            ((3, 3, 1), &lost, "AdaptorStarting"),
            ((1, 1, 1), &lost, "AdaptorStarting"),
            ((2, 1, 1), &lost_and_tainted, "NodesTainted"),
            ((2, 0, 2), &lost_and_tainted, "AdaptorStarting"),
            ((3, 0, 0), &all_lost, "NodesNotReady"),
            ((0, 0, 0), &all_lost, "NodesNotReady"),
        ] {
            let found = rollout(Some(&daemon_set(pods)), summary, "look", None);
            assert_eq!(found.reason.as_str(), expected, "{pods:?} of {summary:?}");
            assert_eq!(found.message.ends_with("; look"), expected == "AdaptorStarting", "{}", found.message);
        }
        let message = rollout(Some(&daemon_set((3, 2, 3))), &lost, "look", None).message;
        assert_eq!(message, "cloud-api-adaptor runs on 2 nodes; without the nodes that are not ready: b");
        let message = rollout(Some(&daemon_set((0, 0, 0))), &none, "look", None).message;
        assert!(message.contains("kubectl label node NAME node.kubernetes.io/worker="), "{message}");
        assert_eq!(Summary { limit: Ok(Some(1)), ..none }.capacity().message, message);
        assert_eq!(rollout(None, &summary, "look", None).reason.as_str(), "AdaptorStarting");
    }
}
