//! Leader election: of all processes that want a Lease, one holds it and acts.
//!
//! ```text
//! standby: watch the Lease ─► free, or unchanged for 15 s by this process's own clock ─► take it
//! leader:  write it every 2 s ─► no write succeeded for 10 s, or somebody else took it ─► stop at once, stand by again
//! ```
//!
//! Each write replaces exactly the version of the Lease that was read (compare-and-swap by `resourceVersion`). The Lease
//! looks and is treated as by client-go's leader election, so this excludes such controllers and they exclude this. A
//! leader that ends in order empties the Lease, which the watch tells the others at once.
//!
//! A standby costs the API server one watch. What a leader was doing when it lost the lease is dropped, not finished
//! ([`Leadership::while_leading`]); the process goes on and stands by with all that it knows.

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
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use self::{
    candidate::{Candidate, Loss, Record, Step},
    store::{Failure, Store, Watch},
};
use super::{Leadership, Metrics};
use crate::permissions::Permission;

pub use candidate::{DURATION, RENEW_DEADLINE, RETRY_PERIOD};

/// The Lease's name unless told otherwise.
pub const DEFAULT_NAME: &str = "peerpod-operator";

/// The name of the Lease that cloud-api-adaptor's own `peerpod-ctrl` holds while it acts.
pub const PEERPOD_CTRL: &str = "33f6c5d6.confidentialcontainers.org";

/// What an election may do, in the Lease's namespace alone. A Lease of another name needs a role of its own.
pub const PERMISSIONS: &[Permission] = &[
    Permission::new("coordination.k8s.io", &["leases"], &["create"]),
    Permission::new("coordination.k8s.io", &["leases"], &["get", "list", "watch", "update"])
        .named(&[DEFAULT_NAME, PEERPOD_CTRL]),
];

/// How long one request may take: short enough for a second one before a leader's time is over.
const REQUEST_DEADLINE: Duration = Duration::from_secs(5);

/// One process's part in the election by one Lease.
pub struct Election {
    candidate: Candidate,
    store: Store,
    leadership: Leadership,
    metrics: Metrics,
    /// Whether it was said that requests fail.
    in_trouble: bool,
}

impl Election {
    /// A part that has not begun. `process` is what people know this process by, such as its Pod's name; in the Lease it
    /// bears a random suffix, so that nothing else, not even its own next start, is taken for it.
    pub fn new(client: Client, namespace: &str, name: &str, process: &str, metrics: Metrics) -> Self {
        Self {
            candidate: Candidate::new(format!("{process}_{:016x}", RandomState::new().hash_one(()))),
            store: Store::new(client, namespace, name),
            leadership: Leadership::none(),
            metrics,
            in_trouble: false,
        }
    }

    /// Whether this process leads. It follows by itself.
    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    /// Takes part until `stop`, which is to come after all work has ended; then gives the lease up if it is held.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut watch: Option<Watch> = None;
        while !stop.is_cancelled() {
            match self.candidate.decide(Instant::now()) {
                Step::Lost(loss) => self.step_down(&loss),
                // It is not cut short by `stop`: a write that nobody waits for may take place all the same.
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
                                self.in_trouble = false;
                                let record = self.store.observe(lease);
                                self.observe(record);
                            }
                            Err(error) => self.trouble("watched", &error),
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
        self.resign().await;
    }

    fn observe(&mut self, record: Option<Record>) {
        let before = self.candidate.holder().to_owned();
        self.candidate.observe(Instant::now(), record);
        let holder = self.candidate.holder();
        if self.candidate.holds_until().is_none() && holder != before && !holder.is_empty() {
            info!(lease = %self.store, holder, "standing by");
        }
    }

    /// Takes the lease or keeps it. `false`: it was not as the watch or the last write had shown it.
    async fn claim(&mut self) -> bool {
        let started = Instant::now();
        let leading_until = self.candidate.holds_until();
        let deadline = started + REQUEST_DEADLINE;
        let deadline = leading_until.map_or(deadline, |until| until.min(deadline));
        let before = self.candidate.holder().to_owned();
        match self.store.write(self.candidate.claim(Timestamp::now()), deadline).await {
            Ok(record) => {
                self.in_trouble = false;
                self.candidate.wrote(started, Instant::now(), record);
                match self.candidate.holds_until() {
                    Some(until) if leading_until.is_none() => self.begin(until, &before),
                    // Should the two clocks' readings fall on both sides of the deadline, the later one counts.
                    Some(until) if !self.leadership.extend(until) => self.step_down(&Loss::Expired),
                    _ => {}
                }
                true
            }
            Err(Failure::Outdated) => {
                self.candidate.failed(started);
                debug!(lease = %self.store, "somebody else wrote the lease first");
                match self.store.read(Instant::now() + REQUEST_DEADLINE).await {
                    Ok(record) => self.observe(record),
                    Err(error) => self.trouble("read", &error),
                }
                false
            }
            Err(error) => {
                self.candidate.failed(started);
                self.trouble("written", &error);
                true
            }
        }
    }

    fn begin(&self, until: Instant, before: &str) {
        let reason = match before {
            "" => "it was free".to_owned(),
            own if own == self.candidate.identity() => "nobody took it meanwhile".to_owned(),
            other => format!("{other} let it expire"),
        };
        self.leadership.begin(until);
        self.metrics.leader(true);
        info!(lease = %self.store, identity = self.candidate.identity(), reason, "leading");
    }

    fn step_down(&mut self, loss: &Loss) {
        self.candidate.step_down();
        self.leadership.end();
        self.metrics.leader(false);
        warn!(lease = %self.store, reason = %loss, "leading no more; what was under way is dropped");
    }

    /// Gives the lease up, if it is held, so that nobody has to wait for it.
    async fn resign(&mut self) {
        if !self.leadership.leads() {
            return;
        }
        let record = self.candidate.resignation(Timestamp::now());
        self.candidate.step_down();
        self.leadership.end();
        self.metrics.leader(false);
        match self.store.write(record, Instant::now() + REQUEST_DEADLINE).await {
            Ok(_) => info!(lease = %self.store, "gave the lease up"),
            Err(error) => warn!(
                lease = %self.store,
                "could not give the lease up ({error}); it is free after {} s", DURATION.as_secs()
            ),
        }
    }

    fn trouble(&mut self, done: &str, error: &dyn std::error::Error) {
        if std::mem::replace(&mut self.in_trouble, true) {
            debug!(lease = %self.store, "the lease could still not be {done}: {error}");
        } else {
            warn!(
                lease = %self.store,
                "the lease could not be {done}; trying again every {} s: {error}", RETRY_PERIOD.as_secs()
            );
        }
    }
}
