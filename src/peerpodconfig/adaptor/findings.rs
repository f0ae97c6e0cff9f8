//! The conditions about the rollout of cloud-api-adaptor. Pure *(no client)*.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetStatus, DaemonSetUpdateStrategy};
use kube::ResourceExt;
use operator_kit::text::listed;

use super::super::{
    capacity::Summary,
    conditions::{Finding, Reason},
    resources::{self, Inputs, InstanceType},
};
use crate::api::v1alpha1::PeerPodConfig;

/// The ServiceAccount of cloud-api-adaptor does not exist.
pub(super) fn account_missing(namespace: &str) -> Finding {
    let message = format!(
        "the ServiceAccount {} does not exist in the namespace {namespace}, so cloud-api-adaptor gets no Pods; \
         apply the operator's installation again: it contains the ServiceAccount",
        resources::SERVICE_ACCOUNT,
    );
    Finding::new(Reason::ServiceAccountMissing, message)
}

/// The problem with the annotations of the ServiceAccount, if there is one.
pub(super) fn unusable_annotations(config: &PeerPodConfig) -> Option<Finding> {
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

/// The problem with the annotations of the ServiceAccount to which an older one of `configs` gives another value, if there is one.
/// `configs`: the oldest first.
pub(super) fn overruled_annotations(
    config: &PeerPodConfig,
    configs: &[Arc<PeerPodConfig>],
) -> Option<Finding> {
    let own = &config.spec.adaptor.service_account_annotations;
    let older = configs.iter().take_while(|it| it.metadata.name != config.metadata.name);
    let counts = resources::account_annotations(older.map(AsRef::as_ref)).into_iter();
    let overruled = counts.filter(|(key, (_, value))| own.get(*key).is_some_and(|it| it != value));
    let overruled: Vec<_> =
        overruled.map(|(key, (first, _))| format!("{key} ({})", first.name_any())).collect();
    (!overruled.is_empty()).then(|| {
        let message = format!(
            "spec.adaptor.serviceAccountAnnotations: all PeerPodConfigs share the ServiceAccount, and older ones give \
             these annotations another value, which the operator writes: {}",
            listed(&overruled)
        );
        Finding::new(Reason::AnnotationsLeftOut, message)
    })
}

/// The problem with `instanceType`, if there is one.
pub(super) fn instance_type(inputs: &Inputs<'_>) -> Option<String> {
    match resources::instance_type(&inputs.owner.config.spec, inputs.settings) {
        InstanceType::Unset | InstanceType::Reaches(_) => None,
        InstanceType::Overruled(key) => {
            Some(format!("instanceType has no effect: the setting {key} overrules it"))
        }
        InstanceType::NoEffect { cloud } => {
            Some(format!("instanceType has no effect: cloud-api-adaptor has no such setting on {cloud}"))
        }
    }
}

/// The state of the DaemonSet's rollout. `remedy`: what to do while its Pods do not run. With the strategy `OnDelete` its user decides when
/// the Pods are updated, and until then they serve.
pub(super) fn rollout(
    daemon_set: Option<&DaemonSet>,
    strategy: Option<&DaemonSetUpdateStrategy>,
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
    if summary.nodes == 0 {
        let message = match &summary.selection {
            Ok(selection) => selection.unmatched(),
            Err(problem) => problem.to_string(),
        };
        return finding(Reason::NoNodes, message);
    }
    let is_by_hand = strategy.is_some_and(|it| it.type_.as_deref() == Some("OnDelete"));
    let progress = Progress::of(status, summary);
    if progress.lacks_pods() || progress.is_outdated() && !is_by_hand {
        return finding(Reason::AdaptorStarting, progress.starting(summary, strategy, remedy));
    }
    if let Some(message) = summary.kept_off() {
        return finding(Reason::NodesTainted, message);
    }
    let Progress { updated, expected, .. } = progress;
    if expected == 0 {
        return finding(
            Reason::NodesNotReady,
            format!("no selected node is ready: {}", listed(&summary.not_ready)),
        );
    }
    let outdated = if progress.is_outdated() {
        format!(
            "; {updated} of its Pods are up to date: updateStrategy is OnDelete, so delete the others to update them"
        )
    } else {
        String::new()
    };
    finding(
        Reason::AdaptorRunning,
        format!("cloud-api-adaptor runs on {expected} nodes{}{outdated}", not_counted(&summary.not_ready)),
    )
}

/// How many Pods of the DaemonSet there are.
struct Progress {
    ready: usize,
    updated: usize,
    /// How many there should be.
    expected: usize,
}

impl Progress {
    fn of(status: &DaemonSetStatus, summary: &Summary) -> Self {
        let [ready, updated] = [status.number_available, status.updated_number_scheduled]
            .map(|pods| usize::try_from(pods.unwrap_or(0)).unwrap_or(0));
        // The number of wanted Pods comes from the nodes, not from the status: the DaemonSet controller still counts a Pod that
        // waited for a node which is no longer selected. And in a large cluster some node is always not ready, and no configuration
        // waits for it. The numbers do not show which Pod is that node's, but they show whether others are missing.
        let open = summary.nodes - summary.tainted.len();
        Self { ready, updated, expected: open.saturating_sub(summary.not_ready.len()) }
    }

    const fn lacks_pods(&self) -> bool {
        self.ready < self.expected
    }

    const fn is_outdated(&self) -> bool {
        self.updated < self.expected
    }

    /// The message while Pods are missing or are being updated.
    fn starting(
        &self,
        summary: &Summary,
        strategy: Option<&DaemonSetUpdateStrategy>,
        remedy: &str,
    ) -> String {
        let Self { ready, updated, expected } = self;
        // Without a surge, a rolling update counts the Pods of lost nodes as unavailable, and by default allows one.
        let held = if self.lacks_pods() || summary.not_ready.is_empty() || resources::surges(strategy) {
            ""
        } else {
            "; the update may be waiting: it continues only while fewer nodes than \
             adaptor.updateStrategy.rollingUpdate.maxUnavailable are not ready"
        };
        let not_counted = not_counted(&summary.not_ready);
        format!(
            "{ready} of {expected} Pods are ready, and {updated} are up to date{not_counted}{held}; {remedy}"
        )
    }
}

/// The appendix of a message about nodes that are not ready.
fn not_counted(not_ready: &[Arc<str>]) -> String {
    if not_ready.is_empty() {
        return String::new();
    }
    format!("; without the nodes that are not ready: {}", listed(not_ready))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::super::capacity::NodeRequest, *};
    use crate::api::v1alpha1::PeerPodConfigSpec;

    #[test]
    fn annotations_that_an_older_configuration_sets_otherwise_are_named_with_it() {
        let config = |name: &str, annotations: serde_json::Value| {
            let spec = json!({ "adaptor": { "serviceAccountAnnotations": annotations } });
            Arc::new(PeerPodConfig::new(name, serde_json::from_value(spec).unwrap()))
        };
        let mut configs = vec![
            config("first", json!({ "a": "1", "b": "1" })),
            config("second", json!({ "a": "1", "b": "2", "c": "2", "role arn": "2" })),
            config("third", json!({ "b": "2", "c": "3", "role arn": "3" })),
        ];
        let named = |configs: &[Arc<PeerPodConfig>]| -> Vec<_> {
            let finding = |config: &Arc<PeerPodConfig>| overruled_annotations(config, configs);
            let names =
                |finding: Finding| finding.message.rsplit_once(": ").map(|(_, names)| names.to_owned());
            configs.iter().map(|config| finding(config).and_then(names)).collect()
        };
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(named(&configs), [None, text("b (first)"), text("b (first), c (second)")]);
        // What is being deleted counts no more.
        Arc::make_mut(&mut configs[0]).metadata.deletion_timestamp = Some(jiff::Timestamp::UNIX_EPOCH.into());
        assert_eq!(named(&configs), [None, None, text("c (second)")]);
    }

    #[test]
    fn it_is_ready_when_it_runs_on_every_node_that_is_selected_and_ready() {
        let config = PeerPodConfig::new("config", PeerPodConfigSpec::default());
        let summary = Summary { nodes: 3, ..Summary::of(&NodeRequest::of(&config), &[]) };
        let taint = |node: &str| (node.into(), "x:NoSchedule".into());
        let tainted = Summary { tainted: vec![taint("a")], ..summary.clone() };
        let all_tainted = Summary { tainted: ["a", "b", "c"].map(taint).into(), ..summary.clone() };
        let not_ready = Summary { not_ready: vec!["b".into()], ..summary.clone() };
        let not_ready_and_tainted = Summary { not_ready: vec!["b".into()], ..tainted.clone() };
        let none_ready = Summary { not_ready: ["a", "b", "c"].map(Into::into).into(), ..summary.clone() };
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
            ((3, 3, 3), &not_ready, "AdaptorRunning"),
            ((3, 2, 3), &not_ready, "AdaptorRunning"),
            ((3, 2, 2), &not_ready, "AdaptorRunning"),
            ((2, 2, 2), &not_ready, "AdaptorRunning"),
            ((3, 1, 3), &not_ready, "AdaptorStarting"),
            ((3, 3, 1), &not_ready, "AdaptorStarting"),
            ((1, 1, 1), &not_ready, "AdaptorStarting"),
            ((2, 1, 1), &not_ready_and_tainted, "NodesTainted"),
            ((2, 0, 2), &not_ready_and_tainted, "AdaptorStarting"),
            ((3, 0, 0), &none_ready, "NodesNotReady"),
            ((0, 0, 0), &none_ready, "NodesNotReady"),
        ] {
            let found = rollout(Some(&daemon_set(pods)), None, summary, "look", None);
            assert_eq!(found.reason.as_str(), expected, "{pods:?} of {summary:?}");
            assert_eq!(found.message.ends_with("; look"), expected == "AdaptorStarting", "{}", found.message);
        }
        let on_delete = DaemonSetUpdateStrategy { type_: Some("OnDelete".into()), rolling_update: None };
        let by_hand = |pods| rollout(Some(&daemon_set(pods)), Some(&on_delete), &summary, "look", None);
        let outdated = by_hand((3, 3, 1));
        assert_eq!(outdated.reason.as_str(), "AdaptorRunning", "its user updates it");
        assert!(outdated.message.contains("1 of its Pods are up to date"), "{}", outdated.message);
        assert_eq!(by_hand((3, 3, 3)).message, "cloud-api-adaptor runs on 3 nodes");
        assert_eq!(by_hand((3, 2, 1)).reason.as_str(), "AdaptorStarting");
        let surge =
            json!({ "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } });
        let surge: DaemonSetUpdateStrategy = serde_json::from_value(surge).unwrap();
        let no_surge = json!({ "rollingUpdate": { "maxSurge": 0, "maxUnavailable": 2 } });
        let no_surge: DaemonSetUpdateStrategy = serde_json::from_value(no_surge).unwrap();
        for (pods, strategy, summary, waits) in [
            ((3, 2, 1), None, &not_ready, true),
            ((3, 2, 1), Some(&surge), &not_ready, false),
            ((3, 2, 1), Some(&no_surge), &not_ready, true),
            ((3, 1, 1), None, &not_ready, false),
            ((3, 3, 1), None, &summary, false),
        ] {
            let message = rollout(Some(&daemon_set(pods)), strategy, summary, "look", None).message;
            let held = "; the update may be waiting: it continues only while fewer nodes than \
                        adaptor.updateStrategy.rollingUpdate.maxUnavailable are not ready; look";
            assert_eq!(message.ends_with(held), waits, "{message}");
        }
        let message = rollout(Some(&daemon_set((3, 2, 3))), None, &not_ready, "look", None).message;
        assert_eq!(message, "cloud-api-adaptor runs on 2 nodes; without the nodes that are not ready: b");
        let message = rollout(Some(&daemon_set((0, 0, 0))), None, &none, "look", None).message;
        assert!(message.contains("kubectl label node NAME node.kubernetes.io/worker="), "{message}");
        assert_eq!(Summary { limit: Ok(Some(1)), ..none }.capacity().message, message);
        assert_eq!(rollout(None, None, &summary, "look", None).reason.as_str(), "AdaptorStarting");
    }
}
