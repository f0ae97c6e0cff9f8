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
        let sources = Sources::read(&observer.client, &observer.namespace, config).await;
        let unmet = match (&current, sources) {
            (Some(taken), _) if !taken.labels().contains_key(CONFIG_LABEL) => {
                Some(format!("this operator did not create the DaemonSet {}", taken.name_any()))
            }
            (_, Ok(sources)) => match unmet(config, summary, &sources, observer.unmanaged(config).as_ref()) {
                Some(finding) => Some(finding.message),
                None => missing(config, summary),
            },
            (_, Err(error)) => Some(format!("reading the settings failed: {error}")),
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

/// Whether the DaemonSet was created for the configuration, whatever its labels are now.
fn is_owned_by(daemon_set: &DaemonSet, config: &PeerPodConfig) -> bool {
    let uid = config.meta().uid.as_ref();
    uid.is_some() && daemon_set.owner_references().iter().any(|owner| Some(&owner.uid) == uid)
}

#[cfg(test)]
mod tests {
    use super::*;

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
