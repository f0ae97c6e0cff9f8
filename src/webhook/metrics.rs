//! What the webhook counts, beside what every program of the operator does.

use std::time::Duration;

use prometheus_client::{
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};

use super::review::Outcome;
use crate::runtime::metrics::Description;

const REVIEWS: Description = Description {
    name: "peerpod_operator_admission_reviews_total",
    kind: "counter",
    labels: &["outcome"],
    help: "Reviews that were answered: Pods that are mutated, left unchanged or refused, and what was malformed.",
};

const DURATION: Description = Description {
    name: "peerpod_operator_admission_review_duration_seconds",
    kind: "histogram",
    labels: &[],
    help: "How long it took to read and answer a review.",
};

/// Upper bounds in seconds: from a review that is there at once to one that the API server no longer waits for.
const BUCKETS: [f64; 10] = [0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.005, 0.025, 0.1, 1.0, 10.0];

/// Counts reviews. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ReviewMetrics {
    reviews: Family<[(&'static str, &'static str); 1], Counter>,
    duration: Histogram,
}

impl ReviewMetrics {
    /// Every metric, in the order in which they are scraped.
    pub const DESCRIPTIONS: [Description; 2] = [REVIEWS, DURATION];

    /// Adds the metrics to the registry, at whose root they belong.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self { reviews: Family::default(), duration: Histogram::new(BUCKETS) };
        // All show from now on, so that the first one is seen as an increase.
        for outcome in Outcome::ALL {
            drop(metrics.reviews.get_or_create(&labels(outcome)));
        }
        // The registry appends the counters' suffix and every help text's full stop itself.
        let help = |description: Description| description.help.trim_end_matches('.');
        registry.register(REVIEWS.name.trim_end_matches("_total"), help(REVIEWS), metrics.reviews.clone());
        registry.register(DURATION.name, help(DURATION), metrics.duration.clone());
        metrics
    }

    /// A review was answered after `duration`.
    pub fn answered(&self, outcome: Outcome, duration: Duration) {
        self.reviews.get_or_create(&labels(outcome)).inc();
        self.duration.observe(duration.as_secs_f64());
    }
}

fn labels(outcome: Outcome) -> [(&'static str, &'static str); 1] {
    [("outcome", outcome.as_str())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_scraped_as_it_is_described() {
        let mut registry = Registry::default();
        let metrics = ReviewMetrics::new(&mut registry);
        metrics.answered(Outcome::Mutated, Duration::from_micros(30));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "peerpod_operator_admission_reviews_total{outcome=\"mutated\"} 1",
            "peerpod_operator_admission_reviews_total{outcome=\"malformed\"} 0",
            "peerpod_operator_admission_review_duration_seconds_count 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in:\n{text}");
        }
        for Description { name, kind, help, .. } in ReviewMetrics::DESCRIPTIONS {
            let base = name.trim_end_matches("_total");
            assert!(text.contains(&format!("# TYPE {base} {kind}\n")), "{name} in:\n{text}");
            assert!(text.contains(&format!("# HELP {base} {help}\n")), "{name} in:\n{text}");
        }
    }
}
