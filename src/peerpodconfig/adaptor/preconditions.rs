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
        options::MountedSettings,
        resources::{self, CONFIG_LABEL, Unmanaged},
        sources::{AdaptorPlace, Sources},
    },
    observe::Observer,
    settings,
};
use crate::api::v1alpha1::{PeerPodConfig, PeerPodConfigSpec};

/// What these configurations request of the nodes; `None` until all nodes and DaemonSets have been listed *(client required)*.
/// `mounted`: as for [`unmet`].
pub(super) async fn node_requests(
    observer: &Observer,
    mounted: Option<&MountedSettings>,
    configs: &[Arc<PeerPodConfig>],
) -> Option<Vec<NodeRequest>> {
    // Before that, every DaemonSet would seem to be missing.
    observer.daemon_sets.wait_until_ready().now_or_never()?.ok()?;
    let mut requests: Vec<_> = configs.iter().map(|config| NodeRequest::of(config)).collect();
    let mut summaries = None;
    for (index, config) in configs.iter().enumerate() {
        // A cloud-api-adaptor that runs keeps running.
        let current = observer.watched(config);
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
            (_, Ok(sources)) => {
                let (place, unmanaged) = (sources.place(None), observer.unmanaged(config));
                match unmet(config, summary, &sources, place.as_ref(), mounted, unmanaged.as_ref()) {
                    Some(finding) => Some(finding.message),
                    None => missing(config, summary),
                }
            }
            (_, Err(error)) => Some(format!("reading the settings failed: {error}")),
        };
        requests[index].withheld = unmet;
    }
    Some(requests)
}

/// Why a configuration's cloud-api-adaptor must not be deployed. `mounted`: the settings with which this operator deletes VMs, if it
/// does. `place`: where cloud-api-adaptor makes VMs. `unmanaged`: another cloud-api-adaptor on its nodes.
pub(super) fn unmet(
    config: &PeerPodConfig,
    summary: &Summary,
    sources: &Sources,
    place: Option<&AdaptorPlace>,
    mounted: Option<&MountedSettings>,
    unmanaged: Option<&Unmanaged>,
) -> Option<Finding> {
    if let Err(problem) = &summary.selection {
        return Some(Finding::new(Reason::InvalidSpec, problem.to_string()));
    }
    if let Some(problem) = settings::problem(&config.spec, sources) {
        return Some(Finding::new(Reason::SettingsMissing, problem));
    }
    // Before conflicts: a cloud-api-adaptor that runs is deployed despite those.
    let cloud = sources.settings.cloud;
    let diverging = mounted.and_then(|mounted| settings::diverging(&config.spec, cloud, place, mounted));
    if diverging.is_some() {
        return diverging;
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
    /// The operator does not write the DaemonSet, and reports these findings beside the precondition.
    Withhold(Findings),
}

const NOT_DEPLOYED: &str = "the operator does not deploy cloud-api-adaptor";

/// Whether there is a DaemonSet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Running {
    No,
    /// With the settings of the objects that the configuration names.
    OnTheseObjects,
    OnOtherObjects,
}

impl Running {
    pub(super) fn of(current: Option<&DaemonSet>, spec: &PeerPodConfigSpec) -> Self {
        match current {
            None => Self::No,
            Some(current) if resources::has_settings_of(current, spec) => Self::OnTheseObjects,
            Some(_) => Self::OnOtherObjects,
        }
    }
}

/// What this precondition leads to.
pub(super) fn consequence(unmet: &Finding, running: Running) -> Consequence {
    let condition_type = unmet.reason.condition_type().as_str();
    let withheld = |what: &str| {
        Findings::of(Reason::AdaptorWithheld, format!("{what}; the condition {condition_type} says why"))
    };
    match (unmet.reason, running) {
        // The DaemonSet cannot be built.
        (Reason::InvalidSpec | Reason::SettingsMissing, _) => Consequence::Withhold(Findings::default()),
        // What helps is watched, or restarts the operator.
        (Reason::NotMounted, Running::No) => Consequence::Withhold(withheld(NOT_DEPLOYED)),
        // The template names the objects, so a write would make a cloud-api-adaptor that runs use settings that the operator lacks.
        (Reason::NotMounted, _) | (Reason::AnotherPlace, Running::OnOtherObjects) => {
            Consequence::Withhold(withheld("the operator leaves the cloud-api-adaptor that runs unchanged"))
        }
        (_, Running::No) => {
            Consequence::Withhold(Findings { again: Some(UNWATCHED_RESYNC), ..withheld(NOT_DEPLOYED) })
        }
        // A cloud-api-adaptor that runs keeps running: without it, its VMs would be lost.
        (_, Running::OnTheseObjects | Running::OnOtherObjects) => Consequence::DeployAnyway,
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
    use kube::runtime::reflector;
    use operator_kit::testing::ApiServer;
    use serde_json::json;

    use super::{
        super::super::{capacity::Nodes, sources::tests::sources},
        *,
    };

    #[test]
    fn one_that_runs_is_deployed_despite_a_conflict_but_not_without_settings() {
        let reported = |reason, running| match consequence(&Finding::new(reason, ""), running) {
            Consequence::DeployAnyway => None,
            Consequence::Withhold(Findings { all, again }) => {
                Some((all.into_iter().map(|it| it.reason).collect::<Vec<_>>(), again.is_some()))
            }
        };
        let (these, others) = (Running::OnTheseObjects, Running::OnOtherObjects);
        for (reason, running) in [(Reason::InvalidSpec, these), (Reason::SettingsMissing, Running::No)] {
            assert_eq!(reported(reason, running), Some((vec![], false)));
        }
        for reason in [Reason::NodesTaken, Reason::AnotherAdaptor, Reason::AnotherPlace] {
            assert_eq!(reported(reason, these), None);
            assert_eq!(reported(reason, others).is_some(), reason == Reason::AnotherPlace);
            assert_eq!(reported(reason, Running::No), Some((vec![Reason::AdaptorWithheld], true)));
        }
    }

    #[test]
    fn settings_that_the_operator_does_not_have_reach_no_cloud_api_adaptor() {
        let leaves = "leaves the cloud-api-adaptor";
        for (reason, running, what) in [
            (Reason::NotMounted, Running::No, "does not deploy cloud-api-adaptor"),
            (Reason::NotMounted, Running::OnTheseObjects, leaves),
            (Reason::AnotherPlace, Running::OnOtherObjects, leaves),
        ] {
            let Consequence::Withhold(Findings { all, again }) =
                consequence(&Finding::new(reason, ""), running)
            else {
                panic!("it is deployed")
            };
            let [Finding { reason: Reason::AdaptorWithheld, message }] = &*all else { panic!("{all:?}") };
            assert!(message.contains(what) && message.contains("the condition SettingsDiverge"), "{message}");
            assert_eq!(again, None);
        }
    }

    #[test]
    fn other_settings_than_the_mounted_ones_count_before_conflicts() {
        let spec = PeerPodConfigSpec { config_map_name: "other".to_owned(), ..PeerPodConfigSpec::default() };
        let config = PeerPodConfig::new("config", spec);
        let summary = Summary {
            nodes: 1,
            taken_by_older: [("older".to_owned(), 1)].into(),
            ..Summary::of(&NodeRequest::of(&config), &[])
        };
        let sources = sources(&json!({ "CLOUD_PROVIDER": "libvirt" }));
        let mounted = MountedSettings {
            config_map: "peer-pods-cm".to_owned(),
            secret: "peer-pods-secret".to_owned(),
            clouds: Vec::new(),
        };
        let reason = |sources: &Sources, mounted: Option<&MountedSettings>| {
            unmet(&config, &summary, sources, None, mounted, None).map(|finding| finding.reason)
        };
        assert_eq!(reason(&sources, Some(&mounted)), Some(Reason::NotMounted));
        assert_eq!(reason(&sources, None), Some(Reason::NodesTaken), "this operator deletes no VMs");
        let missing = Sources { config_map: false, ..sources };
        assert_eq!(reason(&missing, Some(&mounted)), Some(Reason::SettingsMissing));
    }

    #[tokio::test]
    async fn nothing_is_requested_of_nodes_before_all_daemon_sets_are_listed() {
        let server = ApiServer::expecting([]);
        let (daemon_sets, _writer) = reflector::store();
        let observer = Observer::new(server.client(), "ns".to_owned(), daemon_sets, Nodes::default());
        assert!(node_requests(&observer, None, &[]).await.is_none());
    }
}
