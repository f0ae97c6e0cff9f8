//! The preconditions for deploying cloud-api-adaptor. The operator checks them before it writes to nodes: until the DaemonSet
//! exists, nodes advertise nothing.

use std::sync::Arc;

use futures::FutureExt;
use k8s_openapi::{api::apps::v1::DaemonSet, apimachinery::pkg::apis::meta::v1::Condition};
use kube::{Resource, ResourceExt};

use super::{
    super::{
        capacity::{NodeRequest, Summary, survey},
        conditions::{ConditionType, Finding, Reason},
        findings::{Findings, UNWATCHED_RESYNC},
        resources::{CONFIG_LABEL, Unmanaged},
        sources::Sources,
    },
    observe::Observer,
    settings,
};
use crate::api::v1alpha1::PeerPodConfig;

/// What these configurations request of the nodes; `None` until all nodes and DaemonSets have been listed *(client required)*.
pub(super) async fn node_requests(
    observer: &Observer,
    configs: &[Arc<PeerPodConfig>],
) -> Option<Vec<NodeRequest>> {
    // Before that, every DaemonSet would seem to be missing.
    observer.daemon_sets.wait_until_ready().now_or_never()?.ok()?;
    let mut requests: Vec<_> = configs.iter().map(|config| NodeRequest::of(config)).collect();
    let mut summaries = None;
    for (index, config) in configs.iter().enumerate() {
        // A cloud-api-adaptor that runs keeps running.
        let current = observer.current(config);
        if requests[index].deleted || current.as_ref().is_some_and(|it| is_owned_by(it, config)) {
            continue;
        }
        if summaries.is_none() {
            summaries = Some(survey(&requests, &observer.nodes.snapshot()?));
        }
        let summary = &summaries.as_ref()?[index];
        let unmet = match (&current, observer.sources(config).await) {
            (Some(taken), _) if !taken.labels().contains_key(CONFIG_LABEL) => {
                Some(format!("this operator did not create the DaemonSet {}", taken.name_any()))
            }
            (_, Ok(sources)) => match unmet(config, summary, &sources, observer.unmanaged(config).as_ref()) {
                Some(finding) => Some(finding.message),
                None => missing(config, summary),
            },
            // It may be an outage, which is no reason to take from nodes what they advertise.
            (_, Err(error)) => {
                is_withheld(config, summary).then(|| format!("reading the settings failed: {error}"))
            }
        };
        requests[index].withheld = unmet;
    }
    Some(requests)
}

/// Why a configuration's cloud-api-adaptor must not be deployed. `unmanaged`: another one on its nodes.
pub(super) fn unmet(
    config: &PeerPodConfig,
    summary: &Summary,
    sources: &Sources,
    unmanaged: Option<&Unmanaged>,
) -> Option<Finding> {
    if let Err(problem) = &summary.selection {
        return Some(Finding::new(Reason::InvalidSpec, problem.to_string()));
    }
    if let Some(problem) = settings::problem(&config.spec, sources) {
        return Some(Finding::new(Reason::SettingsMissing, problem));
    }
    if let Some(message) = summary.conflict() {
        return Some(Finding::new(Reason::NodesTaken, message));
    }
    unmanaged.map(|it| Finding::new(Reason::AnotherAdaptor, it.to_string()))
}

/// What a precondition that is not met leads to.
#[derive(Clone, Debug)]
pub(super) enum Consequence {
    /// The operator deploys cloud-api-adaptor nevertheless.
    DeployAnyway,
    /// The operator does not deploy cloud-api-adaptor, and reports these findings beside the precondition.
    Withhold(Findings),
}

/// What this precondition leads to. `runs`: whether there is a DaemonSet.
pub(super) fn consequence(unmet: &Finding, runs: bool) -> Consequence {
    match unmet.reason {
        // The DaemonSet cannot be built.
        Reason::InvalidSpec | Reason::SettingsMissing => Consequence::Withhold(Findings::default()),
        // A cloud-api-adaptor that runs keeps running: without it, its VMs would be lost.
        _ if runs => Consequence::DeployAnyway,
        _ => {
            let message = "the operator does not deploy cloud-api-adaptor; the condition Conflict says why";
            let findings = Findings::of(Reason::AdaptorWithheld, message);
            Consequence::Withhold(Findings { again: Some(UNWATCHED_RESYNC), ..findings })
        }
    }
}

/// Why a DaemonSet is missing although all preconditions are met. `None` while its nodes advertise VMs: a DaemonSet that was
/// deleted by hand is created again in a moment, and until then the nodes keep what they advertise.
fn missing(config: &PeerPodConfig, summary: &Summary) -> Option<String> {
    if summary.marked_own == 0 {
        return Some("the operator has not created the DaemonSet yet".to_owned());
    }
    let failed = |condition: &&Condition| {
        condition.type_ == ConditionType::AdaptorReady.as_str()
            && [Reason::InvalidSpec, Reason::AdaptorFailed]
                .iter()
                .any(|reason| reason.as_str() == condition.reason)
            && condition.observed_generation == config.metadata.generation
    };
    let failure = config.status.as_ref()?.conditions.iter().find(failed)?;
    Some(format!("the operator cannot create the DaemonSet: {}", failure.message))
}

/// Whether the nodes of a configuration advertise nothing for it, or the last report says that they are not to.
fn is_withheld(config: &PeerPodConfig, summary: &Summary) -> bool {
    let mut reported = config.status.iter().flat_map(|status| &status.conditions);
    summary.marked_own == 0 || reported.any(|condition| condition.reason == Reason::NoAdaptor.as_str())
}

/// Whether the DaemonSet was created for the configuration, whatever its labels are now.
fn is_owned_by(daemon_set: &DaemonSet, config: &PeerPodConfig) -> bool {
    let uid = config.meta().uid.as_ref();
    uid.is_some() && daemon_set.owner_references().iter().any(|owner| Some(&owner.uid) == uid)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::StreamExt;
    use kube::runtime::{reflector, watcher::Event};
    use operator_kit::testing::{Answer, ApiServer, Call};
    use serde_json::json;

    use super::{
        super::super::{
            capacity::{MARK, Nodes},
            selection::WORKER_LABEL,
        },
        *,
    };

    const VM: &str = "kata.peerpods.io/vm";

    /// A configuration whose capacity was last reported with this reason.
    fn config(reported: &str) -> PeerPodConfig {
        let condition = json!({
            "type": "CapacityAdvertised", "status": "True", "reason": reported, "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let config = serde_json::from_value(json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig",
            "metadata": { "name": "config", "namespace": "ns", "uid": "config", "generation": 1 },
            "spec": { "limit": 1, "admission": { "extendedResource": VM } }, "status": { "conditions": [condition] },
        }));
        config.unwrap()
    }

    /// Why a configuration without DaemonSet is withheld while its Secret cannot be read. `mark`: the resource that its node
    /// advertises.
    async fn withheld_unread(mark: Option<&str>, reported: &str) -> Option<String> {
        let node = json!({ "metadata": {
            "name": "a", "uid": "a", "labels": { (WORKER_LABEL): "" },
            "annotations": mark.map(|mark| json!({ (MARK): mark })),
        } });
        let nodes = json!({
            "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "1" }, "items": [node],
        });
        let down = Answer::error(500, "InternalError", "down");
        let server = ApiServer::expecting([
            Call::get("/api/v1/nodes").answer(Answer::json(200, &nodes)),
            Call::get("/api/v1/namespaces/ns/configmaps/peer-pods-cm")
                .answer(Answer::not_found("configmaps", "peer-pods-cm")),
            Call::get("/api/v1/namespaces/ns/secrets/peer-pods-secret").answer(down),
        ]);
        let (nodes, changes) = Nodes::watch(server.client());
        pin!(changes).next().await.unwrap();
        let (daemon_sets, mut writer) = reflector::store();
        writer.apply_watcher_event(&Event::Init);
        writer.apply_watcher_event(&Event::InitDone);
        let observer = Observer { client: server.client(), namespace: "ns".to_owned(), daemon_sets, nodes };
        let requests = node_requests(&observer, &[Arc::new(config(reported))]).await;
        requests.unwrap().remove(0).withheld
    }

    #[tokio::test]
    async fn settings_that_cannot_be_read_change_nothing_on_nodes() {
        assert_eq!(withheld_unread(Some(VM), "Advertised").await, None);
        for (mark, reported) in [(None, "Advertised"), (Some(VM), "NoAdaptor")] {
            let why = withheld_unread(mark, reported).await.unwrap();
            assert!(why.contains("reading the settings failed") && why.contains("down"), "{why}");
        }
    }

    #[test]
    fn one_that_runs_is_deployed_despite_a_conflict_but_not_without_settings() {
        let reported = |reason, runs| match consequence(&Finding::new(reason, ""), runs) {
            Consequence::DeployAnyway => None,
            Consequence::Withhold(Findings { all, again }) => {
                Some((all.into_iter().map(|it| it.reason).collect::<Vec<_>>(), again.is_some()))
            }
        };
        for (reason, runs) in [(Reason::InvalidSpec, true), (Reason::SettingsMissing, false)] {
            assert_eq!(reported(reason, runs), Some((vec![], false)));
        }
        for reason in [Reason::NodesTaken, Reason::AnotherAdaptor] {
            assert_eq!(reported(reason, true), None);
            assert_eq!(reported(reason, false), Some((vec![Reason::AdaptorWithheld], true)));
        }
    }
}
