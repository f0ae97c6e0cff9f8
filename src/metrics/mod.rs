//! The operator's metrics, all in one table.
//!
//! Every label's value comes from a fixed set (`&'static str`), so that no object in the cluster can make the series
//! grow. Recording takes a lock for reading and allocates nothing, but for the first time that a value is seen.

mod families;
mod provider_call;

use std::{sync::Arc, time::Duration};

use operator_kit::metrics::{Counted, Description, seconds_since_1970};
use prometheus_client::{metrics::info::Info, registry::Registry};

use self::families::Families;
pub use self::provider_call::ProviderCall;

/// The name of the settings that a process has without a further word.
pub const DEFAULT_SETTINGS: &str = "default";

/// PeerPods of one cloud, as they are at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Population {
    /// All that exist.
    pub peerpods: usize,
    /// Those that changed and wait to be looked at.
    pub queued: usize,
    /// Those that are being deleted and whose finalizer is there.
    pub pending: usize,
    /// When the first of the pending ones that do not wait for their Pods was deleted, in seconds since 1970.
    pub oldest: Option<i64>,
}

/// Adds the version that runs, and nothing else, to the registry, at whose root it belongs.
pub fn register_build(registry: &mut Registry) {
    let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
    Metrics::BUILD.register(registry, build);
}

/// Records what the operator does. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Families>);

impl Metrics {
    /// The version that runs, as `build_info`.
    pub const BUILD: Description = Description {
        name: "peerpod_operator_build_info",
        kind: "info",
        labels: &["version"],
        help: "The version of this program.",
    };

    /// Every other metric, in the order in which they are scraped.
    pub const DESCRIPTIONS: &'static [Description] = Families::DESCRIPTIONS;

    /// Adds the metrics to the host's registry, at whose root they belong: their names are whole.
    pub fn new(registry: &mut Registry) -> Self {
        register_build(registry);
        Self(Arc::new(Families::register(registry)))
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

    /// A look at a PeerPod ended with this decision.
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

    /// A PeerPod's finalizer was released `latency` after its deletion.
    pub fn released(&self, provider: &'static str, outcome: &'static str, latency: Duration) {
        self.0.deletions.with([provider, outcome]).inc();
        self.0.deletion_latency.with([provider]).observe(latency.as_secs_f64());
    }

    /// A PeerPod is held back for `reason` from now until the guard is dropped.
    pub fn held(&self, reason: &'static str) -> Counted {
        Counted::up(self.0.peerpods_held.with([reason]).clone())
    }

    /// A look at a PeerPod ended with an error of its cloud.
    pub fn provider_error(&self, provider: &'static str, class: &'static str) {
        self.0.provider_errors.with([provider, class]).inc();
    }

    /// These decisions and reasons can occur: they show from now on, so that the first one is seen as an increase.
    pub fn expect(
        &self,
        decisions: impl IntoIterator<Item = &'static str>,
        reasons: impl IntoIterator<Item = &'static str>,
    ) {
        decisions.into_iter().for_each(|decision| drop(self.0.decisions.with([decision])));
        reasons.into_iter().for_each(|reason| drop(self.0.peerpods_held.with([reason])));
    }

    /// This provider's gauges and its errors of these classes show from now on.
    pub fn expect_provider(&self, provider: &'static str, classes: impl IntoIterator<Item = &'static str>) {
        let families = &self.0;
        classes.into_iter().for_each(|class| drop(families.provider_errors.with([provider, class])));
        drop(families.provider_calls_in_flight.with([provider]));
        drop(families.provider_calls_queued.with([provider]));
        drop(families.provider_calls_stalled.with([provider]));
        drop(families.provider_throttled.with([provider]));
        drop(families.provider_throttled_until.with([provider]));
    }

    /// A call to a cloud starts now.
    pub fn provider_call(&self, provider: &'static str, call: &'static str) -> ProviderCall {
        ProviderCall::start(self.clone(), provider, call)
    }

    /// A PeerPod waits for its turn at a cloud from now until the guard is dropped.
    pub fn provider_call_queued(&self, provider: &'static str) -> Counted {
        Counted::up(self.0.provider_calls_queued.with([provider]).clone())
    }

    /// A reconcile is busy at a cloud for long, from now until the guard is dropped.
    pub fn provider_call_stalled(&self, provider: &'static str) -> Counted {
        Counted::up(self.0.provider_calls_stalled.with([provider]).clone())
    }

    /// A cloud asked to be left alone for `retry_after` from now.
    pub fn provider_throttled(&self, provider: &'static str, retry_after: Duration) {
        let until = seconds_since_1970() + retry_after.as_secs_f64();
        self.0.provider_throttled_until.with([provider]).set(until);
        self.0.provider_throttled.with([provider]).set(until);
    }

    /// Changed settings were taken into force, or rejected. `settings`: which of those that this process is given,
    /// [`DEFAULT_SETTINGS`] or the name of their cloud.
    pub fn settings_reloaded(&self, settings: &'static str, accepted: bool) {
        self.0.settings_reloads.with([settings, if accepted { "accepted" } else { "rejected" }]).inc();
    }

    /// Whether deletions can go by these mounted settings; none where nothing is deleted by them.
    pub fn settings_usable(&self, settings: &'static str, usable: Option<bool>) {
        match usable {
            Some(usable) => drop(self.0.settings_valid.with([settings]).set(usable.into())),
            None => self.0.settings_valid.remove([settings]),
        }
    }
}

#[cfg(test)]
mod tests;
