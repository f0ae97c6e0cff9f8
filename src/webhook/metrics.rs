//! The webhook's own metrics, beside those of every program of the operator.

use std::{sync::Arc, time::Duration};

use operator_kit::{
    families,
    metrics::{Counter, Description, Histogram, Moment, Registry},
};

use super::{certificates::Term, review::Outcome};

families! {
    /// What is counted of reviews.
    struct ReviewFamilies: "peerpod_operator_";

    /// Answered reviews, by outcome: the Pod was mutated, left unchanged or refused, or the review was malformed, or unread because
    /// it took too long to arrive or to find memory.
    reviews: Counter = "admission_reviews_total" ["outcome"],
}

/// The histogram of a family has other buckets.
const DURATION: Description = Description {
    name: "peerpod_operator_admission_review_duration_seconds",
    kind: "histogram",
    labels: &[],
    help: "Time to read and answer a review.",
};

families! {
    /// The moments of the served certificate.
    struct CertificateFamilies: "peerpod_operator_";

    /// When the webhook's certificate expires, in seconds since 1970. Absent while there is none.
    expiry: Moment = "webhook_certificate_expiry_timestamp_seconds" [],
    /// When the webhook's certificate becomes overdue for replacement, in seconds since 1970: for the last quarter of its life, at
    /// most 30 days.
    overdue: Moment = "webhook_certificate_overdue_timestamp_seconds" [],
}

/// Every metric, in the order in which they are scraped.
pub const DESCRIPTIONS: [Description; 4] = {
    let ([reviews], [expiry, overdue]) = (ReviewFamilies::DESCRIPTIONS, CertificateFamilies::DESCRIPTIONS)
    else {
        panic!("a metric is missing here")
    };
    [*reviews, DURATION, *expiry, *overdue]
};

/// Upper bounds in seconds: from a review whose body is there at once to one that the API server no longer waits for.
const BUCKETS: [f64; 10] = [0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.005, 0.025, 0.1, 1.0, 10.0];

/// Counts reviews. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ReviewMetrics {
    /// By outcome, in the order of [`Outcome::ALL`]. A family would look up the labels of each review under a lock.
    reviews: [Counter; Outcome::ALL.len()],
    duration: Histogram,
}

impl ReviewMetrics {
    /// Adds the metrics to the registry, at whose root they belong.
    pub fn new(registry: &mut Registry) -> Self {
        let families = ReviewFamilies::register(registry);
        let duration = Histogram::new(BUCKETS);
        DURATION.register(registry, duration.clone());
        // All series exist from now on, so that the first count shows as an increase.
        Self { reviews: Outcome::ALL.map(|outcome| families.reviews.with([outcome.as_str()])), duration }
    }

    /// A review was answered after `duration`.
    pub fn answered(&self, outcome: Outcome, duration: Duration) {
        self.reviews[outcome as usize].inc();
        self.duration.observe(duration.as_secs_f64());
    }
}

/// Metrics about the served certificate. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CertificateMetrics(Arc<CertificateFamilies>);

impl CertificateMetrics {
    /// Adds the metrics to the registry, at whose root they belong.
    pub fn new(registry: &mut Registry) -> Self {
        Self(Arc::new(CertificateFamilies::register(registry)))
    }

    /// Sets the term of the served certificate, if it is known.
    pub fn shown(&self, term: Option<Term>) {
        let CertificateFamilies { expiry, overdue } = &*self.0;
        for (family, moment) in
            [(expiry, term.map(|term| term.expires)), (overdue, term.map(|term| term.overdue))]
        {
            match moment {
                Some(moment) => {
                    family.with([]).set(moment.as_duration().as_secs_f64());
                }
                None => family.remove([]),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn counted_values_are_scraped_with_the_described_type_and_help() {
        let mut registry = Registry::default();
        let metrics = ReviewMetrics::new(&mut registry);
        metrics.answered(Outcome::Mutated, Duration::from_micros(30));
        let certificate = CertificateMetrics::new(&mut registry);
        let scrape = |registry| {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
            text
        };
        let second = |second| Timestamp::from_second(second).unwrap();
        certificate.shown(Some(Term { overdue: second(7), expires: second(8) }));
        let text = scrape(&registry);
        for line in [
            "peerpod_operator_webhook_certificate_overdue_timestamp_seconds{} 7.0",
            "peerpod_operator_webhook_certificate_expiry_timestamp_seconds{} 8.0",
            "peerpod_operator_admission_reviews_total{outcome=\"mutated\"} 1",
            "peerpod_operator_admission_reviews_total{outcome=\"malformed\"} 0",
            "peerpod_operator_admission_review_duration_seconds_count 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in:\n{text}");
        }
        for Description { name, kind, help, .. } in DESCRIPTIONS {
            let base = name.trim_end_matches("_total");
            assert!(text.contains(&format!("# TYPE {base} {kind}\n")), "{name} in:\n{text}");
            assert!(text.contains(&format!("# HELP {base} {help}\n")), "{name} in:\n{text}");
        }
        certificate.shown(None);
        let text = scrape(&registry);
        assert!(!text.lines().any(|line| line.starts_with(DESCRIPTIONS[2].name)), "there is none:\n{text}");
    }
}
