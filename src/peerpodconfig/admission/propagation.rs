//! Whether API servers already apply a new or changed policy or registration, by this process's own clock: an API server's may be
//! ahead of it or behind it. Pure *(no client)*.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use kube::{ResourceExt, api::DynamicObject};

use super::super::wanted::Found;
use crate::api::v1alpha1::FIELD_MANAGER;

/// How long API servers may take to apply a new policy or registration. They read new policies every second.
pub(super) const PROPAGATION_TIME: Duration = Duration::from_secs(5);

/// The policies and registrations of all configurations, by the configuration's name.
#[derive(Debug, Default)]
pub(super) struct Propagation(Mutex<HashMap<String, ByKindAndName>>);

type ByKindAndName = HashMap<(String, String), Propagated>;

#[derive(Clone, Debug)]
struct Propagated {
    uid: Option<String>,
    /// When this operator wrote it, by the API server's clock. It serves only to detect another write.
    written: Option<Timestamp>,
    /// `None`: before this process first saw it.
    made: Option<Instant>,
    changed: Option<Instant>,
}

/// The age of the youngest policy or registration of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Age {
    /// Since its creation.
    made: Duration,
    /// Since this operator created or changed it.
    changed: Duration,
}

impl Age {
    /// Whether API servers know of it.
    pub(super) fn is_known(self) -> bool {
        self.made >= PROPAGATION_TIME
    }

    /// Whether API servers apply its present content.
    pub(super) fn is_propagated(self) -> bool {
        self.changed >= PROPAGATION_TIME
    }
}

impl Propagation {
    /// Notes those of one configuration; `None` if it has none. `was_in_force`: whether the status says that they are in force,
    /// so those that are new to this process are old. Forgets configurations that are not `there`.
    pub(super) fn observe(
        &self,
        config: &str,
        found: &Found,
        was_in_force: bool,
        there: &HashSet<String>,
        now: Instant,
    ) -> Option<Age> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = all.remove(config).unwrap_or_default();
        all.retain(|config, _| there.contains(config));
        let objects = found.objects.iter().filter(|(_, object)| object.namespace().is_none());
        let entries: ByKindAndName = objects
            .map(|(key, object)| {
                let (uid, written) = (object.uid(), written(object));
                let (made, changed) = match before.get(key) {
                    Some(known) if known.uid != uid => (Some(now), Some(now)),
                    Some(known) if known.written != written => (known.made, Some(now)),
                    Some(known) => (known.made, known.changed),
                    None if was_in_force && !found.applied.contains(key) => (None, None),
                    None => (Some(now), Some(now)),
                };
                (key.clone(), Propagated { uid, written, made, changed })
            })
            .collect();
        let since =
            |then: Option<Instant>| then.map_or(Duration::MAX, |then| now.saturating_duration_since(then));
        let made = entries.values().map(|entry| since(entry.made)).min();
        let changed = entries.values().map(|entry| since(entry.changed)).min();
        all.insert(config.to_owned(), entries);
        Some(Age { made: made?, changed: changed? })
    }
}

/// When this operator last wrote an object. Writes of others do not count.
fn written(object: &DynamicObject) -> Option<Timestamp> {
    let own = object.managed_fields().iter().filter(|it| it.manager.as_deref() == Some(FIELD_MANAGER));
    own.filter_map(|it| Some(it.time.as_ref()?.0)).max()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A policy that the operator wrote at this second of the API server's clock and another program later, and a Deployment, which
    /// does not count.
    fn found(uid: &str, written: i64) -> Found {
        let object = |metadata| serde_json::from_value(json!({ "metadata": metadata })).unwrap();
        let key = |kind: &str| (kind.to_owned(), "name".to_owned());
        let at = |second| Timestamp::from_second(second).unwrap();
        let fields = json!([
            { "manager": FIELD_MANAGER, "time": at(written) },
            { "manager": "kubectl", "time": at(Timestamp::now().as_second()) },
        ]);
        let mut found = Found::default();
        found
            .objects
            .insert(key("Deployment"), object(json!({ "namespace": "any", "uid": written.to_string() })));
        found.objects.insert(key("Policy"), object(json!({ "uid": uid, "managedFields": fields })));
        found
    }

    struct Clock(Propagation, Instant);

    impl Clock {
        fn at(&self, second: u64, found: &Found, was_in_force: bool) -> Age {
            let now = self.1 + Duration::from_secs(second);
            self.0.observe("config", found, was_in_force, &HashSet::new(), now).unwrap()
        }
    }

    fn clock() -> Clock {
        Clock(Propagation::default(), Instant::now())
    }

    #[test]
    fn a_write_counts_as_propagated_after_a_delay_by_the_local_clock() {
        for offset in [0, 1_000_000_000, 4_000_000_000] {
            let clock = clock();
            assert!(!clock.at(0, &found("a", offset), false).is_propagated());
            assert!(!clock.at(4, &found("a", offset), false).is_propagated());
            assert!(clock.at(5, &found("a", offset), false).is_propagated());
            let changed = clock.at(20, &found("a", offset + 20), true);
            assert!(changed.is_known() && !changed.is_propagated());
            assert!(clock.at(25, &found("a", offset + 20), true).is_propagated());
            let another = clock.at(30, &found("b", offset + 20), true);
            assert!(!another.is_known() && !another.is_propagated());
        }
    }

    #[test]
    fn admission_from_before_the_start_counts_as_propagated_and_changes_wait() {
        let was_in_force = clock().at(0, &found("a", 0), true);
        assert!(was_in_force.is_known() && was_in_force.is_propagated());
        let mut changed_back = found("a", 0);
        changed_back.applied.extend(changed_back.objects.keys().cloned().collect::<Vec<_>>());
        assert!(!clock().at(0, &changed_back, true).is_propagated());
        let clock = clock();
        assert!(!clock.at(0, &found("a", 0), false).is_known());
        assert!(clock.at(5, &found("a", 0), false).is_known());
    }

    #[test]
    fn removed_configurations_and_objects_are_forgotten() {
        let Clock(propagation, now) = clock();
        let observe = |config, found: &Found, there: &str| {
            propagation.observe(config, found, false, &HashSet::from([there.to_owned()]), now)
        };
        observe("config", &found("a", 0), "config").unwrap();
        observe("other", &found("b", 0), "config").unwrap();
        assert_eq!(propagation.0.lock().unwrap().len(), 2);
        assert_eq!(observe("other", &Found::default(), "other"), None);
        let left = propagation.0.lock().unwrap();
        assert!(left.len() == 1 && left["other"].is_empty(), "{left:?}");
    }
}
