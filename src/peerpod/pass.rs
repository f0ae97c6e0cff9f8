//! One look at one PeerPod *(client required)*: observe, decide, apply, report, and when to look again.

use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};

use futures::future::{Either, select};
use jiff::Timestamp;
use kube::runtime::{controller::Action, events::EventType, reflector::ObjectRef};
use operator_kit::{api_call::ApiError, finalizer::Written};
use tracing::{info, warn};

use super::{
    Context, apply,
    decide::{self, Decision, Facts, Release, Wait, decide},
    index, object, observe,
    progress::{Outcome, Pass, Step, Telling},
    verdict,
};
use crate::{
    api::v1alpha1::PeerPod,
    provider::{Error, ErrorClass, OwnVm, Provider, cloud_label},
};

impl Context {
    /// One look: how it ended, for the metric, and what comes next.
    pub(super) async fn look(&self, peerpod: &PeerPod) -> (&'static str, Action) {
        let pass = Pass::new(Timestamp::now());
        // Boxed, as every wrapper around a future this large would hold it twice.
        let act = Box::pin(self.act(peerpod, &pass));
        let error = match self.watched(peerpod, &pass, act).await {
            Ok(action) => return ("ok", action),
            Err(error) => error,
        };
        let again = self.pauses.failed(&index::key(peerpod));
        Box::pin(self.tell(peerpod, &Outcome::Failed(&error), again)).await;
        ("error", Action::requeue(again))
    }

    /// Does `work`, and tells where it stands when it makes a deletion slow.
    async fn watched<T>(&self, peerpod: &PeerPod, pass: &Pass, work: impl Future<Output = T> + Unpin) -> T {
        let Some(deleted) = deleted(peerpod) else { return work.await };
        let key = index::key(peerpod);
        let watch = async {
            loop {
                tokio::time::sleep(self.progress.patience(&key, deleted, Timestamp::now())).await;
                // What needs somebody's help says so, and goes on doing so while the cloud is asked again.
                if !verdict::is_stalled(&self.latest(peerpod)) {
                    let telling = self.progress.stuck(&key, deleted, pass, Timestamp::now());
                    Box::pin(self.report(peerpod, &telling)).await;
                }
            }
        };
        match select(work, pin!(watch)).await {
            Either::Left((done, _)) => done,
            Either::Right((never, _)) => {
                let never: Infallible = never;
                match never {}
            }
        }
    }

    async fn act(&self, peerpod: &PeerPod, pass: &Pass) -> Result<Action, ApiError> {
        if !self.observer.clouds.are_known() {
            // A change of what is known brings it back.
            return Ok(Action::await_change());
        }
        // One provider from the first look to the last: settings that change meanwhile must not let another cloud say
        // that the machine is gone.
        let provider = self.observer.clouds.provider(peerpod.cloud_provider());
        let facts = self.observer.observe(peerpod, &provider, pass).await?;
        if decide::contradicted(&facts) {
            self.index.doubt(peerpod);
        }
        let mut decision = decide(facts.clone());
        if let Decision::Delete(own) = &decision {
            self.metrics.decided(decision.as_str());
            decision = delete(peerpod, &provider, own, facts.clone(), pass).await;
        }
        self.conclude(peerpod, &facts, decision, pass).await
    }

    async fn conclude(
        &self,
        peerpod: &PeerPod,
        facts: &Facts,
        decision: Decision,
        pass: &Pass,
    ) -> Result<Action, ApiError> {
        self.metrics.decided(decision.as_str());
        let key = index::key(peerpod);
        match &decision {
            Decision::Wait(Wait::PodRuns | Wait::PodEnds(_)) => self.owners.expect(peerpod),
            _ => {
                if let Some(others) = self.owners.settled(peerpod) {
                    self.nudges.add(others);
                    // Others that name the machine may have been refused for the sake of its Pod.
                    self.nudges.add(self.index.going_beside(peerpod));
                }
            }
        }
        match &decision {
            Decision::Supersede => {
                info!(
                    decision = decision.as_str(),
                    "deleting this PeerPod: a newer one of the same Pod replaced it"
                );
                return Ok(self.after_write(&key, apply::supersede(&self.observer.client, peerpod).await?));
            }
            Decision::Release(release) => {
                pass.at(Step::Release);
                return self.release(peerpod, facts, *release).await;
            }
            _ => {}
        }
        let again = self.pauses.after(&key, &decision, self.index.unsettled());
        if let Some(class) = decision.error_class() {
            self.metrics.provider_error(cloud_label(peerpod.cloud_provider()), class.as_str());
        }
        self.tell(peerpod, &Outcome::Decided(&decision), again.unwrap_or_default()).await;
        Ok(again.map_or_else(Action::await_change, Action::requeue))
    }

    async fn release(&self, peerpod: &PeerPod, facts: &Facts, release: Release) -> Result<Action, ApiError> {
        let written = apply::release(&self.observer.client, peerpod).await?;
        if written == Written::Done {
            let latency =
                facts.deleted.map(|deleted| Timestamp::now().duration_since(deleted)).unwrap_or_default();
            let outcome = match release {
                Release::Absent => "absent",
                Release::Abandoned => "abandoned",
            };
            info!(decision = "release", outcome, "removed the finalizer");
            let cloud = cloud_label(peerpod.cloud_provider());
            self.metrics.released(cloud, outcome, Duration::try_from(latency).unwrap_or_default());
            if let Some(note) = verdict::abandoned(release) {
                self.reporter.publisher.event(peerpod, EventType::Normal, verdict::ABANDONED, note).await;
            }
        }
        Ok(self.after_write(&index::key(peerpod), written))
    }

    /// After a write the watch brings whatever comes next. An outdated object comes the same way; the timer is for a watch
    /// that hangs.
    fn after_write(&self, key: &ObjectRef<PeerPod>, written: Written) -> Action {
        match written {
            Written::Done | Written::Gone => {
                self.pauses.settled(key);
                self.progress.forget(key);
                Action::await_change()
            }
            Written::Outdated => Action::requeue(self.pauses.failed(key)),
        }
    }

    /// Tells people how a look ended.
    async fn tell(&self, peerpod: &PeerPod, outcome: &Outcome<'_>, again: Duration) {
        let now = Timestamp::now();
        let telling = self.progress.ended(&index::key(peerpod), deleted(peerpod), outcome, again, now);
        if let Some(telling) = telling {
            self.report(peerpod, &telling).await;
        }
    }

    /// Whether people can be told does not decide when to go on; it is tried again with the next look.
    async fn report(&self, peerpod: &PeerPod, telling: &Telling) {
        let kept_for_pod = self.index.is_doubted(peerpod);
        if let Err(error) = self.reporter.report(&self.latest(peerpod), telling, kept_for_pod).await {
            warn!(%error, "writing the status failed");
        }
    }

    /// The PeerPod as it is known now: a long look may itself have written its status.
    fn latest(&self, peerpod: &PeerPod) -> Arc<PeerPod> {
        let known = self.observer.store.get(&index::key(peerpod));
        known
            .filter(|known| known.metadata.uid == peerpod.metadata.uid)
            .unwrap_or_else(|| Arc::new(peerpod.clone()))
    }
}

/// When the deletion was asked for that the finalizer holds up; `None` where nothing waits for this operator.
fn deleted(peerpod: &PeerPod) -> Option<Timestamp> {
    let deleted = peerpod.metadata.deletion_timestamp.as_ref().map(|time| time.0);
    deleted.filter(|_| object::has_finalizer(peerpod))
}

/// The one effect on a cloud, and what follows from what the cloud says afterwards. A machine that is gone by now is
/// deleted; only another look shows that it is absent.
async fn delete(
    peerpod: &PeerPod,
    provider: &Result<Arc<dyn Provider>, Error>,
    own: &OwnVm,
    facts: Facts,
    pass: &Pass,
) -> Decision {
    info!(decision = "delete", machine = own.vm().name, "deleting the VM");
    pass.at(Step::Delete);
    let deleted = match provider {
        Ok(provider) => provider.delete(own).await,
        Err(unavailable) => Err(unavailable.clone()),
    };
    match deleted {
        Err(error) if error.class != ErrorClass::NotFound => decide::unanswered(error),
        _ => {
            pass.at(Step::Gone);
            let machine = observe::machine_of(peerpod, provider).await;
            decide(Facts { machine, deletion_accepted: true, ..facts })
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{
        decide::{Refusal, tests::dangling},
        observe::tests::{answers, failing},
        *,
    };
    use crate::provider::{NAME_LIMIT, Vm, ownership};

    /// What follows from the deletion of a dangling machine by this cloud.
    async fn after(provider: &Result<Arc<dyn Provider>, Error>) -> Decision {
        let facts = dangling();
        let Decision::Delete(own) = decide(facts.clone()) else { panic!("there is nothing to delete") };
        let spec = json!({ "cloudProvider": "aws", "instanceID": own.vm().id.as_str() });
        let peerpod = PeerPod::new("web", serde_json::from_value(spec).unwrap());
        delete(&peerpod, provider, &own, facts, &Pass::new(Timestamp::now())).await
    }

    #[tokio::test]
    async fn a_deletion_that_the_cloud_does_not_accept_releases_nothing() {
        for (class, provider) in failing() {
            let expected = match class {
                ErrorClass::NotFound => Decision::Release(Release::Absent),
                class => decide::unanswered(Error::new(class, "as told")),
            };
            assert_eq!(after(&provider).await, expected);
            // Whatever it would say of the machine.
            let error = Error::new(class, "as told");
            let gone = Error::new(ErrorClass::NotFound, "");
            assert_eq!(after(&Ok(answers(Err(error), Err(gone)))).await, expected);
        }
    }

    #[tokio::test]
    async fn after_an_accepted_deletion_only_a_machine_that_is_seen_to_be_absent_is_released() {
        let Decision::Delete(own) = decide(dangling()) else { panic!("there is nothing to delete") };
        let vm = own.vm();
        let goes = Decision::Wait(Wait::MachineGoes);
        let gone = || Error::new(ErrorClass::NotFound, "");
        let busy = Error::new(ErrorClass::Transient, "busy");
        let another = Vm { name: "database".to_owned(), ..vm.clone() };
        let refusal = Refusal::NotOwn(ownership::verify(another.clone(), "web-0", NAME_LIMIT).unwrap_err());
        for (shown, expected) in [
            (Err(gone()), Decision::Release(Release::Absent)),
            (Ok(vm.clone()), goes.clone()),
            (Err(busy.clone()), Decision::Retry(busy)),
            (Ok(another), Decision::Refuse(refusal)),
        ] {
            assert_eq!(after(&Ok(answers(Ok(()), shown))).await, expected);
        }
        // Gone when it was to be deleted, and there again.
        assert_eq!(after(&Ok(answers(Err(gone()), Ok(vm.clone())))).await, goes);
    }
}
