//! The finalizer of a configuration *(client required)*. While it is there, objects or advertised VMs may exist for the
//! configuration. The operator removes the finalizer after it has removed all of these.

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
    /// Sets the finalizer. False if the configuration was removed or another one has its name: then nothing may be created for it,
    /// because nothing would clean it up. Server-side apply leaves the finalizers of others alone.
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

    /// Removes the finalizer. If the configuration changed since it was read, the change requeues it.
    async fn release(&self, config: &PeerPodConfig) -> Result<Action, ReconcileError> {
        finalizer::release(&self.configs_of(config), config, FINALIZER, FIELD_MANAGER).await?;
        Ok(Action::await_change())
    }

    fn configs_of(&self, config: &PeerPodConfig) -> Api<Metadata<PeerPodConfig>> {
        Api::namespaced(self.client.clone(), &config.namespace().unwrap_or_default())
    }

    /// Removes everything that was created for a configuration that is being deleted, then its finalizer.
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

    /// What is left, and when to check again; `None` if nothing is left.
    async fn clean_up_objects(&self, config: &PeerPodConfig) -> Result<Option<Part>, ReconcileError> {
        let name = config.name_any();
        // An object whose kind is not known now would stay for ever.
        self.policies.doubt();
        let mut kinds = self.admission_kinds(self.policies.ask(&self.client).await?);
        // Without its server the webhook would refuse every peer pod, so the registration is deleted first.
        kinds.reverse();
        let handover = self.hand_over(config, &kinds).await?;
        let kept = handover.as_ref().is_some_and(|it| it.reason == Reason::AdmissionKept);
        let left = !kept && apply::clear(&self.client, &name, &kinds, &DeleteParams::background()).await?;
        // The configuration that takes over the admission may wait for the nodes, so the nodes do not wait for the admission.
        let (message, again) = match self.clean_up_nodes(&name, left).await? {
            Some((message, again)) => (message, if kept { again.min(AGAIN) } else { again }),
            None if kept => ("the operator has removed everything but the admission".to_owned(), AGAIN),
            None => return Ok(None),
        };
        let mut part = Part { again: Some(again), ..Part::of(Reason::Deleting, message) };
        part.findings.extend(handover.filter(|_| kept || left));
        Ok(Some(part))
    }

    /// What is left on nodes, or that `objects` are left, and when to check again; `None` if nothing is left.
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
            // Failed writes to nodes back off.
            return Ok(Some((format!("{pending} nodes still advertise VMs{why}"), again)));
        }
        // Two cloud-api-adaptors on one node would share its socket and port: no other configuration may get these nodes while
        // Pods of this one run there.
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

    /// Handles a configuration in another namespace, which the controller does not honour. If the operator ran in that namespace
    /// before, the configuration still has the finalizer, and only this operator removes it. With the finalizer and no deletion
    /// this reports nothing: another operator may reconcile it, and the two would overwrite each other's status.
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

/// How often the operator checks what is left.
const AGAIN: Duration = Duration::from_secs(1);
