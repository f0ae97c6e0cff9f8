//! One pass over one configuration: what is wanted, what is there, what is told.

use std::{sync::Arc, time::Duration};

use kube::{
    Api, ResourceExt,
    api::{ApiResource, Patch, PatchParams},
    runtime::controller::Action,
};
use serde_json::json;

use super::{
    Context, FINALIZER,
    apply::{self, Found, Kind},
    build::Inputs,
    capacity,
    observe::Sources,
    report::Report,
    verdict::{Finding, Reason},
};
use crate::{
    api::v1alpha1::{FIELD_MANAGER, PeerPodConfig},
    runtime::api_call::{self, ApiError},
};

/// How often a configuration is looked at without being told to.
const SLOW_RESYNC: Duration = Duration::from_secs(300);

/// When to look again while not all nodes and DaemonSets have been seen.
const NOT_YET_SEEN: Duration = Duration::from_secs(1);

/// Why a pass could not be finished.
#[derive(Debug, thiserror::Error)]
pub(super) enum PassError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Count(#[from] capacity::CountError),
    #[error("an object cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// What one part of a pass found.
#[derive(Debug, Default)]
pub(super) struct Part {
    pub(super) findings: Vec<Finding>,
    /// When to look again, if nothing happens before.
    pub(super) again: Option<Duration>,
}

impl Part {
    pub(super) fn of(reason: Reason, message: impl Into<String>) -> Self {
        Self { findings: vec![Finding::new(reason, message)], again: None }
    }
}

impl Context {
    pub(super) async fn pass(&self, config: &PeerPodConfig) -> Result<Action, PassError> {
        let own = &self.options.namespace;
        if config.namespace().as_ref() != Some(own) {
            let message = format!(
                "only PeerPodConfigs in the operator's own namespace are honoured; make this one in {own} instead"
            );
            let findings = vec![Finding::new(Reason::WrongNamespace, message)];
            self.reporter.report(config, &Report { findings, ..Report::default() }).await?;
            return Ok(Action::await_change());
        }
        let held = config.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
        if config.metadata.deletion_timestamp.is_some() {
            return if held { self.put_back(config).await } else { Ok(Action::await_change()) };
        }
        if !held {
            self.set_finalizer(config, true).await?;
        }

        let sources = self.observer.settings(config).await?;
        let inputs = self.inputs(config, &sources);
        let Some(claims) = self.claims().await? else { return Ok(Action::requeue(NOT_YET_SEEN)) };
        let Some(capacity) = self.capacity.pass(&claims).await? else {
            return Ok(Action::requeue(NOT_YET_SEEN));
        };
        let name = config.name_any();
        let Some(summary) = capacity.summaries.iter().find(|summary| summary.name == name) else {
            // The store lacks it: it went a moment ago.
            return Ok(Action::await_change());
        };
        let adaptor = self.adaptor(&inputs, &sources, summary).await?;
        let admission = self.admission(&inputs).await?;
        let verdict = summary.capacity();
        let mut findings = adaptor.findings;
        findings.extend(admission.findings);
        findings.push(Finding::new(verdict.reason, verdict.message));
        let report = Report { findings, nodes: summary.nodes, advertised: summary.advertised };
        self.reporter.report(config, &report).await?;
        let soonest = [adaptor.again, admission.again, capacity.again].into_iter().flatten().min();
        Ok(Action::requeue(soonest.unwrap_or(SLOW_RESYNC)))
    }

    fn inputs<'a>(&'a self, config: &'a PeerPodConfig, sources: &'a Sources) -> Inputs<'a> {
        Inputs {
            config,
            namespace: &self.options.namespace,
            settings: &sources.settings,
            adaptor_image: &self.options.adaptor_image,
            operator_image: &self.options.operator_image,
        }
    }

    /// All configurations that are honoured, the oldest first, also those that are being deleted and still held.
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

    /// Takes everything back that was made for a configuration that is being deleted, then lets it go.
    async fn put_back(&self, config: &PeerPodConfig) -> Result<Action, PassError> {
        let name = config.name_any();
        // Without its server the webhook would refuse every peer pod, so its registration goes first.
        let mut kinds = self.admission_kinds(self.serves_policies().await?);
        kinds.reverse();
        let left = apply::clear(&self.client, &name, &kinds).await?;
        let Some(claims) = self.claims().await? else { return Ok(Action::requeue(NOT_YET_SEEN)) };
        let Some(pass) = self.capacity.pass(&claims).await? else { return Ok(Action::requeue(NOT_YET_SEEN)) };
        let pending =
            pass.summaries.iter().find(|summary| summary.name == name).map_or(0, |it| it.pending.len());
        if left || pending > 0 {
            let message = format!("{pending} nodes still advertise VMs; objects are being removed");
            let findings = vec![Finding::new(Reason::Deleting, message)];
            self.reporter.report(config, &Report { findings, ..Report::default() }).await?;
            return Ok(Action::requeue(pass.again.unwrap_or(Duration::from_secs(1))));
        }
        self.annotate_service_account().await?;
        // The DaemonSet goes with its owner.
        self.set_finalizer(config, false).await?;
        Ok(Action::await_change())
    }

    /// Sets the finalizer or takes it away. Server-side apply leaves those of others alone.
    async fn set_finalizer(&self, config: &PeerPodConfig, held: bool) -> Result<(), ApiError> {
        let api: Api<PeerPodConfig> = Api::namespaced(self.client.clone(), &self.options.namespace);
        let finalizers: &[&str] = if held { &[FINALIZER] } else { &[] };
        let patch = json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1",
            "kind": "PeerPodConfig",
            "metadata": { "uid": config.uid(), "finalizers": finalizers },
        });
        let params = PatchParams::apply(&format!("{FIELD_MANAGER}-finalizer")).force();
        match api_call::bounded(api.patch_metadata(&config.name_any(), &params, &Patch::Apply(patch))).await {
            Err(error) if !matches!(error.code(), Some(404 | 409)) => Err(error),
            _ => Ok(()),
        }
    }

    pub(super) fn kind<K: kube::Resource<DynamicType = ()>>(&self, namespaced: bool) -> Kind {
        let namespace = namespaced.then(|| self.options.namespace.clone());
        Kind { resource: ApiResource::erase::<K>(&()), namespace }
    }
}

/// What to tell of objects whose names somebody else uses.
pub(super) fn name_taken(found: &Found) -> Option<Finding> {
    (!found.foreign.is_empty()).then(|| {
        let names = found.foreign.join(", ");
        Finding::new(
            Reason::NameTaken,
            format!("{names} exists and was made by somebody else; remove it, or rename this PeerPodConfig"),
        )
    })
}
