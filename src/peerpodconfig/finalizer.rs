//! The finalizer of a configuration *(client required)*: while it is there, something may have been made for it. It goes when
//! all of that is taken back.

use std::time::Duration;

use k8s_openapi::api::apps::v1::DaemonSet;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
    runtime::controller::Action,
};
use operator_kit::{
    api_call::{self, ApiError},
    finalizer,
    metadata::Metadata,
};
use serde_json::json;

use super::{
    Context, FINALIZER,
    adaptor::UNWATCHED_RESYNC,
    apply,
    conditions::{Finding, Reason},
    reconcile::{NOT_YET_SEEN, Part, ReconcileError},
    report::Report,
};
use crate::api::v1alpha1::{FIELD_MANAGER, PeerPodConfig};

impl Context {
    /// Sets the finalizer. False if the configuration is gone or another one has its name: then nothing may be made for it,
    /// as nothing would take it back. Server-side apply leaves the finalizers of others alone.
    pub(super) async fn add_finalizer(&self, config: &PeerPodConfig) -> Result<bool, ApiError> {
        let patch = json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1",
            "kind": "PeerPodConfig",
            "metadata": { "uid": config.uid(), "finalizers": [FINALIZER] },
        });
        let params = PatchParams::apply(&format!("{FIELD_MANAGER}-finalizer")).force();
        let api = self.configs_of(config);
        match api_call::bounded(api.patch(&config.name_any(), &params, &Patch::Apply(patch))).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_gone_or_changed(&config.name_any()) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Lets a configuration go. Where it changed since it was read the change brings it back.
    async fn release(&self, config: &PeerPodConfig) -> Result<Action, ReconcileError> {
        finalizer::release(&self.configs_of(config), config, FINALIZER, FIELD_MANAGER).await?;
        Ok(Action::await_change())
    }

    fn configs_of(&self, config: &PeerPodConfig) -> Api<Metadata<PeerPodConfig>> {
        Api::namespaced(self.client.clone(), &config.namespace().unwrap_or_default())
    }

    /// Takes everything back that was made for a configuration that is being deleted, then lets it go.
    pub(super) async fn cleanup(&self, config: &PeerPodConfig) -> Result<Action, ReconcileError> {
        let (findings, outcome) = match self.clean_up_objects(config).await {
            Ok(None) => return self.release(config).await,
            Ok(Some(Part { findings, again })) => (findings, Ok(Action::requeue(again.unwrap_or(AGAIN)))),
            Err(error) => {
                let message = format!("{error}; the operator tries again");
                (vec![Finding::new(Reason::Deleting, message)], Err(error))
            }
        };
        self.reporter.report(config, &Report { findings, ..Report::default() }).await?;
        outcome
    }

    /// What is left, and when to look again; `None` if nothing is.
    async fn clean_up_objects(&self, config: &PeerPodConfig) -> Result<Option<Part>, ReconcileError> {
        let name = config.name_any();
        // What is not known of now stays for ever.
        self.policies.doubt();
        let mut kinds = self.admission_kinds(self.policies.ask(&self.client).await?);
        // Without its server the webhook would refuse every peer pod, so its registration goes first.
        kinds.reverse();
        let handover = self.hand_over(config, &kinds).await?;
        let kept = handover.as_ref().is_some_and(|it| it.reason == Reason::AdmissionKept);
        let left = !kept && apply::clear(&self.client, &name, &kinds, &DeleteParams::background()).await?;
        // Whoever takes over the admission may wait for the nodes, so these do not wait for it.
        let (message, again) = match self.clean_up_nodes(&name, left).await? {
            Some((message, again)) => (message, if kept { again.min(AGAIN) } else { again }),
            None if kept => ("the operator has removed everything but the admission".to_owned(), AGAIN),
            None => return Ok(None),
        };
        let mut part = Part { again: Some(again), ..Part::of(Reason::Deleting, message) };
        part.findings.extend(handover.filter(|_| kept || left));
        Ok(Some(part))
    }

    /// What of it is left on nodes, or that `objects` are, and when to look again; `None` if nothing is.
    async fn clean_up_nodes(
        &self,
        name: &str,
        objects: bool,
    ) -> Result<Option<(String, Duration)>, ReconcileError> {
        let unseen = || Some(("the operator is still reading nodes".to_owned(), NOT_YET_SEEN));
        let Some(requests) = self.node_requests().await else { return Ok(unseen()) };
        let Some(pass) = self.capacity.pass(&requests).await? else { return Ok(unseen()) };
        let summary = pass.summaries.iter().find(|summary| summary.name == name);
        let pending = summary.map_or(0, |it| it.pending.len());
        let again = pass.again.unwrap_or(AGAIN);
        if objects {
            let message = format!("{pending} nodes still advertise VMs; the operator is deleting objects");
            return Ok(Some((message, again.min(AGAIN))));
        }
        if pending > 0 {
            let why = summary.map(|it| it.hindrance().1).unwrap_or_default();
            // Those that cannot be written to are tried ever more slowly.
            return Ok(Some((format!("{pending} nodes still advertise VMs{why}"), again)));
        }
        // Two cloud-api-adaptors on one node would share its socket and port: no other configuration may have these nodes while
        // Pods of this one are there.
        let adaptor = [self.kind::<DaemonSet>(true)];
        if apply::clear(&self.client, name, &adaptor, &DeleteParams::foreground()).await? {
            let message = "the Pods of cloud-api-adaptor have not ended yet; if a node does not answer, delete its \
                 Pod with --force, or delete the node";
            // The end of the DaemonSet is watched.
            return Ok(Some((message.to_owned(), UNWATCHED_RESYNC)));
        }
        self.annotate_service_account().await?;
        Ok(None)
    }

    /// A configuration in another namespace is not honoured. One that the operator looked after when it was in that namespace
    /// still has the finalizer, and nobody else to take it away. While it is not being deleted nothing is told of it: another
    /// operator may look after it, and the two would overwrite each other's status.
    pub(super) async fn elsewhere(&self, config: &PeerPodConfig) -> Result<Action, ReconcileError> {
        let held = config.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
        if held && config.metadata.deletion_timestamp.is_some() {
            return self.release(config).await;
        }
        if !held {
            let own = &self.options.namespace;
            let message = format!(
                "the operator ignores PeerPodConfigs outside its own namespace; create this one in {own}"
            );
            let findings = vec![Finding::new(Reason::WrongNamespace, message)];
            self.reporter.report(config, &Report { findings, ..Report::default() }).await?;
        }
        Ok(Action::await_change())
    }
}

/// How often the rest is looked for.
const AGAIN: Duration = Duration::from_secs(1);
