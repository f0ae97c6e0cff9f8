//! One reconcile of one PeerPod *(client required)*: observe, decide, apply, report, and when to reconcile again.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use kube::runtime::{controller::Action, events::EventType, reflector::ObjectRef};
use operator_kit::api_call::{ApiError, Written};
use tracing::{info, warn};

use super::{
    apply, conditions,
    controller::Context,
    decide::{self, Decision, Facts, Release, Wait, decide},
    object,
    observe::{self, Interrupted},
    outcome::Outcome,
    parking::Turn,
    report_tracker::Ended,
    requeue_policy::POD_RESYNC,
};
use crate::{
    api::v1alpha1::PeerPod,
    provider::{Accepted, Error, ErrorClass, OwnVm, Provider, cloud_label},
};

impl Context {
    /// Reconciles once. Returns the result for the metric, and when to reconcile again.
    pub(super) async fn reconcile(&self, peerpod: &PeerPod) -> (&'static str, Action) {
        let key = object::key(peerpod).into();
        let turn = self.trackers.parking.turn(cloud_label(peerpod.cloud_provider()), &key);
        // Boxed, as every wrapper around a future this large would hold it twice.
        let error = match turn.watch(Box::pin(self.act(peerpod, &turn))).await {
            Ok(action) => return ("ok", action),
            Err(error) => error,
        };
        let again = self.trackers.requeue_policy.failed(&key);
        Box::pin(self.report_outcome(peerpod, &Outcome::Failed(&error), again)).await;
        ("error", Action::requeue(again))
    }

    async fn act(&self, peerpod: &PeerPod, turn: &Turn<'_>) -> Result<Action, ApiError> {
        if !self.observer.clouds.are_known(peerpod.cloud_provider()) {
            // A change of the known clouds requeues what is being deleted. The sweep requeues a PeerPod once for each finding.
            let has_finding = self.observer.findings.of(peerpod.metadata.uid.as_deref()).is_some();
            return Ok(if has_finding { Action::requeue(POD_RESYNC) } else { Action::await_change() });
        }
        // One provider for the whole reconcile: after a change of the settings, another cloud must not answer that the VM is
        // gone.
        let provider = self.observer.clouds.provider(peerpod.cloud_provider()).await;
        let mut facts = match self.observer.observe(peerpod, &provider, turn).await {
            Ok(facts) => facts,
            Err(Interrupted::Failed(error)) => return Err(error),
            Err(Interrupted::Parked { paused_for }) => {
                let again = self.trackers.requeue_policy.parked(self.index.unfinished(), paused_for);
                self.report_outcome(peerpod, &Outcome::Parked, again).await;
                return Ok(Action::requeue(again));
            }
        };
        // The observation may have waited for minutes, and developer mode may have been turned on meanwhile.
        facts.developer_mode |= self.observer.clouds.developer_mode(peerpod.cloud_provider());
        if decide::must_keep_for_pod(&facts) {
            self.index.keep_for_pod(peerpod);
        }
        let mut decision = decide(&facts);
        if let Decision::Delete(own) = &decision {
            self.metrics.decided(decision.as_str());
            decision = delete(peerpod, &provider, own, &facts).await;
        }
        self.conclude(peerpod, &facts, decision).await
    }

    async fn conclude(
        &self,
        peerpod: &PeerPod,
        facts: &Facts,
        decision: Decision,
    ) -> Result<Action, ApiError> {
        self.metrics.decided(decision.as_str());
        let key = object::key(peerpod);
        match &decision {
            Decision::Wait(Wait::PodRuns | Wait::PodEnds(_)) => self.trackers.pod_watch.expect(peerpod),
            _ => self.trackers.pod_watch.stop_waiting(&key),
        }
        match &decision {
            Decision::Supersede | Decision::Retire | Decision::Tidy => {
                info!(decision = decision.as_str(), "deleting this PeerPod");
                return Ok(self.after_write(&key, apply::delete(&self.releases, peerpod).await?));
            }
            Decision::Release(release) => return self.release(peerpod, facts, *release).await,
            _ => {}
        }
        let cloud = cloud_label(peerpod.cloud_provider());
        let again = self.trackers.requeue_policy.after(&key, cloud, &decision, facts.asked());
        if let Some(class) = decision.error_class() {
            self.metrics.provider_error(cloud, class.as_str());
        }
        self.report_outcome(peerpod, &Outcome::Decided(&decision), again.unwrap_or_default()).await;
        Ok(again.map_or_else(Action::await_change, Action::requeue))
    }

    async fn release(&self, peerpod: &PeerPod, facts: &Facts, release: Release) -> Result<Action, ApiError> {
        let written = apply::release(&self.releases, peerpod).await?;
        if written == Written::Done {
            let latency =
                facts.deleted.map(|deleted| Timestamp::now().duration_since(deleted)).unwrap_or_default();
            let outcome = release.as_str();
            info!(decision = "release", outcome, "removed the finalizer");
            let cloud = cloud_label(peerpod.cloud_provider());
            self.metrics.released(cloud, outcome, Duration::try_from(latency).unwrap_or_default());
            if release == Release::Abandoned {
                let (reason, note) = (conditions::ABANDONED, conditions::ABANDONED_NOTE);
                self.reporter.event(peerpod, EventType::Normal, reason, note).await;
            }
        }
        Ok(self.after_write(&object::key(peerpod), written))
    }

    /// After a write the watch delivers the next state, also of an object that was outdated. The timer is for a watch that
    /// hangs.
    fn after_write(&self, key: &ObjectRef<PeerPod>, written: Written) -> Action {
        match written {
            Written::Done | Written::Gone => {
                self.trackers.written(key);
                Action::await_change()
            }
            Written::Outdated => Action::requeue(self.trackers.requeue_policy.failed(key)),
        }
    }

    /// Reports how a reconcile ended. A failed report does not delay the next reconcile, which reports again.
    async fn report_outcome(&self, peerpod: &PeerPod, outcome: &Outcome<'_>, again: Duration) {
        let latest = self.latest(peerpod);
        let ended = Ended {
            outcome,
            deleted: object::delayed_since(peerpod),
            stalled: conditions::stalled(&latest),
            again,
            now: Timestamp::now(),
        };
        let Some(update) = self.trackers.report_tracker.ended(&object::key(peerpod), ended) else { return };
        let kept_for_pod = self.index.is_kept_for_pod(peerpod);
        if let Err(error) = self.reporter.report(&latest, &update, kept_for_pod).await {
            warn!(%error, "the status was not written");
        }
    }

    /// The PeerPod as the store has it now: its status may have changed since the reconcile began.
    fn latest(&self, peerpod: &PeerPod) -> Arc<PeerPod> {
        let known = self.observer.store.get(&object::key(peerpod));
        known
            .filter(|known| known.metadata.uid == peerpod.metadata.uid)
            .unwrap_or_else(|| Arc::new(peerpod.clone()))
    }
}

/// Deletes the VM, the only effect on a cloud, then asks for the VM again and decides on the answer. `NotFound` for the deletion
/// is success, but only the second answer shows that the VM is absent.
async fn delete(
    peerpod: &PeerPod,
    provider: &Result<Arc<dyn Provider>, Error>,
    own: &OwnVm,
    facts: &Facts,
) -> Decision {
    info!(decision = "delete", vm = own.vm().name, "deleting the VM");
    let deleted = match provider {
        Ok(provider) => provider.delete(own).await,
        Err(unavailable) => Err(unavailable.clone()),
    };
    match deleted {
        Err(error) if error.class != ErrorClass::NotFound => decide::unanswered(error),
        Ok(Accepted { check_again_after, .. }) if !check_again_after.is_zero() => {
            Decision::Wait(Wait::VmDeletion(check_again_after))
        }
        _ => {
            // Not contested: if another Pod has the VM already, the next reconcile finds that out.
            let vm = observe::vm_state_of(peerpod, facts.recorded, false, provider).await;
            decide(&Facts { vm, deletion_accepted: true, ..facts.clone() })
        }
    }
}

#[cfg(test)]
mod tests;
