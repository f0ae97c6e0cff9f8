//! One reconcile of one configuration: observe, compare with the wanted state, write, report.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::join;
use kube::{
    ResourceExt,
    api::ApiResource,
    runtime::{controller::Action, reflector::ObjectRef},
};
use operator_kit::api_call::ApiError;

use super::{
    Context, FINALIZER,
    apply::{Found, Kind},
    capacity,
    conditions::{Finding, Reason},
    report::{READ_BACK, Report},
    resources::{AdaptorSecrets, AdaptorSettings, Inputs, program::OPERATOR_CONTAINER},
};
use crate::api::v1alpha1::PeerPodConfig;

/// How often a configuration is reconciled without an event.
const SLOW_RESYNC: Duration = Duration::from_secs(300);

/// When to reconcile again while not all nodes and DaemonSets have been listed.
pub(super) const NOT_YET_SEEN: Duration = Duration::from_secs(1);

/// Why a reconcile failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReconcileError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Count(#[from] capacity::CountError),
    #[error(
        "the Pod {0} does not exist or has no container {OPERATOR_CONTAINER}, so the operator does not \
         know the webhook's image; set POD_NAME to the operator's own Pod, or PEERPOD_OPERATOR_IMAGE to \
         the image"
    )]
    NoPod(String),
    #[error("an object cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

impl ReconcileError {
    /// The condition for it: the wanted object is `invalid`, in the API server's words, or something `failed`.
    fn finding(&self, invalid: Reason, failed: Reason) -> Finding {
        match self {
            Self::Api(error) if let Some(message) = error.invalid() => Finding::new(invalid, message),
            _ => Finding::new(failed, self.to_string()),
        }
    }
}

/// The result of one part of a reconcile.
#[derive(Debug, Default)]
pub(super) struct Part {
    pub(super) findings: Vec<Finding>,
    /// When to reconcile again without an event.
    pub(super) again: Option<Duration>,
}

impl Part {
    pub(super) fn of(reason: Reason, message: impl Into<String>) -> Self {
        Self { findings: vec![Finding::new(reason, message)], again: None }
    }
}

/// The results of all parts of a reconcile. A part that fails is reported and does not stop the others.
#[derive(Debug, Default)]
struct Tally {
    together: Part,
    failed: Option<ReconcileError>,
}

impl Tally {
    fn found(&mut self, part: Part) {
        self.together.findings.extend(part.findings);
        self.together.again = self.together.again.into_iter().chain(part.again).min();
    }

    fn add(&mut self, part: Result<Part, ReconcileError>, invalid: Reason, failed: Reason) {
        match part {
            Ok(part) => self.found(part),
            Err(error) => {
                self.together.findings.push(error.finding(invalid, failed));
                self.failed.get_or_insert(error);
            }
        }
    }
}

impl Context {
    pub(super) async fn reconcile(&self, config: &PeerPodConfig) -> Result<Action, ReconcileError> {
        let _turn = self.turn.lock().await;
        // It may have changed while this reconcile waited for its turn.
        let Some(config) = self.configs.get(&ObjectRef::from_obj(config)) else {
            return Ok(Action::await_change());
        };
        let config = &*config;
        let deleted = config.metadata.deletion_timestamp.is_some();
        let held = config.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
        let here = config.namespace().as_ref() == Some(&self.options.namespace);
        let outcome = match (here, deleted, held) {
            (true, false, true) => self.reconcile_spec(config).await,
            (true, false, false) if self.add_finalizer(config).await? => self.reconcile_spec(config).await,
            (true, true, true) => self.cleanup(config).await,
            (false, ..) => self.elsewhere(config).await,
            // It was removed, or it changed since it was read: the change requeues it.
            (true, _, false) => Ok(Action::await_change()),
        };
        if let Err(ReconcileError::Api(error)) = &outcome
            && error.code() == Some(404)
        {
            // The API server may have been restarted without support for policies.
            self.policies.doubt();
        }
        outcome
    }

    async fn reconcile_spec(&self, config: &PeerPodConfig) -> Result<Action, ReconcileError> {
        let Some(requests) = self.node_requests().await else { return Ok(Action::requeue(NOT_YET_SEEN)) };
        let pass = self.capacity.pass(&requests).await;
        let name = config.name_any();
        let summary = match &pass {
            Ok(pass) => pass.as_ref().map(|pass| pass.summaries.clone()),
            Err(_) => self.capacity.survey(&requests),
        };
        let Some(summaries) = summary else { return Ok(Action::requeue(NOT_YET_SEEN)) };
        let Some(summary) = summaries.into_iter().find(|summary| summary.name == name) else {
            // The store no longer has it: it was removed a moment ago.
            return Ok(Action::await_change());
        };
        let mut advertised = summary.advertised;
        let capacity = match pass {
            Ok(pass) => {
                let finding = summary.capacity();
                let again = pass.and_then(|pass| pass.again);
                Ok(Part { again, ..Part::of(finding.reason, finding.message) })
            }
            Err(error) => {
                let before = config.status.as_ref().map_or(0, |status| status.advertised);
                advertised = u64::try_from(before).unwrap_or(0);
                Err(error.into())
            }
        };

        let sources = self.observer.settings(config).await;
        let tls = sources.as_ref().ok().and_then(|sources| sources.tls.clone());
        let (adaptor, admission) =
            join!(Box::pin(self.adaptor(config, &summary, sources)), Box::pin(self.admission(config, tls)));
        let mut tally = Tally::default();
        tally.add(adaptor, Reason::InvalidSpec, Reason::AdaptorFailed);
        tally.add(admission, Reason::InvalidAdmission, Reason::AdmissionFailed);
        tally.add(capacity, Reason::CountFailed, Reason::CountFailed);
        if let Some((drift, again)) = self.drifts.finding(&name, Instant::now()) {
            tally.found(Part { findings: vec![drift], again: Some(again) });
        }
        let Tally { together: Part { findings, again }, failed } = tally;
        let report = Report { findings, nodes: summary.nodes, advertised };
        self.reporter.report(config, &report).await?;
        let read_back = self.reporter.wrote_recently().then_some(READ_BACK);
        match failed {
            Some(error) => Err(error),
            None => Ok(Action::requeue(again.into_iter().chain(read_back).min().unwrap_or(SLOW_RESYNC))),
        }
    }

    pub(super) fn inputs<'a>(
        &'a self,
        config: &'a PeerPodConfig,
        settings: &'a AdaptorSettings,
    ) -> Inputs<'a> {
        Inputs {
            config,
            namespace: &self.options.namespace,
            settings,
            adaptor_image: &self.options.adaptor_image,
            secrets: AdaptorSecrets {
                ssh_key: &self.options.ssh_key_secret,
                tls: &self.options.tls_secret,
                byom_host_keys: &self.options.byom_host_keys_secret,
            },
        }
    }

    /// All configurations that the controller honours, the oldest first, also those that are being deleted and still have the
    /// finalizer.
    pub(super) fn here(&self) -> Vec<Arc<PeerPodConfig>> {
        let mut here = self.configs.state();
        here.retain(|config| {
            let deleted = config.metadata.deletion_timestamp.is_some();
            config.namespace().as_ref() == Some(&self.options.namespace)
                && (!deleted || config.finalizers().iter().any(|finalizer| finalizer == FINALIZER))
        });
        here.sort_by_key(|config| (config.creation_timestamp().map(|time| time.0), config.name_any()));
        here
    }

    pub(super) fn kind<K: kube::Resource<DynamicType = ()>>(&self, namespaced: bool) -> Kind {
        let namespace = namespaced.then(|| self.options.namespace.clone());
        Kind { resource: ApiResource::erase::<K>(&()), namespace }
    }
}

/// The condition about wanted names that objects of others have.
pub(super) fn name_taken(found: &Found) -> Option<Finding> {
    (!found.unmanaged.is_empty()).then(|| {
        let names = found.unmanaged.join(", ");
        Finding::new(
            Reason::NameTaken,
            format!(
                "{names} exists, and this operator did not create it; remove it, or rename this PeerPodConfig"
            ),
        )
    })
}
