//! Leader election: of all candidates for a Lease, one process holds it and acts.
//!
//! ```text
//! standby: watch the Lease ─► free, or unchanged for DURATION by this process's own clock ─► take it
//! leader:  write it every RETRY_PERIOD ─► no write succeeded for RENEW_DEADLINE, or another process took it
//!          ─► stop at once, stand by again
//! ```
//!
//! Each write replaces exactly the version of the Lease that was read (compare-and-swap by `resourceVersion`). The Lease has the
//! form and the rules of client-go's leader election, so both kinds of controllers exclude each other. A leader that ends in
//! order empties the Lease, which the others see at once. Requests of dropped work may still be in flight. So the leader keeps
//! the Lease for [`RELEASE_DELAY`] longer. Other processes wait as long after the deadline of a leader that does not renew.
//!
//! A standby costs the API server one watch. When a leader loses the lease, its work is dropped, not finished
//! ([`Leadership::while_leading`]); the process stays and stands by with all that it knows.

mod candidate;
mod record;
mod store;

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use futures::StreamExt;
use jiff::Timestamp;
use kube::Client;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use self::{
    candidate::{Candidate, Loss, Record, Step},
    store::{Failure, Store, Watch},
};
use crate::{Leadership, Permission};

pub use candidate::{DURATION, RENEW_DEADLINE, RETRY_PERIOD};

/// The permissions for an election by a Lease of one of these names, in the Lease's namespace alone.
pub const fn permissions(names: &'static [&'static str]) -> [Permission; 2] {
    [
        Permission::new("coordination.k8s.io", &["leases"], &["create"]),
        Permission::new("coordination.k8s.io", &["leases"], &["get", "list", "watch", "update"]).named(names),
    ]
}

/// How long a leader keeps the lease after it dropped work. Requests of that work may still be in flight. The time is the same as
/// between a leader's deadline and the moment at which another process may take the lease.
pub const RELEASE_DELAY: Duration = DURATION.checked_sub(RENEW_DEADLINE).unwrap();

/// How long one request may take: short enough for a second one before a leader's time is over.
const REQUEST_DEADLINE: Duration = RENEW_DEADLINE.checked_div(2).unwrap();

/// One process's part in the election by one Lease.
pub struct Election {
    candidate: Candidate,
    store: Store,
    leadership: Leadership,
    /// Records whether this process leads.
    metrics: Option<Box<dyn Fn(bool) + Send + Sync>>,
    /// Why requests fail, as was said last.
    trouble: Option<Failure>,
}

impl Election {
    /// A part that has not begun. `process` is the process' name for people, such as its Pod's name. In the Lease it has a random
    /// suffix, so that it differs from any other process, even from its own next start.
    pub fn new(client: Client, namespace: &str, name: &str, process: &str) -> Self {
        Self {
            candidate: Candidate::new(format!("{process}_{:016x}", RandomState::new().hash_one(()))),
            store: Store::new(client, namespace, name),
            leadership: Leadership::none(),
            metrics: None,
            trouble: None,
        }
    }

    /// Records in metrics whether this process leads: `leads` is called with each change. A program that takes part in
    /// several elections records one of them.
    #[must_use]
    pub fn with_metrics(self, leads: impl Fn(bool) + Send + Sync + 'static) -> Self {
        Self { metrics: Some(Box::new(leads)), ..self }
    }

    /// Names the flag that chose the namespace, such as `--lease-namespace`, in the log if the namespace does not exist.
    #[must_use]
    pub fn with_namespace_flag(self, flag: &'static str) -> Self {
        Self { store: self.store.with_namespace_flag(flag), ..self }
    }

    /// Never creates the Lease: while it does not exist, no process leads. `creator` says in the log what creates it.
    #[must_use]
    pub fn with_lease_created_by(self, creator: &'static str) -> Self {
        Self { store: self.store.created_by(creator), ..self }
    }

    /// Whether this process leads. It follows by itself.
    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    /// Takes part until `stop`, then releases the lease if it is held. Work that has not ended by then is dropped, and the lease
    /// is kept until `work_ended` and for [`RELEASE_DELAY`] more.
    pub async fn run(mut self, stop: CancellationToken, work_ended: CancellationToken) {
        let mut watch: Option<Watch> = None;
        while !stop.is_cancelled() {
            match self.candidate.decide(Instant::now()) {
                Step::Lost(loss) => self.step_down(&loss),
                // `stop` does not cancel it: a write may take effect although its sender no longer waits.
                Step::Write => {
                    let up_to_date = self.claim().await;
                    if !up_to_date || self.candidate.holds_until().is_some() {
                        watch = None;
                    }
                }
                Step::Wait(until) if self.candidate.holds_until().is_some() => tokio::select! {
                    () = stop.cancelled() => {}
                    () = sleep_until(until) => {}
                },
                Step::Wait(until) => {
                    let states = watch.get_or_insert_with(|| self.store.watch());
                    tokio::select! {
                        () = stop.cancelled() => {}
                        Some(state) = states.next() => match state {
                            Ok(lease) => {
                                self.trouble = None;
                                let record = self.store.observe(lease);
                                self.observe(record);
                            }
                            Err(failure) => self.trouble("watched", failure),
                        },
                        () = sleep_until(until) => {
                            if !self.candidate.has_seen() {
                                watch = None;
                            }
                        }
                    }
                }
            }
        }
        self.resign(&work_ended).await;
    }

    fn observe(&mut self, record: Option<Record>) {
        let before = self.candidate.holder().to_owned();
        self.candidate.observe(Instant::now(), record);
        let holder = self.candidate.holder();
        if self.candidate.holds_until().is_none() && holder != before && !holder.is_empty() {
            info!(lease = %self.store, holder, "standing by");
        }
    }

    /// Takes the lease or keeps it. `false`: it differs from what the watch or the last write had shown.
    async fn claim(&mut self) -> bool {
        let started = Instant::now();
        match self.write_claim().await {
            Ok(()) => true,
            Err(Failure::Outdated) => {
                debug!(lease = %self.store, "another process wrote the lease first");
                if let Err((done, failure)) = self.claim_anew().await {
                    self.candidate.failed(started);
                    self.trouble(done, failure);
                }
                false
            }
            Err(failure) => {
                self.candidate.failed(started);
                self.trouble("written", failure);
                true
            }
        }
    }

    /// Reads the Lease. This process may still be allowed to write it: its own last write took effect without an answer, or only
    /// a label changed. There is only one more attempt, as another write may come in between each time.
    async fn claim_anew(&mut self) -> Result<(), (&'static str, Failure)> {
        let record = self.store.read(self.request_deadline()).await.map_err(|failure| ("read", failure))?;
        self.observe(record);
        match self.candidate.decide(Instant::now()) {
            Step::Write => self.write_claim().await.map_err(|failure| ("written", failure)),
            Step::Wait(_) | Step::Lost(_) => Ok(()),
        }
    }

    async fn write_claim(&mut self) -> Result<(), Failure> {
        let started = Instant::now();
        let leading_until = self.candidate.holds_until();
        let before = self.candidate.holder().to_owned();
        let record =
            self.store.write(self.candidate.claim(Timestamp::now()), self.request_deadline()).await?;
        self.trouble = None;
        self.candidate.wrote(started, Instant::now(), record);
        match self.candidate.holds_until() {
            Some(until) if leading_until.is_none() => self.begin(until, &before),
            // If the two readings of the clock are before and after the deadline, the later one counts.
            Some(until) if !self.leadership.extend(until) => self.step_down(&Loss::Expired),
            _ => {}
        }
        Ok(())
    }

    /// The time by which a request that starts now must end, so that a leader's time is not spent waiting.
    fn request_deadline(&self) -> Instant {
        let deadline = Instant::now() + REQUEST_DEADLINE;
        self.candidate.holds_until().map_or(deadline, |until| until.min(deadline))
    }

    fn record(&self, leads: bool) {
        if let Some(record) = &self.metrics {
            record(leads);
        }
    }

    fn begin(&self, until: Instant, before: &str) {
        let reason = match before {
            "" => "it was free".to_owned(),
            own if own == self.candidate.identity() => "this process held it before".to_owned(),
            other => format!("{other} let it expire"),
        };
        self.leadership.begin(until);
        self.record(true);
        info!(lease = %self.store, identity = self.candidate.identity(), reason, "leading");
    }

    fn step_down(&mut self, loss: &Loss) {
        self.candidate.step_down();
        self.leadership.end();
        self.record(false);
        warn!(lease = %self.store, reason = %loss, "lost the leadership; dropped the work in progress");
    }

    /// Releases the lease, if it is held, so that no other process has to wait for it.
    async fn resign(&mut self, work_ended: &CancellationToken) {
        if !self.leadership.leads() {
            return;
        }
        let dropped = !work_ended.is_cancelled();
        self.candidate.step_down();
        self.leadership.end();
        self.record(false);
        if dropped {
            warn!(
                lease = %self.store,
                "dropped the work in progress, which took too long; releasing the lease in {RELEASE_DELAY:?}"
            );
            work_ended.cancelled().await;
            sleep(RELEASE_DELAY).await;
        }
        let deadline = Instant::now() + REQUEST_DEADLINE;
        let mut outcome = self.write_resignation(deadline).await;
        if let Err(Failure::Outdated) = outcome {
            // As for a claim: this process may still be allowed to release it.
            outcome = match self.store.read(deadline).await {
                Ok(record) => {
                    self.candidate.observe(Instant::now(), record);
                    self.write_resignation(deadline).await
                }
                Err(failure) => Err(failure),
            };
        }
        match outcome {
            Ok(()) => info!(lease = %self.store, "released the lease"),
            Err(failure) => warn!(
                lease = %self.store,
                "releasing the lease failed ({failure}); it expires after {} s", DURATION.as_secs()
            ),
        }
    }

    async fn write_resignation(&mut self, deadline: Instant) -> Result<(), Failure> {
        if self.candidate.holder() != self.candidate.identity() {
            return Ok(());
        }
        self.store.write(self.candidate.resignation(Timestamp::now()), deadline).await.map(drop)
    }

    /// Logs that requests fail, once until one succeeds or they fail for another reason.
    fn trouble(&mut self, done: &str, failure: Failure) {
        if self.trouble.as_ref().is_some_and(|last| last.status() == failure.status()) {
            debug!(lease = %self.store, "the lease still cannot be {done}: {failure}");
        } else {
            warn!(
                lease = %self.store,
                "the lease cannot be {done}; the operator tries again every {} s: {failure}{}",
                RETRY_PERIOD.as_secs(), self.store.advice(&failure)
            );
        }
        self.trouble = Some(failure);
    }
}

#[cfg(test)]
mod tests {
    use kube::client::Body;
    use serde_json::json;
    use tower::{BoxError, service_fn};

    use super::*;
    use crate::testing::{Answer, ApiServer, Call};

    const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/shop/leases";
    const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/shop/leases/widgets";

    /// A part in the election by a Lease that does not exist yet.
    fn election(client: Client) -> Election {
        let mut election = Election::new(client, "shop", "widgets", "a");
        election.observe(None);
        election
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_whose_lease_another_took_stops_at_once() {
        let of_another = json!({ "metadata": { "name": "widgets" }, "spec": { "holderIdentity": "b" } });
        let server = ApiServer::expecting([
            Call::post(LEASES).answer(Answer::as_sent()),
            Call::put(LEASE).answer(Answer::conflict("leases", "widgets")),
            Call::get(LEASE).answer(Answer::object(&of_another)),
        ]);
        let mut election = election(server.client());
        assert!(election.claim().await && election.leadership.leads());
        assert!(!election.claim().await);
        let Step::Lost(loss) = election.candidate.decide(Instant::now()) else { panic!("it is not lost") };
        election.step_down(&loss);
        assert!(!election.leadership.leads());
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_of_a_leader_counts_from_before_its_write() {
        let slow = service_fn(|request: hyper::Request<Body>| async move {
            sleep(Duration::from_secs(4)).await;
            Ok::<_, BoxError>(hyper::Response::new(request.into_body()))
        });
        let mut election = election(Client::new(slow, "default"));
        for _ in 0..2 {
            let begun = Instant::now();
            election.write_claim().await.unwrap();
            assert_eq!(election.candidate.holds_until(), Some(begun + RENEW_DEADLINE));
        }
    }
}
