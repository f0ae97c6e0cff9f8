//! The parts of an operator's metrics: families whose labels have fixed names, declared in one table by [`families!`].
//!
//! Every label's value comes from a fixed set (`&'static str`), so that no object in the cluster can make the series grow.
//! Recording takes a lock for reading, and allocates only when a value is seen for the first time.
//!
//! ```
//! use operator_kit::metrics::{Counter, Gauge, Histogram};
//!
//! operator_kit::families! {
//!     /// The metrics of this operator.
//!     pub struct Families: "my_operator_";
//!
//!     /// Whether this process leads: 1 or 0.
//!     leader: Gauge = "leader" [],
//!     /// Reconciles, by their result.
//!     reconciles: Counter = "reconciles_total" ["result"],
//!     /// How long a reconcile took.
//!     duration: Histogram = "reconcile_duration_seconds" [],
//! }
//!
//! let mut registry = prometheus_client::registry::Registry::default();
//! let families = Families::register(&mut registry);
//! families.reconciles.with(["ok"]).inc();
//! assert_eq!(Families::DESCRIPTIONS[1].name, "my_operator_reconciles_total");
//! ```

use std::{
    array, fmt,
    sync::atomic::AtomicU64,
    time::{SystemTime, UNIX_EPOCH},
};

use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder},
    metrics::{MetricType, TypedMetric, family::Family},
    registry::Metric,
};
pub use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

#[doc(inline)]
pub use crate::families;

/// Upper bounds of the histograms' buckets in seconds: from an answer out of a cache to an hour.
const BUCKETS: [f64; 17] =
    [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0];

/// A metric, as documents print it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// The name as it is scraped. A histogram's is that of its `_bucket`, `_sum` and `_count`.
    pub name: &'static str,
    /// `counter`, `gauge`, `histogram` or `info`.
    pub kind: &'static str,
    /// The labels' names.
    pub labels: &'static [&'static str],
    /// What it counts or measures.
    pub help: &'static str,
}

impl Description {
    /// Adds the metric of this description to a registry, at whose root it belongs: its name is whole.
    pub fn register(&self, registry: &mut Registry, metric: impl Metric) {
        // The registry appends the suffixes of counters and infos, and every help text's full stop, itself.
        let suffix = match self.kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        let name = self.name.strip_suffix(suffix).unwrap_or(self.name);
        registry.register(name, self.help.trim_end_matches('.'), metric);
    }
}

/// A moment in seconds since 1970.
pub type Moment = Gauge<f64, AtomicU64>;

/// Whether a moment is still ahead, computed at each scrape: 1 or 0.
#[derive(Clone, Debug, Default)]
pub struct Ahead(Moment);

impl Ahead {
    /// Sets the moment, in seconds since 1970.
    pub fn set(&self, until: f64) {
        self.0.set(until);
    }
}

/// Declares the families of an operator as one struct, with a function `register` and a constant `DESCRIPTIONS`. The text
/// after the struct's name begins every metric's name. A field's comment is the metric's help text. See
/// [the module](mod@crate::metrics) for an example.
#[macro_export]
macro_rules! families {
    (
        $(#[$about:meta])*
        $visibility:vis struct $families:ident: $prefix:literal;
        $(
            $(#[doc = $help:literal])+
            $field:ident: $kind:ty = $name:literal [$($label:literal),*],
        )+
    ) => {
        $(#[$about])*
        #[derive(Debug)]
        $visibility struct $families {
            $(
                $(#[doc = $help])+
                $visibility $field: $crate::metrics::Labelled<{ <[&str]>::len(&[$($label),*]) }, $kind>,
            )+
        }

        impl $families {
            /// Every metric, in the order in which they are scraped.
            pub const DESCRIPTIONS: &'static [$crate::metrics::Description] = &[$(
                $crate::families!(@description $prefix $name, $kind, [$($label),*], $($help),+),
            )+];

            /// Adds all of them to a registry, at whose root they belong: their names are whole.
            pub fn register(registry: &mut $crate::metrics::Registry) -> Self {
                Self {$(
                    $field: $crate::metrics::Labelled::register(
                        registry,
                        &$crate::families!(@description $prefix $name, $kind, [$($label),*], $($help),+),
                        [$($label),*],
                    ),
                )+}
            }
        }
    };
    (@description $prefix:literal $name:literal, $kind:ty, [$($label:literal),*], $($help:literal),+) => {
        $crate::metrics::Description {
            name: concat!($prefix, $name),
            kind: <$kind as $crate::metrics::FamilyMetric>::KIND,
            labels: &[$($label),*],
            help: concat!($($help),+).trim_ascii(),
        }
    };
}

/// A family whose labels' names are fixed.
#[derive(Debug)]
pub struct Labelled<const N: usize, M> {
    labels: [&'static str; N],
    family: Family<[(&'static str, &'static str); N], M>,
}

impl<const N: usize, M: FamilyMetric> Labelled<N, M> {
    /// A family in this registry.
    pub fn register(registry: &mut Registry, description: &Description, labels: [&'static str; N]) -> Self {
        let family = Family::new_with_constructor(M::create as fn() -> M);
        description.register(registry, family.clone());
        Self { labels, family }
    }

    /// The metric with these labels. The first use creates it.
    ///
    /// It is a handle without a lock: a caller that held the family's lock would wait for itself when it asks for another metric.
    pub fn with(&self, values: [&'static str; N]) -> M {
        self.family.get_or_create_owned(&self.label_set(values))
    }

    /// No longer shows the metric with these labels.
    pub fn remove(&self, values: [&'static str; N]) {
        self.family.remove(&self.label_set(values));
    }

    fn label_set(&self, values: [&'static str; N]) -> [(&'static str, &'static str); N] {
        array::from_fn(|index| (self.labels[index], values[index]))
    }
}

/// A metric that families can be made of. Its clones are handles of one metric.
pub trait FamilyMetric: Metric + TypedMetric + Clone {
    /// The kind in its [`Description`].
    const KIND: &'static str;

    /// One that has recorded nothing.
    fn create() -> Self;
}

impl FamilyMetric for Counter {
    const KIND: &'static str = "counter";

    fn create() -> Self {
        Self::default()
    }
}

impl FamilyMetric for Gauge {
    const KIND: &'static str = "gauge";

    fn create() -> Self {
        Self::default()
    }
}

impl FamilyMetric for Moment {
    const KIND: &'static str = "gauge";

    fn create() -> Self {
        Self::default()
    }
}

impl FamilyMetric for Ahead {
    const KIND: &'static str = "gauge";

    fn create() -> Self {
        Self::default()
    }
}

impl FamilyMetric for Histogram {
    const KIND: &'static str = "histogram";

    fn create() -> Self {
        Self::new(BUCKETS)
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

/// One that a gauge counts until this is dropped.
#[must_use = "it is counted until this is dropped"]
#[derive(Debug)]
pub struct Counted(Gauge);

impl Counted {
    /// Counts one more from now on.
    pub fn up(gauge: Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// The time now. A clock before 1970 counts as the beginning of 1970.
pub fn seconds_since_1970() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    families! {
        /// Of the tests.
        struct Families: "kit_";

        /// Widgets that were made,
        /// by factory.
        made: Counter = "widgets_made_total" ["factory"],
        /// Widgets in work.
        in_work: Gauge = "widgets_in_work" [],
        /// How long a widget takes.
        duration: Histogram = "widget_seconds" ["factory"],
        /// When the last one was made.
        last: Moment = "last_widget_timestamp_seconds" [],
        /// Whether the factory rests.
        rests: Ahead = "factory_rests" [],
    }

    fn scrape(registry: &Registry) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
        text
    }

    #[test]
    fn recorded_values_are_scraped_with_the_described_type_and_help() {
        let mut registry = Registry::default();
        let families = Families::register(&mut registry);
        families.made.with(["north"]).inc();
        families.duration.with(["north"]).observe(0.5);
        families.last.with([]).set(7.0);
        families.rests.with([]).set(seconds_since_1970() + 1000.0);
        let work = Counted::up(families.in_work.with([]));
        let text = scrape(&registry);
        for line in [
            "kit_widgets_made_total{factory=\"north\"} 1",
            "kit_widgets_in_work{} 1",
            "kit_widget_seconds_count{factory=\"north\"} 1",
            "kit_last_widget_timestamp_seconds{} 7.0",
            "kit_factory_rests{} 1",
            "# HELP kit_widgets_made Widgets that were made, by factory.",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in:\n{text}");
        }
        for Description { name, kind, help, .. } in Families::DESCRIPTIONS {
            let base = name.trim_end_matches("_total");
            assert!(text.contains(&format!("# TYPE {base} {kind}\n")), "{name} in:\n{text}");
            assert!(text.contains(&format!("# HELP {base} {help}\n")), "{name} in:\n{text}");
        }
        drop(work);
        families.rests.with([]).set(seconds_since_1970() - 1.0);
        families.last.remove([]);
        let text = scrape(&registry);
        assert!(
            text.contains("kit_widgets_in_work{} 0\n") && text.contains("kit_factory_rests{} 0\n"),
            "{text}"
        );
        assert!(!text.contains("kit_last_widget_timestamp_seconds{"), "{text}");
    }

    #[test]
    fn two_metrics_of_a_family_are_held_at_once() {
        let families = Families::register(&mut Registry::default());
        let (north, south) = (families.made.with(["north"]), families.made.with(["south"]));
        north.inc();
        south.inc();
        assert_eq!((families.made.with(["north"]).get(), south.get()), (1, 1));
    }
}
