//! The preconditions for deploying cloud-api-adaptor. The operator checks them before it writes to nodes: until the DaemonSet
//! exists, nodes advertise nothing.

use futures::FutureExt;
use k8s_openapi::{api::apps::v1::DaemonSet, apimachinery::pkg::apis::meta::v1::Condition};
use kube::{Resource, ResourceExt};

use super::{
    Context,
    capacity::{NodeRequest, Summary},
    conditions::{ConditionType, Finding, Reason},
    observe::Sources,
    resources::{CONFIG_LABEL, Names},
    settings,
};
use crate::api::v1alpha1::PeerPodConfig;

impl Context {
    /// What all configurations request of the nodes; `None` until all nodes and DaemonSets have been listed.
    pub(super) async fn node_requests(&self) -> Option<Vec<NodeRequest>> {
        // Before that, every DaemonSet would seem to be missing.
        self.daemon_sets.wait_until_ready().now_or_never()?.ok()?;
        let here = self.here();
        let mut requests: Vec<_> = here.iter().map(|config| NodeRequest::of(config)).collect();
        let mut survey = None;
        for (index, config) in here.iter().enumerate() {
            // A cloud-api-adaptor that runs keeps running.
            let current = self.current_daemon_set(&Names::of(config).adaptor);
            if requests[index].deleted || current.as_ref().is_some_and(|it| is_of(it, config)) {
                continue;
            }
            if survey.is_none() {
                survey = self.capacity.survey(&requests);
            }
            let summary = &survey.as_ref()?[index];
            let unmet = match (&current, self.observer.settings(config).await) {
                (Some(taken), _) if !taken.labels().contains_key(CONFIG_LABEL) => {
                    let message = format!("this operator did not create the DaemonSet {}", taken.name_any());
                    Some(message)
                }
                (_, Ok(sources)) => match self.unmet_precondition(config, summary, &sources) {
                    Some(finding) => Some(finding.message),
                    None => missing(config, summary),
                },
                (_, Err(error)) => Some(format!("reading the settings failed: {error}")),
            };
            requests[index].withheld = unmet;
        }
        Some(requests)
    }

    /// Why a configuration's cloud-api-adaptor must not be deployed.
    pub(super) fn unmet_precondition(
        &self,
        config: &PeerPodConfig,
        summary: &Summary,
        sources: &Sources,
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
        let unmanaged = self.unmanaged_adaptors(config);
        unmanaged.first().map(|first| Finding::new(Reason::AnotherAdaptor, first.to_string()))
    }
}

/// Why a DaemonSet is missing although all preconditions are met. `None` while its nodes advertise VMs: a DaemonSet that was
/// deleted by hand is created again in a moment, and until then the nodes keep what they advertise.
fn missing(config: &PeerPodConfig, summary: &Summary) -> Option<String> {
    if summary.marked == 0 {
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

/// Whether the DaemonSet was created for the configuration, whatever labels it has now.
fn is_of(daemon_set: &DaemonSet, config: &PeerPodConfig) -> bool {
    let uid = config.meta().uid.as_ref();
    uid.is_some() && daemon_set.owner_references().iter().any(|owner| Some(&owner.uid) == uid)
}
