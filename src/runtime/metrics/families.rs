//! The table of the families, and what they are made of.

use std::array;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::{Metric, Registry};

use super::{Description, Metrics};

/// Upper bounds of the histograms' buckets in seconds: from an answer out of a cache to a VM that takes an hour.
const BUCKETS: [f64; 17] =
    [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0];

/// A moment in seconds since 1970.
pub(super) type Moment = Gauge<f64, AtomicU64>;

/// Whether a moment is still ahead, told at each scrape: 1 or 0.
#[derive(Debug, Default)]
pub(super) struct Ahead(pub(super) Moment);

/// Declares the families. A field's comment is the metric's help text.
macro_rules! families {
    ($(
        $(#[doc = $help:literal])+
        $field:ident: $kind:ty = $name:literal [$($label:literal),*],
    )+) => {
        #[derive(Debug)]
        pub(super) struct Families {
            $($(#[doc = $help])+ pub(super) $field: Labelled<{ labels![$($label)*] }, $kind>,)+
        }

        impl Families {
            pub(super) fn register(registry: &mut Registry) -> Self {
                Self {$($field: Labelled::register(registry, full!($name), concat!($($help),+), [$($label),*]),)+}
            }
        }

        impl Metrics {
            /// The version that runs, as `build_info`.
            pub const BUILD: Description = Description {
                name: full!("build_info"),
                kind: "info",
                labels: &["version"],
                help: "The version of this program.",
            };

            /// Every other metric, in the order in which they are scraped.
            pub const DESCRIPTIONS: &'static [Description] = &[$(Description {
                name: full!($name),
                kind: <$kind as Kind>::NAME,
                labels: &[$($label),*],
                help: concat!($($help),+).trim_ascii(),
            }),+];
        }
    };
}

/// Every metric's name starts like this.
macro_rules! full {
    ($name:literal) => {
        concat!("peerpod_operator_", $name)
    };
}

macro_rules! labels {
    ($($label:literal)*) => { <[&str]>::len(&[$($label),*]) };
}

families! {
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
    /// PeerPods with a condition that is True, by its reason.
    peerpods_held: Gauge = "peerpods_held" ["reason"],
    /// PeerPods that are being deleted and still have the finalizer.
    pending_deletions: Gauge = "pending_deletions" ["provider"],
    /// When the oldest pending deletion was requested, in seconds since 1970. PeerPods that wait for their Pods do not
    /// count. Absent if no deletion is pending.
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
    /// Calls to a cloud that wait for a free place.
    provider_calls_queued: Gauge = "provider_calls_queued" ["provider"],
    /// Calls in progress that were not answered for 1 s, and so may free their place for others.
    provider_calls_stalled: Gauge = "provider_calls_stalled" ["provider"],
    /// Whether the operator makes no calls to a cloud now because the cloud asked for fewer: 1 or 0.
    provider_throttled: Ahead = "provider_throttled" ["provider"],
    /// Until when a cloud asked for no calls, in seconds since 1970. 0 if it never asked.
    provider_throttled_until: Moment = "provider_throttled_until_timestamp_seconds" ["provider"],
    /// Whether deletions use the mounted settings: 1, or 0 while deletions wait or use the last good settings. Absent if
    /// this process deletes nothing: with the settings of an unsupported provider, or without the controller peerpod.
    settings_valid: Gauge = "settings_valid" [],
    /// Changes of the mounted settings, accepted or rejected.
    settings_reloads: Counter = "settings_reloads_total" ["result"],
}

/// A family whose labels' names are fixed.
#[derive(Debug)]
pub(super) struct Labelled<const N: usize, M> {
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
    pub(super) fn with(&self, values: [&'static str; N]) -> impl Deref<Target = M> {
        self.family.get_or_create(&self.label_set(values))
    }

    /// No longer shows the metric with these labels.
    pub(super) fn remove(&self, values: [&'static str; N]) {
        self.family.remove(&self.label_set(values));
    }

    fn label_set(&self, values: [&'static str; N]) -> [(&'static str, &'static str); N] {
        array::from_fn(|index| (self.labels[index], values[index]))
    }
}

/// What the families are made of.
pub(super) trait Kind: Metric + TypedMetric {
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

impl Kind for Ahead {
    const NAME: &'static str = "gauge";

    fn new() -> Self {
        Self::default()
    }
}

impl TypedMetric for Ahead {
    const TYPE: MetricType = MetricType::Gauge;
}

impl EncodeMetric for Ahead {
    fn encode(&self, mut encoder: MetricEncoder) -> fmt::Result {
        encoder.encode_gauge(&i64::from(self.0.get() > seconds_since_1970()))
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

impl Kind for Histogram {
    const NAME: &'static str = "histogram";

    fn new() -> Self {
        Self::new(BUCKETS)
    }
}

/// The time now. A clock before 1970 shows as that year's beginning.
pub(super) fn seconds_since_1970() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
