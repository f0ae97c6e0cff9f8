//! Which VMs were seen in one place, of which the cloud accepted the deletion, and which were missing there *(no client)*.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasher, Hash, RandomState},
    mem,
    time::Duration,
};

use jiff::Timestamp;
use operator_kit::Message;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Claim, Error, ErrorClass, InstanceId};

/// The most VMs that are remembered of each kind. Of those that were seen or accepted, the oldest are forgotten then. Of the missing ones,
/// any one is: if it were the oldest, a larger crowd that asks in turn would never be asked for twice, and if it were the newest, someone
/// who invents VMs could keep the room for good.
const MOST: usize = 10_000;

/// A VM that was deleted within this time after its record is young.
const YOUNG: Duration = Duration::from_secs(120);

/// A further answer that a young VM does not exist counts only this long after the first one.
const RECHECK_AFTER: Duration = Duration::from_secs(10);

/// What was seen and missed in one place.
#[derive(Default)]
pub(super) struct Sightings(Mutex<Memory>);

#[derive(Default)]
struct Memory {
    /// The hashes of VMs that were seen here, so that they are in no other place, each as one PeerPod claims it: some clouds give an
    /// identifier to another VM later. A claim may contain long texts, which a hash does not keep.
    seen: Recent<u64>,
    hasher: RandomState,
    /// The cloud accepted the deletion of these. They are expected to be absent soon.
    leaving: Recent<InstanceId>,
    /// The hashes of VMs that do not exist, as the cloud says.
    missing: Missing,
    /// The hashes of those whose absence counts, so that nobody needs to ask again.
    settled: Recent<u64>,
}

/// The last of many, in two generations: at least half of [`MOST`]. A VM that was seen, and that the operator deletes, must not be
/// forgotten before it is absent, whatever else is seen meanwhile.
struct Recent<T> {
    younger: HashSet<T>,
    older: HashSet<T>,
}

/// VMs that the cloud denies, and since when.
#[derive(Default)]
struct Missing {
    /// Each with its place in `all`.
    since: HashMap<u64, (Instant, usize)>,
    all: Vec<u64>,
}

impl Sightings {
    /// The VM is there.
    pub(super) fn seen(&self, id: &InstanceId, claim: &Claim) {
        let mut memory = self.0.lock();
        let vm = memory.hasher.hash_one(id);
        memory.missing.remove(vm);
        memory.settled.remove(&vm);
        let sighting = memory.sighting(id, claim);
        memory.seen.insert(sighting);
    }

    /// The cloud accepted the deletion of the VM.
    pub(super) fn leaves(&self, id: &InstanceId) {
        self.0.lock().leaving.insert(id.clone());
    }

    /// Whether the VM was there.
    pub(super) fn has(&self, id: &InstanceId, claim: &Claim) -> bool {
        let memory = self.0.lock();
        memory.seen.contains(&memory.sighting(id, claim))
    }

    /// Notes that a cloud which settles late denies the VM, or shows only its remains. Fails with [`ErrorClass::Unsettled`] while the
    /// reason may only be that the VM is young: until a question gets such an answer that was `asked` [`RECHECK_AFTER`] after the first
    /// such answer. An earlier sight of the VM does not help: not all of the cloud may know the VM yet.
    pub(super) fn ensure_settled(&self, id: &InstanceId, claim: &Claim, asked: Instant) -> Result<(), Error> {
        let until = claim.deleted.unwrap_or_else(Timestamp::now);
        let is_old =
            Duration::try_from(until.duration_since(claim.recorded)).is_ok_and(|lived| lived >= YOUNG);
        let mut memory = self.0.lock();
        let (vm, now) = (memory.hasher.hash_one(id), Instant::now());
        if is_old || memory.leaving.contains(id) || memory.settled.contains(&vm) {
            memory.missing.remove(vm);
            return Ok(());
        }
        let since = memory.missing.since(vm, now);
        if asked.saturating_duration_since(since) >= RECHECK_AFTER {
            memory.missing.remove(vm);
            memory.settled.insert(vm);
            return Ok(());
        }
        let check_again_after = RECHECK_AFTER.saturating_sub(now.saturating_duration_since(since));
        let message =
            "the cloud does not show the VM, which may be too young to be shown; the operator asks again";
        Err(Error::new(ErrorClass::Unsettled { check_again_after }, Message::public(message)))
    }
}

impl Memory {
    fn sighting(&self, id: &InstanceId, claim: &Claim) -> u64 {
        self.hasher.hash_one((id, &claim.pod, claim.created))
    }
}

impl Missing {
    /// Since when this VM is missing: `now`, if it was not. If there is no room, another one is forgotten.
    fn since(&mut self, vm: u64, now: Instant) -> Instant {
        if let Some((since, _)) = self.since.get(&vm) {
            return *since;
        }
        if self.all.len() >= MOST {
            self.remove(self.all[fastrand::usize(..self.all.len())]);
        }
        self.since.insert(vm, (now, self.all.len()));
        self.all.push(vm);
        now
    }

    fn remove(&mut self, vm: u64) {
        let Some((_, place)) = self.since.remove(&vm) else { return };
        self.all.swap_remove(place);
        if let Some(moved) = self.all.get(place).and_then(|moved| self.since.get_mut(moved)) {
            moved.1 = place;
        }
    }
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self { younger: HashSet::new(), older: HashSet::new() }
    }
}

impl<T: Eq + Hash> Recent<T> {
    fn insert(&mut self, one: T) {
        self.younger.insert(one);
        if self.younger.len() >= MOST / 2 {
            self.older = mem::take(&mut self.younger);
        }
    }

    fn remove(&mut self, one: &T) {
        self.younger.remove(one);
        self.older.remove(one);
    }

    fn contains(&self, one: &T) -> bool {
        self.younger.contains(one) || self.older.contains(one)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn claim(recorded: i64, deleted: i64) -> Claim {
        let at = |second| Timestamp::from_second(1_790_000_000 + second).unwrap();
        Claim {
            pod: None,
            recorded: at(recorded),
            created: at(recorded),
            deleted: Some(at(deleted)),
            contested: false,
        }
    }

    impl<T> Recent<T> {
        fn len(&self) -> usize {
            self.younger.len() + self.older.len()
        }
    }

    fn id(number: usize) -> InstanceId {
        InstanceId::scoped("", &format!("i-{number}"))
    }

    #[tokio::test(start_paused = true)]
    async fn the_second_answer_counts_after_ten_seconds() {
        let (sightings, young, early) = (Sightings::default(), claim(0, 5), Instant::now());
        let missed = |asked| {
            let answer = sightings.ensure_settled(&id(1), &young, asked);
            answer.map_err(|error| match error.class {
                ErrorClass::Unsettled { check_again_after } => check_again_after.as_secs(),
                class => panic!("{class:?}"),
            })
        };
        let missed_after = async |seconds| {
            advance(Duration::from_secs(seconds)).await;
            missed(Instant::now())
        };
        assert_eq!(missed_after(0).await, Err(10));
        assert_eq!(missed_after(4).await, Err(6));
        assert_eq!(missed_after(5).await, Err(1));
        advance(Duration::from_secs(1)).await;
        assert_eq!(missed(early), Err(0), "that was asked together with the first one, and answered late");
        assert_eq!(missed_after(0).await, Ok(()));
        assert_eq!(missed(early), Ok(()), "its absence is known");
        sightings.seen(&id(1), &young);
        assert_eq!(missed_after(20).await, Err(10), "it was there in between");
        sightings.leaves(&id(1));
        assert_eq!(missed_after(1).await, Ok(()), "the cloud accepted its deletion");
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_sight_between_two_answers_both_count_anew() {
        let (sightings, young) = (Sightings::default(), claim(0, 5));
        let missed = || sightings.ensure_settled(&id(1), &young, Instant::now());
        assert!(missed().is_err());
        advance(Duration::from_secs(5)).await;
        sightings.seen(&id(1), &young);
        advance(Duration::from_secs(15)).await;
        assert!(missed().is_err(), "the first answer was wrong");
        advance(Duration::from_secs(10)).await;
        assert!(missed().is_ok());
    }

    #[test]
    fn the_age_of_an_undeleted_vm_is_the_age_of_its_record() {
        let sightings = Sightings::default();
        let since = |seconds| {
            let recorded = Timestamp::now() - jiff::SignedDuration::from_secs(seconds);
            sightings.ensure_settled(&id(1), &Claim { recorded, ..Claim::default() }, Instant::now())
        };
        assert!(since(5).is_err() && since(119).is_err() && since(121).is_ok());
    }

    #[test]
    fn a_clock_that_is_ahead_makes_no_vm_old() {
        let sightings = Sightings::default();
        assert!(sightings.ensure_settled(&id(1), &claim(500, 5), Instant::now()).is_err());
        assert!(sightings.ensure_settled(&id(2), &claim(0, 119), Instant::now()).is_err());
        assert!(sightings.ensure_settled(&id(3), &claim(0, 120), Instant::now()).is_ok());
    }

    #[test]
    fn a_vm_that_was_seen_is_not_the_next_one_of_its_identifier() {
        let (sightings, first) = (Sightings::default(), claim(0, 5));
        sightings.seen(&id(1), &first);
        assert!(sightings.has(&id(1), &Claim { deleted: None, ..first.clone() }));
        assert!(!sightings.has(&id(1), &claim(1, 5)), "a PeerPod that was made later");
        assert!(!sightings.has(&id(1), &Claim { pod: Some("web".to_owned()), ..first }), "another Pod");
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_that_is_larger_than_the_memory_settles() {
        let (sightings, young) = (Sightings::default(), claim(0, 5));
        let mut crowd: Vec<_> = (0..=2 * MOST).map(id).collect();
        for round in 0.. {
            // Each is asked for in turn, as the operator does.
            crowd.retain(|id| sightings.ensure_settled(id, &young, Instant::now()).is_err());
            advance(RECHECK_AFTER).await;
            if crowd.is_empty() {
                break;
            }
            assert!(round < 20, "{} are left", crowd.len());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn invented_vms_keep_few_others_from_settling() {
        let (sightings, young) = (Sightings::default(), claim(0, 5));
        let settles = |number| sightings.ensure_settled(&id(number), &young, Instant::now()).is_ok();
        assert!((0..2 * MOST).all(|number| !settles(number)));
        let others = 2 * MOST..2 * MOST + 100;
        assert!(others.clone().all(|number| !settles(number)));
        // Twenty questions a second about further ones.
        assert!((3 * MOST..3 * MOST + 200).all(|number| !settles(number)));
        advance(RECHECK_AFTER).await;
        let settled = others.filter(|number| settles(*number)).count();
        assert!(settled >= 85, "{settled} of 100");
    }

    #[test]
    fn the_memory_is_bounded() {
        let sightings = Sightings::default();
        for number in 0..=MOST {
            sightings.seen(&id(number), &claim(0, 1));
            sightings.leaves(&id(number + 1_000_000));
            assert!(sightings.ensure_settled(&id(number), &claim(0, 1), Instant::now()).is_err());
        }
        let memory = sightings.0.lock();
        assert!(memory.seen.len() <= MOST && memory.leaving.len() <= MOST);
        assert_eq!((memory.missing.all.len(), memory.missing.since.len()), (MOST, MOST));
    }

    #[test]
    fn a_vm_that_was_seen_is_remembered_while_many_others_are_seen() {
        let (sightings, young) = (Sightings::default(), claim(0, 1));
        for number in 0..3 * MOST {
            sightings.seen(&id(number), &young);
            assert!(sightings.has(&id(number.saturating_sub(MOST / 2 - 1)), &young), "{number}");
        }
    }
}
