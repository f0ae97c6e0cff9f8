//! Exponential backoff with jitter, for each object separately.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use parking_lot::Mutex;

/// The first delay is at most this.
pub const BASE: Duration = Duration::from_secs(1);

/// No delay is longer than this.
pub const CAP: Duration = Duration::from_secs(300);

/// How long to wait after the `failures`th failure in a row, counted from 1.
///
/// The longest delay doubles with every failure from `base` to `cap`. `draw`, a random number from 0 to 1, chooses the delay
/// evenly between half of `base` and the longest delay ("full jitter"). So objects that failed together, as in an outage, are
/// retried at different times, and never at once.
pub fn delay(base: Duration, cap: Duration, failures: u32, draw: f64) -> Duration {
    let doublings = 2_u32.saturating_pow(failures.saturating_sub(1));
    let longest = base.saturating_mul(doublings).min(cap);
    let shortest = (base / 2).min(longest);
    (shortest + longest.saturating_sub(shortest).mul_f64(draw.clamp(0.0, 1.0))).min(longest)
}

/// Counts failures in a row for each object and says how long to leave it alone.
///
/// It remembers failing objects alone: an object is forgotten with its first success, or when it is gone and the caller
/// says [`succeeded`](Self::succeeded).
#[derive(Debug)]
pub struct Backoff<K> {
    base: Duration,
    cap: Duration,
    table: Mutex<Table<K>>,
}

#[derive(Debug)]
struct Table<K> {
    failures: HashMap<K, u32>,
    random: fastrand::Rng,
}

impl<K> Default for Backoff<K> {
    /// From [`BASE`] to [`CAP`].
    fn default() -> Self {
        Self::new(BASE, CAP)
    }
}

impl<K> Backoff<K> {
    /// Delays whose longest is `base` at first and `cap` at last.
    pub fn new(base: Duration, cap: Duration) -> Self {
        let table = Table { failures: HashMap::new(), random: fastrand::Rng::new() };
        Self { base, cap, table: Mutex::new(table) }
    }

    /// A random time of at most `longest`, to spread out what waits for the same time.
    pub fn jitter(&self, longest: Duration) -> Duration {
        longest.mul_f64(self.table.lock().random.f64())
    }
}

impl<K: Eq + Hash + Clone> Backoff<K> {
    /// Another failure: how long to wait before the next attempt.
    pub fn failed(&self, key: &K) -> Duration {
        let table = &mut *self.table.lock();
        let failures = match table.failures.get_mut(key) {
            Some(failures) => {
                *failures = failures.saturating_add(1);
                *failures
            }
            None => *table.failures.entry(key.clone()).or_insert(1),
        };
        delay(self.base, self.cap, failures, table.random.f64())
    }

    /// A success, or an object that is gone: its failures are forgotten.
    pub fn succeeded(&self, key: &K) {
        let mut table = self.table.lock();
        if table.failures.remove(key).is_some() && table.failures.is_empty() {
            // After an outage, give back the memory that thousands of failing objects took.
            table.failures = HashMap::new();
        }
    }

    /// Forgets all objects except these, which still exist.
    pub fn retain(&self, exists: impl Fn(&K) -> bool) {
        self.table.lock().failures.retain(|key, _| exists(key));
    }

    /// Failures in a row.
    pub fn failures(&self, key: &K) -> u32 {
        self.table.lock().failures.get(key).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_delay_is_never_nothing_and_never_beyond_the_cap(
            failures in any::<u32>(),
            draw in 0.0..1.0,
            base in 1_u64..u64::MAX / 4,
            cap in 1_u64..u64::MAX / 4,
        ) {
            let (base, cap) = (Duration::from_nanos(base), Duration::from_nanos(cap));
            let delay = delay(base, cap, failures, draw);
            prop_assert!(delay <= cap);
            prop_assert!(delay >= (base / 2).min(cap));
        }
    }

    #[test]
    fn the_longest_delay_doubles_up_to_the_cap() {
        let mut random = fastrand::Rng::with_seed(1);
        for (failures, longest) in [(1, 1.0), (2, 2.0), (3, 4.0), (9, 256.0), (10, 300.0), (u32::MAX, 300.0)]
        {
            let draws = (0..2000).map(|_| delay(BASE, CAP, failures, random.f64()).as_secs_f64());
            let (least, most) = draws.fold((f64::MAX, 0.0_f64), |(low, high), x| (low.min(x), high.max(x)));
            assert!(most <= longest && most > longest * 0.95, "{failures}: {most}");
            assert!(least >= 0.5 && least < 0.5 + longest * 0.05, "{failures}: {least}");
        }
    }

    #[test]
    fn a_success_starts_anew_and_objects_do_not_share_their_failures() {
        let backoff = Backoff::default();
        for _ in 0..20 {
            backoff.failed(&"a");
        }
        assert!(backoff.failed(&"b") <= BASE);
        assert_eq!((backoff.failures(&"a"), backoff.failures(&"b"), backoff.failures(&"c")), (20, 1, 0));
        backoff.retain(|key| *key == "a");
        assert_eq!((backoff.failures(&"a"), backoff.failures(&"b")), (20, 0));
        backoff.succeeded(&"a");
        assert_eq!(backoff.failures(&"a"), 0);
        assert!(backoff.failed(&"a") <= BASE);
        for key in ["a", "b", "never failed"] {
            backoff.succeeded(&key);
        }
        assert_eq!(backoff.table.lock().failures.capacity(), 0);
    }
}
