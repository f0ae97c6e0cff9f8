//! The operator's metrics, all in one table.
//!
//! Every label's value comes from a fixed set (`&'static str`), so that no object in the cluster can make the series
//! grow. Recording takes a lock for reading and allocates nothing, but for the first time that a value is seen.

use std::array;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};

/// Every metric's name starts with this, followed by `_`.
pub const PREFIX: &str = "peerpod_operator";

/// Upper bounds of the histograms' buckets in seconds: from an answer out of a cache to a VM that takes half an hour.
const BUCKETS: [f64; 14] =
    [0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0];

/// A moment in seconds since 1970.
type Moment = Gauge<f64, AtomicU64>;

/// A metric, as documents print it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// The name as it is scraped, without [`PREFIX`]. A histogram's is that of its `_bucket`, `_sum` and `_count`.
    pub name: &'static str,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// The labels' names.
    pub labels: &'static [&'static str],
    /// What it counts or measures.
    pub help: &'static str,
}

/// Declares the families. A field's comment is the metric's help text.
macro_rules! families {
    ($(
        $(#[doc = $help:literal])+
        $field:ident: $kind:ty = $name:literal [$($label:literal),*],
    )+) => {
        #[derive(Debug)]
        struct Families {
            $($(#[doc = $help])+ $field: Labelled<{ labels![$($label)*] }, $kind>,)+
        }

        impl Families {
            fn register(registry: &mut Registry) -> Self {
                Self {$($field: Labelled::register(registry, $name, concat!($($help),+), [$($label),*]),)+}
            }
        }

        impl Metrics {
            /// Every metric but `build_info`, in the order in which they are scraped.
            pub const DESCRIPTIONS: &'static [Description] = &[$(Description {
                name: $name,
                kind: <$kind as Kind>::NAME,
                labels: &[$($label),*],
                help: concat!($($help),+).trim_ascii(),
            }),+];
        }
    };
}

macro_rules! labels {
    ($($label:literal)*) => { <[&str]>::len(&[$($label),*]) };
}

families! {
    /// Whether this process leads: 1, or 0 while it is ready to take over.
    leader: Gauge = "leader" [],
    /// Reconciles that ended, by how they ended.
    reconciles: Counter = "reconciles_total" ["controller", "result"],
    /// How long a reconcile took.
    reconcile_duration: Histogram = "reconcile_duration_seconds" ["controller"],
    /// PeerPods that exist.
    peerpods: Gauge = "peerpods" ["provider"],
    /// PeerPods whose finalizer this operator released, by what became of the VM.
    deletions: Counter = "deletions_total" ["provider", "outcome"],
    /// From the deletion of a PeerPod to the release of its finalizer.
    deletion_latency: Histogram = "deletion_latency_seconds" ["provider"],
    /// Times that a PeerPod was held back, by the reason in its condition.
    refusals: Counter = "refusals_total" ["reason"],
    /// Calls to a cloud that ended: ok, a class of error, or abandoned.
    provider_calls: Counter = "provider_calls_total" ["provider", "call", "result"],
    /// How long a call to a cloud took.
    provider_call_duration: Histogram = "provider_call_duration_seconds" ["provider", "call"],
    /// Calls to a cloud that are under way.
    provider_calls_in_flight: Gauge = "provider_calls_in_flight" ["provider"],
    /// Until when a cloud asked to be left alone, in seconds since 1970.
    provider_throttled_until: Moment = "provider_throttled_until_timestamp_seconds" ["provider"],
    /// Whether the mounted settings are in force: 1, or 0 while the last good ones are, or none.
    settings_valid: Gauge = "settings_valid" [],
    /// Changes of the mounted settings: accepted or rejected.
    settings_reloads: Counter = "settings_reloads_total" ["result"],
}

/// Records what the operator does. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Families>);

impl Metrics {
    /// Adds the metrics to the host's registry, under [`PREFIX`].
    pub fn new(registry: &mut Registry) -> Self {
        let registry = registry.sub_registry_with_prefix(PREFIX);
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "The version that runs", build);
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

    /// There are `count` PeerPods on this provider.
    pub fn peerpods(&self, provider: &'static str, count: usize) {
        self.0.peerpods.with([provider]).set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// A PeerPod's finalizer was released `latency` after its deletion.
    pub fn released(&self, provider: &'static str, outcome: &'static str, latency: Duration) {
        self.0.deletions.with([provider, outcome]).inc();
        self.0.deletion_latency.with([provider]).observe(latency.as_secs_f64());
    }

    /// A PeerPod was held back for `reason`.
    pub fn held(&self, reason: &'static str) {
        self.0.refusals.with([reason]).inc();
    }

    /// A call to a cloud starts now.
    pub fn provider_call(&self, provider: &'static str, call: &'static str) -> ProviderCall {
        self.0.provider_calls_in_flight.with([provider]).inc();
        ProviderCall { metrics: self.clone(), provider, call, result: "abandoned", start: Instant::now() }
    }

    /// A cloud asked to be left alone for `retry_after` from now.
    pub fn provider_throttled(&self, provider: &'static str, retry_after: Duration) {
        // A clock before 1970 shows as a moment long past, which is what it means: not throttled.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.0.provider_throttled_until.with([provider]).set(now.saturating_add(retry_after).as_secs_f64());
    }

    /// Changed settings were taken into force, or rejected.
    pub fn settings(&self, valid: bool) {
        self.0.settings_valid.with([]).set(valid.into());
        self.0.settings_reloads.with([if valid { "accepted" } else { "rejected" }]).inc();
    }
}

/// A call to a cloud that is under way. It counts as `abandoned` if dropped before [`finish`](Self::finish).
#[must_use = "the call counts as ended when this is dropped"]
#[derive(Debug)]
pub struct ProviderCall {
    metrics: Metrics,
    provider: &'static str,
    call: &'static str,
    result: &'static str,
    start: Instant,
}

impl ProviderCall {
    /// The call ended: `ok`, or the class of its error.
    pub fn finish(mut self, result: &'static str) {
        self.result = result;
    }
}

impl Drop for ProviderCall {
    fn drop(&mut self) {
        let families = &self.metrics.0;
        families.provider_calls_in_flight.with([self.provider]).dec();
        families.provider_calls.with([self.provider, self.call, self.result]).inc();
        let duration = self.start.elapsed().as_secs_f64();
        families.provider_call_duration.with([self.provider, self.call]).observe(duration);
    }
}

/// A family whose labels' names are fixed.
#[derive(Debug)]
struct Labelled<const N: usize, M> {
    labels: [&'static str; N],
    family: Family<[(&'static str, &'static str); N], M>,
}

impl<const N: usize, M: Kind> Labelled<N, M> {
    fn register(registry: &mut Registry, name: &str, help: &str, labels: [&'static str; N]) -> Self {
        let family = Family::new_with_constructor(M::new as fn() -> M);
        // The registry appends the counters' suffix and every help text's full stop itself.
        let name = name.strip_suffix("_total").unwrap_or(name);
        registry.register(name, help.trim().trim_end_matches('.'), family.clone());
        Self { labels, family }
    }

    /// The metric with these labels, made when first asked for.
    fn with(&self, values: [&'static str; N]) -> impl Deref<Target = M> {
        self.family.get_or_create(&array::from_fn(|index| (self.labels[index], values[index])))
    }
}

/// What the families are made of.
trait Kind: Metric + TypedMetric {
    const NAME: &'static str;

    fn new() -> Self;
}

impl Kind for Counter {
    const NAME: &'static str = "counter";

    fn new() -> Self {
        Self::default()
    }
}

impl Kind for Gauge {
    const NAME: &'static str = "gauge";

    fn new() -> Self {
        Self::default()
    }
}

impl Kind for Moment {
    const NAME: &'static str = "gauge";

    fn new() -> Self {
        Self::default()
    }
}

impl Kind for Histogram {
    const NAME: &'static str = "histogram";

    fn new() -> Self {
        Self::new(BUCKETS)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn metrics() -> (Registry, Metrics) {
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry);
        (registry, metrics)
    }

    fn scrape(registry: &Registry) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
        text
    }

    fn record_everything(metrics: &Metrics) {
        metrics.leader(true);
        metrics.reconciled("peerpod", "ok", Duration::from_millis(3));
        metrics.peerpods("libvirt", 7);
        metrics.released("libvirt", "deleted", Duration::from_secs(40));
        metrics.held("NotOurs");
        metrics.provider_call("libvirt", "describe").finish("ok");
        metrics.provider_throttled("libvirt", Duration::from_secs(30));
        metrics.settings(true);
    }

    #[test]
    fn what_is_recorded_is_scraped_under_conventional_names() {
        let (registry, metrics) = metrics();
        record_everything(&metrics);
        metrics.settings(false);
        let text = scrape(&registry);
        for line in [
            concat!("build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
            "leader{} 1",
            "reconciles_total{controller=\"peerpod\",result=\"ok\"} 1",
            "reconcile_duration_seconds_count{controller=\"peerpod\"} 1",
            "reconcile_duration_seconds_bucket{le=\"0.005\",controller=\"peerpod\"} 1",
            "peerpods{provider=\"libvirt\"} 7",
            "deletions_total{provider=\"libvirt\",outcome=\"deleted\"} 1",
            "deletion_latency_seconds_sum{provider=\"libvirt\"} 40.0",
            "refusals_total{reason=\"NotOurs\"} 1",
            "provider_calls_total{provider=\"libvirt\",call=\"describe\",result=\"ok\"} 1",
            "provider_call_duration_seconds_count{provider=\"libvirt\",call=\"describe\"} 1",
            "provider_calls_in_flight{provider=\"libvirt\"} 0",
            "settings_valid{} 0",
            "settings_reloads_total{result=\"accepted\"} 1",
            "settings_reloads_total{result=\"rejected\"} 1",
        ] {
            assert!(
                text.lines().any(|found| found == format!("{PREFIX}_{line}")),
                "{line} is not in:\n{text}"
            );
        }
    }

    #[test]
    fn the_descriptions_are_those_of_what_is_scraped() {
        let (registry, metrics) = metrics();
        record_everything(&metrics);
        let text = scrape(&registry);
        for Description { name, kind, labels, help } in Metrics::DESCRIPTIONS {
            // The type line of a counter has the name without its suffix.
            let base = name.strip_suffix("_total").unwrap_or(name);
            assert_eq!(base != *name, *kind == "counter", "{name}");
            assert!(text.contains(&format!("# TYPE {PREFIX}_{base} {kind}\n")), "{name} in:\n{text}");
            assert!(text.contains(&format!("# HELP {PREFIX}_{base} {help}\n")), "{name} in:\n{text}");
            assert!(labels.iter().all(|label| text.contains(&format!("{label}=\""))), "{name}");
        }
        let names: HashSet<_> = Metrics::DESCRIPTIONS.iter().map(|description| description.name).collect();
        assert_eq!(names.len(), Metrics::DESCRIPTIONS.len());
    }

    #[test]
    fn a_dropped_call_is_no_longer_in_flight_and_counts_as_abandoned() {
        let (registry, metrics) = metrics();
        let call = metrics.provider_call("libvirt", "delete");
        assert!(scrape(&registry).contains("in_flight{provider=\"libvirt\"} 1\n"));
        drop(call);
        let text = scrape(&registry);
        assert!(text.contains("in_flight{provider=\"libvirt\"} 0\n"), "{text}");
        assert!(text.contains("call=\"delete\",result=\"abandoned\"} 1\n"), "{text}");
    }

    #[test]
    fn a_throttled_cloud_shows_until_when() {
        let (_, metrics) = metrics();
        metrics.provider_throttled("libvirt", Duration::from_secs(1000));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let left = metrics.0.provider_throttled_until.with(["libvirt"]).get() - now;
        assert!((900.0..=1000.0).contains(&left), "{left}");
    }
}
