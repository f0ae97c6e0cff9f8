//! One reconcile of one configuration: each room observes, compares with the wanted state and writes; then the conditions are
//! reported.

use std::{sync::Arc, time::Instant};

use kube::{Client, ResourceExt, runtime::controller::Action};
use operator_kit::status::Publisher;

use super::{
    admission,
    capacity::{CountError, Pass, Summary},
    cleanup::{NOT_YET_SEEN, clean_up},
    conditions::{Finding, Reason},
    configs::{Configs, has_finalizer},
    finalizer,
    findings::{Findings, ReconcileError, SLOW_RESYNC},
    report::{READ_BACK, Report, Reporter},
    rooms::Rooms,
    sources::Sources,
    watches::CONFIG,
};
use crate::api::v1alpha1::{FIELD_MANAGER, PeerPodConfig};

/// Reconciles one configuration at a time *(client required)*.
pub(super) struct Reconciler {
    client: Client,
    rooms: Arc<Rooms>,
    configs: Configs,
    reporter: Reporter,
}

/// The nodes of one configuration, and what they advertise.
struct Survey {
    summary: Summary,
    /// How many VMs its nodes advertise, or did when that was last known.
    advertised: u64,
    /// About the capacity.
    findings: Result<Findings, CountError>,
}

/// The results of all rooms. A room that fails is reported and does not stop the others.
#[derive(Debug, Default)]
struct Results {
    findings: Findings,
    failed: Option<ReconcileError>,
}

impl Results {
    fn add(&mut self, result: Result<Findings, impl Into<ReconcileError>>, invalid: Reason, failed: Reason) {
        match result.map_err(Into::into) {
            Ok(findings) => self.findings.add(findings),
            Err(error) => {
                self.findings.all.push(error.finding(invalid, failed));
                self.failed.get_or_insert(error);
            }
        }
    }
}

impl Reconciler {
    pub(super) fn new(client: Client, rooms: Arc<Rooms>, configs: Configs) -> Self {
        let reporter = Reporter::new(Publisher::new(&client, &CONFIG, FIELD_MANAGER, "Configuring"));
        Self { client, rooms, configs, reporter }
    }

    pub(super) async fn reconcile(&self, config: &PeerPodConfig) -> Result<Action, ReconcileError> {
        let _turn = self.rooms.turn.lock().await;
        // It may have changed while this reconcile waited for its turn.
        let Some(config) = self.configs.latest(config) else {
            return Ok(Action::await_change());
        };
        let config = &*config;
        let deleted = config.metadata.deletion_timestamp.is_some();
        let outcome = match (self.configs.honours(config), deleted, has_finalizer(config)) {
            (true, false, true) => self.reconcile_spec(config).await,
            (true, false, false) => self.begin(config).await,
            (true, true, true) => self.cleanup(config).await,
            (false, ..) => self.elsewhere(config).await,
            // Its deletion does not wait for the operator.
            (true, true, false) => Ok(Action::await_change()),
        };
        if outcome.as_ref().is_err_and(ReconcileError::is_not_found) {
            // The API server may have been restarted without support for policies.
            self.rooms.admission.doubt_policies();
        }
        outcome
    }

    /// Sets the finalizer before anything is created for a configuration.
    async fn begin(&self, config: &PeerPodConfig) -> Result<Action, ReconcileError> {
        match finalizer::add(&self.client, config).await {
            Ok(true) => self.reconcile_spec(config).await,
            // It was removed, or it changed since it was read: the change requeues it.
            Ok(false) => Ok(Action::await_change()),
            Err(error) => {
                let message =
                    format!("the operator changes nothing, because setting its finalizer fails: {error}");
                let findings = vec![Finding::new(Reason::AdaptorFailed, message)];
                // A configuration that already runs may have lost its finalizer.
                let nodes = config.status.as_ref().and_then(|status| usize::try_from(status.nodes).ok());
                let report =
                    Report { findings, nodes: nodes.unwrap_or(0), advertised: advertised_before(config) };
                self.reporter.report(config, &report).await?;
                Err(error.into())
            }
        }
    }

    async fn reconcile_spec(&self, config: &PeerPodConfig) -> Result<Action, ReconcileError> {
        let Rooms { adaptor, admission, .. } = &*self.rooms;
        let configs = self.configs.honoured();
        let survey = match self.survey(config, &configs).await {
            Ok(survey) => survey,
            Err(action) => return Ok(action),
        };
        let sources = Sources::read(&self.client, self.configs.namespace(), config).await;
        let tls = sources.as_ref().ok().and_then(|sources| sources.tls.clone());
        let adapted = match sources {
            Ok(sources) => adaptor.reconcile(config, &configs, &survey.summary, &sources).await,
            Err(error) => Err(error.into()),
        };
        let mut results = Results::default();
        results.add(adapted, Reason::InvalidSpec, Reason::AdaptorFailed);
        let [invalid, failed] = admission::failure_reasons(config, &configs);
        results.add(admission.reconcile(config, &configs, tls).await, invalid, failed);
        self.finish(config, survey, results).await
    }

    /// Advertises VMs on nodes, and looks at those of one configuration. An error says when to try again: the nodes or the configuration
    /// are not known.
    async fn survey(&self, config: &PeerPodConfig, configs: &[Arc<PeerPodConfig>]) -> Result<Survey, Action> {
        let Rooms { adaptor, capacity, .. } = &*self.rooms;
        let not_yet_seen = || Action::requeue(NOT_YET_SEEN);
        let requests = adaptor.node_requests(configs).await.ok_or_else(not_yet_seen)?;
        let pass = capacity.pass(&requests).await;
        let summaries = match &pass {
            Ok(pass) => pass.as_ref().map(|pass| pass.summaries.clone()),
            Err(_) => capacity.survey(&requests),
        };
        let name = config.name_any();
        let summary = summaries.ok_or_else(not_yet_seen)?.into_iter().find(|summary| summary.name == name);
        // The store no longer has it: it was removed a moment ago.
        let summary = summary.ok_or_else(Action::await_change)?;
        let advertised = match &pass {
            Ok(_) => summary.advertised,
            Err(_) => advertised_before(config),
        };
        let findings = pass.map(|pass| capacity_findings(&summary, pass.as_ref()));
        Ok(Survey { summary, advertised, findings })
    }

    /// Reports the results of all rooms, and what others did to the objects. Returns when to reconcile again.
    async fn finish(
        &self,
        config: &PeerPodConfig,
        survey: Survey,
        mut results: Results,
    ) -> Result<Action, ReconcileError> {
        let Survey { summary, advertised, findings } = survey;
        results.add(findings, Reason::CountFailed, Reason::CountFailed);
        let (name, drifts) = (config.name_any(), &self.rooms.drifts);
        if let Some((drift, again)) = drifts.finding(&name, Instant::now()) {
            results.findings.add(Findings { all: vec![drift], again: Some(again) });
        }
        results.findings.all.extend(drifts.takeover_finding(&name));
        let Results { findings: Findings { all, again }, failed } = results;
        self.reporter.report(config, &Report { findings: all, nodes: summary.nodes, advertised }).await?;
        drifts.reported(&name);
        let read_back = self.reporter.wrote_recently().then_some(READ_BACK);
        match failed {
            Some(error) => Err(error),
            None => Ok(Action::requeue(again.into_iter().chain(read_back).min().unwrap_or(SLOW_RESYNC))),
        }
    }

    /// Removes everything that was created for a configuration that is being deleted, then its finalizer.
    async fn cleanup(&self, config: &PeerPodConfig) -> Result<Action, ReconcileError> {
        let (findings, outcome) = match clean_up(&self.rooms, config, &self.configs.honoured()).await {
            Ok(None) => match finalizer::release(&self.client, config).await {
                Ok(()) => return Ok(Action::await_change()),
                Err(error) => {
                    let message =
                        format!("nothing is left, but removing the operator's finalizer fails: {error}");
                    (vec![Finding::new(Reason::Deleting, message)], Err(error.into()))
                }
            },
            Ok(Some(Findings { all, again })) => (all, Ok(Action::requeue(again.unwrap_or(NOT_YET_SEEN)))),
            Err(error) => {
                let message = format!("{error}; the operator tries again");
                (vec![Finding::new(Reason::Deleting, message)], Err(error))
            }
        };
        self.reporter.report(config, &Report { findings, ..Report::default() }).await?;
        outcome
    }

    /// Handles a configuration in another namespace, which the controller does not honour. If the operator ran in that namespace
    /// before, the configuration still has the finalizer, and only this operator removes it. With the finalizer and no deletion
    /// this reports nothing: another operator may reconcile it, and the two would overwrite each other's status.
    async fn elsewhere(&self, config: &PeerPodConfig) -> Result<Action, ReconcileError> {
        let held = has_finalizer(config);
        if held && config.metadata.deletion_timestamp.is_some() {
            finalizer::release(&self.client, config).await?;
        }
        if !held {
            let message = format!(
                "the operator ignores PeerPodConfigs outside its own namespace; create this one in {}",
                self.configs.namespace()
            );
            let findings = vec![Finding::new(Reason::WrongNamespace, message)];
            self.reporter.report(config, &Report { findings, ..Report::default() }).await?;
        }
        Ok(Action::await_change())
    }
}

/// The condition about the nodes of one configuration.
fn capacity_findings(summary: &Summary, pass: Option<&Pass>) -> Findings {
    Findings { all: vec![summary.capacity()], again: pass.and_then(|pass| pass.again) }
}

/// How many VMs its nodes advertised when that was last known.
fn advertised_before(config: &PeerPodConfig) -> u64 {
    let before = config.status.as_ref().map_or(0, |status| status.advertised);
    u64::try_from(before).unwrap_or(0)
}

#[cfg(test)]
mod tests;
