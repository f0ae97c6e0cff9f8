//! Whether API servers already apply a policy or registration that this process wrote, by this process's own clock: an API server's
//! may be ahead of it or behind it. Pure *(no client)*.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::Resource;
use parking_lot::Mutex;

use super::{super::wanted::Found, desired::Desired, means::Means};

/// How long API servers may take to apply a new policy or registration. They read new policies every second.
pub(super) const PROPAGATION_TIME: Duration = Duration::from_secs(5);

/// When this process last wrote what API servers must learn, by configuration. `None`: before it started, or while another process
/// led.
#[derive(Debug, Default)]
pub(super) struct Propagation(Mutex<HashMap<String, Option<Instant>>>);

impl Propagation {
    /// Whether API servers may not apply the admission of this configuration yet. `wrote`: this pass wrote what they must learn.
    /// `was_in_force`: the status says that the admission is in force, so one that is new to this process is old.
    pub(super) fn is_settling(&self, config: &str, wrote: bool, was_in_force: bool, now: Instant) -> bool {
        let mut all = self.0.lock();
        let written = all.entry(config.to_owned()).or_insert((!was_in_force).then_some(now));
        if wrote {
            *written = Some(now);
        }
        written.is_some_and(|written| now.saturating_duration_since(written) < PROPAGATION_TIME)
    }

    /// The configuration is being deleted.
    pub(super) fn forget(&self, config: &str) {
        self.0.lock().remove(config);
    }

    /// Another process may have written meanwhile.
    pub(super) fn leadership_changed(&self) {
        self.0.lock().clear();
    }
}

/// Whether a pass that found this wrote what API servers must learn.
pub(super) fn wrote(desired: &Desired, found: &Found) -> bool {
    match desired.means {
        Means::None => false,
        // One that is missing because others keep removing it is not in force either.
        Means::Policy => !found.applied.is_empty() || found.objects.len() < desired.kinds.len(),
        // API servers need not learn later changes at once: old and new authorities are both valid for a while.
        Means::Webhook => {
            let registration = MutatingWebhookConfiguration::kind(&());
            found.applied.iter().any(|((kind, _), was_missing)| *was_missing && *kind == registration)
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::api::DynamicObject;

    use super::{super::means::kinds, *};

    /// Whether the admission is settling at this second after `start`.
    fn is_settling_at(propagation: &Propagation, start: Instant) -> impl Fn(u64, bool, bool) -> bool {
        move |second, wrote, was_in_force| {
            let now = start + Duration::from_secs(second);
            propagation.is_settling("config", wrote, was_in_force, now)
        }
    }

    #[test]
    fn each_write_counts_as_propagated_after_a_delay() {
        let propagation = Propagation::default();
        let is_settling = is_settling_at(&propagation, Instant::now());
        assert!(is_settling(0, true, false));
        assert!(is_settling(4, false, false));
        assert!(!is_settling(5, false, false));
        assert!(is_settling(20, true, true));
        assert!(is_settling(24, false, true));
        assert!(!is_settling(25, false, true));
    }

    #[test]
    fn admission_from_before_the_start_counts_as_propagated_if_the_status_says_so() {
        let propagation = Propagation::default();
        let is_settling = is_settling_at(&propagation, Instant::now());
        assert!(!is_settling(0, false, true));
        assert!(is_settling(1, true, true), "a change waits");
        // Another process may have led.
        propagation.leadership_changed();
        assert!(!is_settling(2, false, true));
        propagation.forget("config");
        assert!(propagation.0.lock().is_empty());
        assert!(is_settling(10, false, false), "the status does not say so");
        assert!(!is_settling(15, false, false));
    }

    /// Whether a pass wrote what API servers must learn. It found all objects of these means, except for one of the kind `missing`.
    /// `applied`: the kinds that it wrote, each with whether the object was missing.
    fn wrote_news(means: Means, missing: &str, applied: &[(&str, bool)]) -> bool {
        let key = |kind: &str| (kind.to_owned(), "name".to_owned());
        let (kinds, former) = kinds("ns", true).into_iter().partition(|kind| means.consists_of(kind));
        let desired = Desired { means, is_unsupported: false, kinds, former, younger: Vec::new() };
        let resources = desired.kinds.iter().map(|kind| &kind.resource);
        let found = resources.filter(|resource| resource.kind != missing);
        let objects = found.map(|resource| (key(&resource.kind), DynamicObject::new("name", resource)));
        let applied = applied.iter().map(|(kind, was_missing)| (key(kind), *was_missing));
        let found = Found { objects: objects.collect(), applied: applied.collect(), ..Found::default() };
        wrote(&desired, &found)
    }

    #[test]
    fn api_servers_must_learn_each_change_of_a_policy_and_of_a_registration_that_it_is_there() {
        const POLICY: &str = "MutatingAdmissionPolicy";
        const REGISTRATION: &str = "MutatingWebhookConfiguration";
        assert!(!wrote_news(Means::Policy, "", &[]));
        assert!(wrote_news(Means::Policy, "", &[(POLICY, false)]));
        assert!(wrote_news(Means::Policy, "", &[(POLICY, true)]));
        assert!(wrote_news(Means::Policy, POLICY, &[]), "others keep removing it");
        assert!(!wrote_news(Means::Webhook, "", &[(REGISTRATION, false)]), "the authorities changed");
        assert!(!wrote_news(Means::Webhook, "", &[("Deployment", true)]));
        assert!(wrote_news(Means::Webhook, "", &[("Deployment", false), (REGISTRATION, true)]));
        assert!(!wrote_news(Means::None, "", &[]));
    }
}
