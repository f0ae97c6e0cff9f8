//! Remembers how the operator corrected objects *(no client)*. It prevents an endless write war about an object that another program
//! keeps changing.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasher, Hash, RandomState},
    time::{Duration, Instant},
};

use operator_kit::text::listed;
use parking_lot::Mutex;

use super::conditions::{Finding, Reason};

/// How many times, at most, the operator writes the same to an object within [`WINDOW`].
const MOST: usize = 4;

/// An object that stays as written for this long is no longer contested.
const WINDOW: Duration = Duration::from_secs(60);

/// After each further write, the operator leaves an object that others keep changing alone for this long.
const PAUSE: Duration = Duration::from_secs(300);

/// Which object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// The configuration that it was created for; `None`: all of them.
    pub(super) config: Option<String>,
    pub(super) kind: String,
    pub(super) name: String,
}

/// The recent writes to each object.
#[derive(Debug, Default)]
pub(super) struct Drifts {
    hasher: RandomState,
    writes: Mutex<BTreeMap<Key, Writes>>,
    /// Objects in which the operator removed what others had set, until a status has said so.
    taken_over: Mutex<BTreeSet<Key>>,
}

/// Writes of the same content.
#[derive(Debug)]
struct Writes {
    content: u64,
    /// At most [`MOST`].
    times: Vec<Instant>,
    is_contested: bool,
    /// It differs, and the operator leaves it for now.
    is_left: bool,
    /// When the API server refused it although the operator had removed what others had set.
    took_over_in_vain: Option<Instant>,
}

impl Writes {
    fn new(content: u64) -> Self {
        Self { content, times: Vec::new(), is_contested: false, is_left: false, took_over_in_vain: None }
    }

    /// For how long it is still reported; `None`: there is nothing to report.
    fn reported_for(&self, now: Instant) -> Option<Duration> {
        let last = *self.times.last()?;
        // By then the operator writes again, if the object is still wanted and differs.
        let until = last + if self.is_left { PAUSE } else { WINDOW };
        (self.is_contested && now < until).then(|| until.saturating_duration_since(now))
    }

    fn is_old(&self, now: Instant) -> bool {
        let age = |last: &Instant| now.saturating_duration_since(*last);
        // The operator tries again after one pause, if the object is still wanted.
        let longest = if self.is_left { 2 * PAUSE } else { WINDOW };
        self.may_take_over(now) && self.times.last().is_none_or(|last| age(last) >= longest)
    }

    fn may_take_over(&self, now: Instant) -> bool {
        self.took_over_in_vain.is_none_or(|last| now.saturating_duration_since(last) >= PAUSE)
    }
}

impl Drifts {
    /// Whether this content may be written to an object that differs from it. It may not if it was written recently and another
    /// program undid it too often. New content need not wait.
    pub(super) fn admit(&self, key: &Key, content: &impl Hash, now: Instant) -> bool {
        let content = self.hasher.hash_one(content);
        let mut table = self.writes.lock();
        table.retain(|_, writes| !writes.is_old(now));
        let writes = table.entry(key.clone()).or_insert_with(|| Writes::new(content));
        if writes.content != content {
            *writes = Writes::new(content);
        }
        let age = |time: &Instant| now.saturating_duration_since(*time);
        if !writes.is_contested {
            writes.times.retain(|time| age(time) < WINDOW);
            writes.is_contested = writes.times.len() >= MOST;
        }
        writes.is_left = writes.is_contested && writes.times.last().is_some_and(|last| age(last) < PAUSE);
        if !writes.is_left {
            if writes.is_contested {
                writes.times.clear();
            }
            writes.times.push(now);
        }
        !writes.is_left
    }

    /// The admitted write failed.
    pub(super) fn not_written(&self, key: &Key) {
        if let Some(writes) = self.writes.lock().get_mut(key) {
            writes.times.pop();
        }
    }

    /// The object is as wanted.
    pub(super) fn settled(&self, key: &Key) {
        if let Some(writes) = self.writes.lock().get_mut(key) {
            writes.is_left = false;
        }
    }

    /// No object of this kind is wanted for the configuration any more.
    pub(super) fn forget(&self, config: &str, kind: &str) {
        self.writes.lock().retain(|key, _| key.kind != kind || key.config.as_deref() != Some(config));
    }

    /// The condition about objects that others keep changing, and when to reconcile again.
    pub(super) fn finding(&self, config: &str, now: Instant) -> Option<(Finding, Duration)> {
        let table = self.writes.lock();
        let of_config = table.iter().filter(|(key, _)| key.config.as_deref().is_none_or(|it| it == config));
        let (names, pauses): (Vec<_>, Vec<_>) = of_config
            .filter_map(|(key, writes)| {
                Some((format!("{} {}", key.kind, key.name), writes.reported_for(now)?))
            })
            .unzip();
        let again = pauses.into_iter().min()?;
        // The name of a part is in parentheses.
        let first = names.first()?.split(" (").next().unwrap_or_default();
        let message = format!(
            "another client keeps changing {}: the operator changed it back {MOST} times within {} s, and now tries again every \
             {} s; `kubectl get {first} --show-managed-fields --output=yaml` in the namespace of the PeerPodConfig shows its field manager",
            listed(&names),
            WINDOW.as_secs(),
            PAUSE.as_secs()
        );
        Some((Finding::new(Reason::DriftLeft, message), again))
    }

    /// Whether the operator may remove what others set in this object, for the content that was admitted last. It may not for a while
    /// after that did not help. The takeover and the return of the fields are writes that succeed, so the watch would request the next
    /// reconcile at once, without end.
    pub(super) fn may_take_over(&self, key: &Key, now: Instant) -> bool {
        self.writes.lock().get(key).is_none_or(|writes| writes.may_take_over(now))
    }

    /// The object could not be written although the operator had removed what others had set in it.
    pub(super) fn took_over_in_vain(&self, key: &Key, now: Instant) {
        if let Some(writes) = self.writes.lock().get_mut(key) {
            writes.took_over_in_vain = Some(now);
        }
    }

    /// The operator removed from this object what others had set in it.
    pub(super) fn took_over(&self, key: Key) {
        self.taken_over.lock().insert(key);
    }

    /// The condition about objects in which the operator removed what others had set. It stays until [`reported`](Self::reported).
    pub(super) fn takeover_finding(&self, config: &str) -> Option<Finding> {
        let taken_over = self.taken_over.lock();
        let of_config = taken_over.iter().filter(|key| key.config.as_deref() == Some(config));
        let names: Vec<_> = of_config.map(|key| format!("{} {}", key.kind, key.name)).collect();
        (!names.is_empty()).then(|| {
            let message = format!(
                "the API server refused {} because of fields that others had set, so the operator removed these fields; if you need \
                 them, set them in this PeerPodConfig",
                listed(&names)
            );
            Finding::new(Reason::FieldsTakenOver, message)
        })
    }

    /// A status has the condition about what the operator removed.
    pub(super) fn reported(&self, config: &str) {
        self.taken_over.lock().retain(|key| key.config.as_deref() != Some(config));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key { config: Some("config".to_owned()), kind: "Service".to_owned(), name: name.to_owned() }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn repeated_drift_is_corrected_rarely_and_reported_until_it_stops() {
        let (drifts, start) = (Drifts::default(), Instant::now());
        let (mut now, mut writes) = (start, Vec::new());
        // Another program undoes it at once, for an hour.
        while now < start + Duration::from_secs(3600) {
            if drifts.admit(&key("a"), &"content", now) {
                writes.push(now);
            }
            assert_eq!(
                drifts.finding("config", now).is_some(),
                now >= start + 4 * SECOND,
                "{:?}",
                now - start
            );
            now += SECOND;
        }
        assert_eq!(writes.len(), MOST + 11, "at once, then every five minutes");
        assert!(writes[MOST..].windows(2).all(|pair| pair[1] - pair[0] == PAUSE));
        let (finding, again) = drifts.finding("config", now).unwrap();
        assert!(finding.message.contains("Service a"), "{}", finding.message);
        assert!(again <= PAUSE && again > Duration::ZERO);
        assert!(drifts.finding("other", now).is_none());
        // The other program stops, and a reconcile finds the object as wanted.
        drifts.settled(&key("a"));
        let last = *writes.last().unwrap();
        assert!(drifts.finding("config", last + SECOND).is_some());
        assert!(drifts.finding("config", last + WINDOW).is_none());
        for _ in 0..MOST {
            assert!(drifts.admit(&key("a"), &"content", last + WINDOW), "it starts anew");
        }
    }

    #[test]
    fn drift_is_reported_until_the_next_write_is_due() {
        let (drifts, start) = (Drifts::default(), Instant::now());
        while drifts.admit(&key("a"), &"content", start) {}
        let (_, again) = drifts.finding("config", start).unwrap();
        assert_eq!(again, PAUSE);
        let now = start + again;
        assert!(drifts.finding("config", now).is_none(), "no reconcile has compared the object");
        assert!(drifts.admit(&key("a"), &"content", now), "it is still wanted");
        assert!(drifts.finding("config", now).is_some_and(|(_, again)| again > Duration::ZERO));
    }

    #[test]
    fn other_objects_new_content_failed_writes_and_rare_drift_do_not_wait() {
        let (drifts, mut now) = (Drifts::default(), Instant::now());
        while drifts.admit(&key("a"), &"content", now) {}
        assert!(drifts.admit(&key("b"), &"content", now));
        assert!(drifts.admit(&key("a"), &"another", now));
        assert!(drifts.finding("config", now).is_none(), "that is in force");
        for _ in 0..3 * MOST {
            assert!(drifts.admit(&key("c"), &"content", now));
            drifts.not_written(&key("c"));
        }
        for _ in 0..3 * MOST {
            assert!(drifts.admit(&key("d"), &"content", now));
            now += WINDOW / 3;
        }
        assert!(drifts.writes.lock().len() < 4, "what was long ago is forgotten");
    }

    #[test]
    fn a_takeover_that_did_not_help_waits_unless_the_content_is_new() {
        let (drifts, now) = (Drifts::default(), Instant::now());
        let refused = |content: &str, now: Instant| {
            assert!(drifts.admit(&key("a"), &content, now));
            let may = drifts.may_take_over(&key("a"), now);
            drifts.not_written(&key("a"));
            may
        };
        assert!(refused("content", now));
        assert!(drifts.admit(&key("a"), &"content", now));
        drifts.took_over_in_vain(&key("a"), now);
        drifts.not_written(&key("a"));
        assert!(!refused("content", now) && !refused("content", now + PAUSE / 2));
        assert!(refused("content", now + PAUSE), "what refused it may have changed");
        assert!(drifts.admit(&key("a"), &"content", now));
        drifts.took_over_in_vain(&key("a"), now);
        assert!(refused("another", now));
    }

    #[test]
    fn a_takeover_is_reported_until_a_status_contains_it() {
        let drifts = Drifts::default();
        drifts.took_over(key("a"));
        for _ in 0..2 {
            let finding = drifts.takeover_finding("config").unwrap();
            assert!(finding.message.contains("Service a"), "{}", finding.message);
        }
        drifts.reported("other");
        assert!(drifts.takeover_finding("other").is_none() && drifts.takeover_finding("config").is_some());
        drifts.reported("config");
        assert!(drifts.takeover_finding("config").is_none());
    }

    #[test]
    fn drift_of_shared_objects_is_reported_by_every_configuration() {
        let (drifts, now) = (Drifts::default(), Instant::now());
        let shared = Key { config: None, ..key("a") };
        while drifts.admit(&shared, &"content", now) {}
        assert!(drifts.finding("config", now).is_some() && drifts.finding("other", now).is_some());
    }
}
