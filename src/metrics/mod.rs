//! The operator's metrics, all in one table except the [capacities](ConfigCapacity). Each has a method that records it.
//!
//! Every label's value comes from a fixed set (`&'static str`), so that objects in the cluster cannot add series. The label of
//! the capacities is the exception: it names objects that only administrators write. Recording takes a lock for reading, and
//! allocates only when a value is seen for the first time.

mod capacity;
mod provider_call;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use operator_kit::{
    families,
    metrics::{Ahead, Counted, Counter, Description, Gauge, Histogram, Moment, seconds_since_1970},
};
use prometheus_client::{metrics::info::Info, registry::Registry};

use self::capacity::Capacities;
pub use self::{
    capacity::{ConfigCapacity, Usage},
    provider_call::ProviderCall,
};

families! {
    /// The families by name.
    struct Families: "peerpod_operator_";

    /// Whether this process leads: 1, or 0 while it is ready to take over.
    leader: Gauge = "leader" [],
    /// Reconciles, by their result.
    reconciles: Counter = "reconciles_total" ["controller", "result"],
    /// How long a reconcile took.
    reconcile_duration: Histogram = "reconcile_duration_seconds" ["controller"],
    /// Decisions of the reconciles of PeerPods. The table of decisions describes each.
    decisions: Counter = "decisions_total" ["decision"],
    /// PeerPods that exist.
    peerpods: Gauge = "peerpods" ["provider"],
    /// PeerPods that changed and wait for their reconcile.
    peerpods_queued: Gauge = "peerpods_queued" ["provider"],
    /// PeerPods whose condition Reconciling or Stalled is True, by its reason.
    peerpods_held: Gauge = "peerpods_held" ["reason"],
    /// PeerPods that are being deleted and still have the finalizer.
    pending_deletions: Gauge = "pending_deletions" ["provider"],
    /// Since when the oldest pending deletion is due, in seconds since 1970: its request, or the end of the wait for its Pod or of developer
    /// mode, if this process saw that. PeerPods that still wait do not count. Absent if no deletion is pending.
    oldest_pending_deletion: Moment = "oldest_pending_deletion_timestamp_seconds" ["provider"],
    /// PeerPods whose finalizer this operator removed, by outcome.
    deletions: Counter = "deletions_total" ["provider", "outcome"],
    /// Time from a PeerPod's deletionTimestamp to the removal of its finalizer, including the time that its Pod took to
    /// end. The timestamp has whole seconds, so the value is up to 1 s too high.
    deletion_latency: Histogram = "deletion_latency_seconds" ["provider"],
    /// Reconciles of PeerPods that ended with an error of the cloud, by the error's class.
    provider_errors: Counter = "provider_errors_total" ["provider", "class"],
    /// Finished calls to a cloud, by result: ok, a class of error, or abandoned.
    provider_calls: Counter = "provider_calls_total" ["provider", "call", "result"],
    /// How long a call to a cloud took.
    provider_call_duration: Histogram = "provider_call_duration_seconds" ["provider", "call"],
    /// Calls to a cloud in progress.
    provider_calls_in_flight: Gauge = "provider_calls_in_flight" ["provider"],
    /// PeerPods that wait for their turn at their cloud.
    peerpods_parked: Gauge = "provider_calls_queued" ["provider"],
    /// Reconciles that have been busy at a cloud for more than 1 s, and so may free their slot for others.
    provider_calls_stalled: Gauge = "provider_calls_stalled" ["provider"],
    /// Whether the operator makes no calls to a cloud now because the cloud asked for fewer and named a time: 1 or 0.
    provider_throttled: Ahead = "provider_throttled" ["provider"],
    /// Until when a cloud asked for no calls, in seconds since 1970. 0 if it never asked.
    provider_throttled_until: Moment = "provider_throttled_until_timestamp_seconds" ["provider"],
    /// Whether deletions use the mounted settings: 1, or 0 while deletions wait or use the last good settings. Absent without
    /// the controller peerpod, which deletes.
    settings_valid: Gauge = "settings_valid" ["settings"],
    /// Changes of the mounted settings, accepted or rejected.
    settings_reloads: Counter = "settings_reloads_total" ["settings", "result"],
    /// VMs, and what came with them, that no PeerPod tracks, by what the sweep does about them, without those that it has deleted since
    /// it listed them. `spared`: a Pod of this name may run on it.
    untracked: Gauge = "untracked_resources" ["provider", "kind", "verdict"],
    /// PeerPods of running Pods whose VM is gone or off.
    lost_vms: Gauge = "lost_vms" ["provider", "state"],
    /// The time from one listing of a cloud to the next one, as `--sweep-interval` has it. Absent where this process does not lead,
    /// and with `--sweep=off`.
    sweep_interval: Gauge = "sweep_interval_seconds" ["provider"],
    /// When the last complete listing of a cloud began, in seconds since 1970. Absent before the first one, where this process
    /// does not lead, and with `--sweep=off`.
    last_listing: Moment = "sweep_last_listing_timestamp_seconds" ["provider"],
    /// Untracked VMs, and what came with them, that the sweep deleted.
    swept: Counter = "sweep_deletions_total" ["provider", "kind"],
}

/// The name of the settings that serve every cloud without settings of its own; mostly they are the only ones.
pub const DEFAULT_SETTINGS: &str = "default";

/// PeerPods of one cloud, as they are at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Population {
    /// All that exist.
    pub peerpods: usize,
    /// PeerPods that changed and wait for their reconcile.
    pub queued: usize,
    /// PeerPods that are being deleted and still have the finalizer.
    pub pending: usize,
    /// When the first of the pending ones that do not wait for their Pods was deleted, in seconds since 1970.
    pub oldest: Option<i64>,
}

/// What one complete listing of a cloud shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Listing {
    /// When it began, in seconds since 1970.
    pub began: f64,
    /// The number of things that no PeerPod tracks, by kind and verdict: every pair, also those with none.
    pub untracked: HashMap<(&'static str, &'static str), usize>,
    /// How many PeerPods of running Pods have lost their VM, by the state of the VM: every state.
    pub lost: HashMap<&'static str, usize>,
}

/// Adds the version that runs, and nothing else, to the registry, at whose root it belongs.
pub fn register_build(registry: &mut Registry) {
    let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
    Metrics::BUILD.register(registry, build);
}

/// Records what the operator does. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Families>, Capacities);

impl Metrics {
    /// The version that runs, as `build_info`.
    pub const BUILD: Description = Description {
        name: "peerpod_operator_build_info",
        kind: "info",
        labels: &["version"],
        help: "The version of this program.",
    };

    /// Every other metric, in the order in which they are scraped.
    pub fn descriptions() -> impl Iterator<Item = &'static Description> {
        Families::DESCRIPTIONS.iter().chain(&capacity::DESCRIPTIONS)
    }

    /// Adds the metrics to the host's registry, at whose root they belong: their names are whole.
    pub fn new(registry: &mut Registry) -> Self {
        register_build(registry);
        let capacities = Capacities::default();
        let families = Families::register(registry);
        registry.register_collector(Box::new(capacities.clone()));
        Self(Arc::new(families), capacities)
    }

    /// This process leads, or not.
    pub fn leader(&self, leads: bool) {
        self.0.leader.with([]).set(leads.into());
    }

    /// A reconcile ended with `result` after `duration`.
    pub fn reconciled(&self, controller: &'static str, result: &'static str, duration: Duration) {
        self.0.reconciles.with([controller, result]).inc();
        self.0.reconcile_duration.with([controller]).observe(duration.as_secs_f64());
    }

    /// A reconcile of a PeerPod ended with this decision.
    pub fn decided(&self, decision: &'static str) {
        self.0.decisions.with([decision]).inc();
    }

    /// The PeerPods of this provider are now these.
    pub fn population(&self, provider: &'static str, population: &Population) {
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let families = &self.0;
        families.peerpods.with([provider]).set(count(population.peerpods));
        families.peerpods_queued.with([provider]).set(count(population.queued));
        families.pending_deletions.with([provider]).set(count(population.pending));
        match population.oldest {
            Some(oldest) => {
                let since = f64::from(u32::try_from(oldest).unwrap_or_default());
                families.oldest_pending_deletion.with([provider]).set(since);
            }
            None => families.oldest_pending_deletion.remove([provider]),
        }
    }

    /// From now on this provider is listed once in each `interval`. The counters of the sweep's deletions of these kinds exist from
    /// now on, so that the first deletion shows as an increase.
    pub fn lists(
        &self,
        provider: &'static str,
        interval: Duration,
        kinds: impl IntoIterator<Item = &'static str>,
    ) {
        let seconds = i64::try_from(interval.as_secs()).unwrap_or(i64::MAX);
        self.0.sweep_interval.with([provider]).set(seconds);
        kinds.into_iter().for_each(|kind| drop(self.0.swept.with([provider, kind])));
    }

    /// The newest listing of this provider shows this.
    pub fn listed(&self, provider: &'static str, listing: &Listing) {
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        for (&(kind, verdict), &found) in &listing.untracked {
            self.0.untracked.with([provider, kind, verdict]).set(count(found));
        }
        for (state, &lost) in &listing.lost {
            self.0.lost_vms.with([provider, state]).set(count(lost));
        }
        self.0.last_listing.with([provider]).set(listing.began);
    }

    /// This provider is not listed any more. What `listing` names is no longer shown, whatever its numbers.
    pub fn not_listed(&self, provider: &'static str, listing: &Listing) {
        for &(kind, verdict) in listing.untracked.keys() {
            self.0.untracked.remove([provider, kind, verdict]);
        }
        for state in listing.lost.keys() {
            self.0.lost_vms.remove([provider, state]);
        }
        self.0.last_listing.remove([provider]);
        self.0.sweep_interval.remove([provider]);
    }

    /// The sweep deleted something of this kind, which the newest listing had with this verdict. The next listing may be hours away.
    pub fn swept(&self, provider: &'static str, kind: &'static str, verdict: &'static str) {
        self.0.swept.with([provider, kind]).inc();
        self.0.untracked.with([provider, kind, verdict]).dec();
    }

    /// A PeerPod's finalizer was released `latency` after its deletion.
    pub fn released(&self, provider: &'static str, outcome: &'static str, latency: Duration) {
        self.0.deletions.with([provider, outcome]).inc();
        self.0.deletion_latency.with([provider]).observe(latency.as_secs_f64());
    }

    /// A PeerPod is held back for `reason` from now until the guard is dropped.
    pub fn held(&self, reason: &'static str) -> Counted {
        Counted::up(self.0.peerpods_held.with([reason]))
    }

    /// A reconcile of a PeerPod ended with an error of its cloud.
    pub fn provider_error(&self, provider: &'static str, class: &'static str) {
        self.0.provider_errors.with([provider, class]).inc();
    }

    /// These decisions and reasons can occur. Their series exist from now on, so that the first one shows as an increase.
    pub fn expect(
        &self,
        decisions: impl IntoIterator<Item = &'static str>,
        reasons: impl IntoIterator<Item = &'static str>,
    ) {
        decisions.into_iter().for_each(|decision| drop(self.0.decisions.with([decision])));
        reasons.into_iter().for_each(|reason| drop(self.0.peerpods_held.with([reason])));
    }

    /// The series of this provider's gauges, of its calls that succeed and of its errors of these classes exist from now on, so that the
    /// first one shows as an increase.
    pub fn expect_provider(&self, provider: &'static str, classes: impl IntoIterator<Item = &'static str>) {
        let families = &self.0;
        classes.into_iter().for_each(|class| drop(families.provider_errors.with([provider, class])));
        drop(families.provider_calls.with([provider, "describe", "ok"]));
        drop(families.provider_calls.with([provider, "describe", "not_found"]));
        drop(families.provider_calls.with([provider, "delete", "ok"]));
        drop(families.provider_calls_in_flight.with([provider]));
        drop(families.peerpods_parked.with([provider]));
        drop(families.provider_calls_stalled.with([provider]));
        drop(families.provider_throttled.with([provider]));
        drop(families.provider_throttled_until.with([provider]));
    }

    /// A call to a cloud starts now.
    pub fn provider_call(&self, provider: &'static str, call: &'static str) -> ProviderCall {
        ProviderCall::start(self.clone(), provider, call)
    }

    /// A PeerPod is parked at a cloud from now until the guard is dropped.
    pub fn peerpod_parked(&self, provider: &'static str) -> Counted {
        Counted::up(self.0.peerpods_parked.with([provider]))
    }

    /// A reconcile is busy at a cloud for long, from now until the guard is dropped.
    pub fn provider_call_stalled(&self, provider: &'static str) -> Counted {
        Counted::up(self.0.provider_calls_stalled.with([provider]))
    }

    /// A cloud asked for a pause of `retry_after` from now. An earlier answer may have asked for a longer one, which lasts.
    pub fn provider_throttled(&self, provider: &'static str, retry_after: Duration) {
        let end = self.0.provider_throttled_until.with([provider]);
        let until = end.get().max(seconds_since_1970() + retry_after.as_secs_f64());
        end.set(until);
        self.0.provider_throttled.with([provider]).set(until);
    }

    /// Changed settings came into force, or were rejected. `settings`: which of this process' settings, [`DEFAULT_SETTINGS`] or
    /// the name of their cloud.
    pub fn settings_reloaded(&self, settings: &'static str, accepted: bool) {
        self.0.settings_reloads.with([settings, if accepted { "accepted" } else { "rejected" }]).inc();
    }

    /// Whether deletions can use these mounted settings; `None` if these settings delete nothing.
    pub fn settings_usable(&self, settings: &'static str, usable: Option<bool>) {
        match usable {
            Some(usable) => drop(self.0.settings_valid.with([settings]).set(usable.into())),
            None => self.0.settings_valid.remove([settings]),
        }
    }

    /// The capacities of all configurations, by name, are these. Those of others are no longer shown.
    pub fn capacities(&self, capacities: BTreeMap<String, ConfigCapacity>) {
        self.1.replace(capacities);
    }
}

#[cfg(test)]
mod tests;
