//! Rules one by one, then candidates against each other in a hostile world: each has a clock of its own that runs fast or slow;
//! writes and sightings come late, out of order or never; processes stand still, crash and resign.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn held_by(holder: &str, renewed: i64) -> Record {
    let time = Some(Timestamp::from_second(renewed).unwrap());
    Record { holder: holder.into(), duration: Some(DURATION), acquired: time, renewed: time, transitions: 3 }
}

fn wall() -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap()
}

fn candidate() -> (Candidate, Instant) {
    (Candidate::new("me".into()), Instant::now())
}

#[test]
fn nothing_is_written_before_the_lease_was_seen() {
    let (candidate, now) = candidate();
    assert!(matches!(candidate.decide(now), Step::Wait(_)));
}

#[test]
fn a_lease_that_is_missing_free_or_its_own_is_taken_at_once() {
    for record in [None, Some(Record::default()), Some(held_by("", 0)), Some(held_by("me", 0))] {
        let (mut candidate, now) = candidate();
        candidate.observe(now, record);
        assert_eq!(candidate.decide(now), Step::Write);
    }
}

#[test]
fn a_lease_unchanged_for_its_duration_by_the_local_clock_is_taken() {
    let (mut candidate, start) = candidate();
    // Renewed long ago or in future: wall clocks mean nothing.
    candidate.observe(start, Some(held_by("other", 0)));
    assert_eq!(candidate.decide(start), Step::Wait(start + DURATION));
    candidate.observe(start + 14 * SECOND, Some(held_by("other", i64::from(u32::MAX))));
    candidate.observe(start + 20 * SECOND, Some(held_by("other", i64::from(u32::MAX))));
    assert_eq!(candidate.decide(start + 20 * SECOND), Step::Wait(start + 29 * SECOND));
    assert_eq!(candidate.decide(start + 29 * SECOND), Step::Write);
    // Its holder may act for its own duration, whatever a user has written.
    for (recorded, waits) in [(60 * SECOND, 60 * SECOND), (SECOND, DURATION)] {
        let other = Record { duration: Some(recorded), ..held_by("other", 1) };
        candidate.observe(start, Some(other));
        assert_eq!(candidate.decide(start), Step::Wait(start + waits));
    }
}

#[test]
fn a_lease_that_was_removed_still_belongs_to_its_holder_for_a_while() {
    let (mut candidate, start) = candidate();
    candidate.observe(start, Some(held_by("other", 0)));
    candidate.observe(start + SECOND, None);
    assert_eq!(candidate.decide(start + SECOND), Step::Wait(start + DURATION));
    // Another program creates it again.
    candidate.observe(start + SECOND, Some(Record::default()));
    assert_eq!(candidate.decide(start + SECOND), Step::Wait(start + DURATION));
    assert_eq!(candidate.decide(start + DURATION), Step::Write);
}

#[test]
fn a_holder_keeps_a_lease_that_another_program_created_again() {
    let (mut candidate, start) = candidate();
    candidate.observe(start, Some(Record::default()));
    assert_eq!(candidate.decide(start), Step::Write, "nobody has had it");
    candidate.wrote(start, start, candidate.claim(wall()));
    candidate.observe(start + SECOND, Some(Record::default()));
    assert_eq!(candidate.decide(start + SECOND), Step::Wait(start + RETRY_PERIOD));
    assert_eq!(candidate.decide(start + RETRY_PERIOD), Step::Write);
}

#[test]
fn a_holder_renews_and_steps_down_when_that_fails_for_too_long() {
    let (mut candidate, start) = candidate();
    candidate.observe(start, None);
    candidate.wrote(start, start + SECOND, candidate.claim(wall()));
    assert_eq!(candidate.decide(start + SECOND), Step::Wait(start + RETRY_PERIOD));
    assert_eq!(candidate.decide(start + RETRY_PERIOD), Step::Write);
    candidate.failed(start + 9 * SECOND);
    assert_eq!(candidate.decide(start + 9 * SECOND), Step::Wait(start + RENEW_DEADLINE));
    assert_eq!(candidate.decide(start + RENEW_DEADLINE), Step::Lost(Loss::Expired));
    // An answer that comes after the deadline does not undo it, and the lease is taken anew.
    candidate.wrote(start + 9 * SECOND, start + RENEW_DEADLINE, candidate.claim(wall()));
    assert_eq!(candidate.decide(start + RENEW_DEADLINE), Step::Lost(Loss::Expired));
    candidate.step_down();
    assert_eq!(candidate.decide(start + 11 * SECOND), Step::Write);
}

#[test]
fn a_holder_whose_lease_another_changed_steps_down() {
    for (record, loss) in
        [(held_by("other", 1), Loss::Taken("other".into())), (held_by("", 1), Loss::Cleared)]
    {
        let (mut candidate, start) = candidate();
        candidate.observe(start, None);
        candidate.wrote(start, start, candidate.claim(wall()));
        candidate.observe(start + SECOND, Some(record));
        assert_eq!(candidate.decide(start + SECOND), Step::Lost(loss));
    }
}

#[test]
fn a_failed_attempt_is_followed_by_a_rest_unless_the_lease_changed() {
    let (mut candidate, start) = candidate();
    candidate.observe(start, Some(held_by("", 0)));
    candidate.failed(start);
    assert_eq!(candidate.decide(start), Step::Wait(start + RETRY_PERIOD));
    candidate.observe(start + SECOND, Some(held_by("", 1)));
    assert_eq!(candidate.decide(start + SECOND), Step::Write);
}

#[test]
fn records_are_written_as_other_elections_expect_them() {
    let (mut candidate, now) = candidate();
    candidate.observe(now, None);
    let first = candidate.claim(wall());
    let expected =
        Record { transitions: 0, acquired: Some(wall()), renewed: Some(wall()), ..held_by("me", 0) };
    assert_eq!(first, expected);
    candidate.wrote(now, now, first);
    let later = wall() + SECOND;
    assert_eq!(candidate.claim(later), Record { renewed: Some(later), ..expected.clone() });
    let resigned = Record { renewed: Some(later), holder: String::new(), ..expected };
    assert_eq!(candidate.resignation(later), resigned);
    candidate.step_down();
    candidate.observe(now, Some(held_by("other", 7)));
    let taken = candidate.claim(later);
    assert_eq!((taken.transitions, taken.acquired), (4, Some(later)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn two_candidates_never_hold_the_lease_and_one_does_after_the_faults(seed in any::<u64>()) {
        let mut world = World::new(seed);
        world.run_until(180_000);
        world.calm = true;
        // The work that is still in progress takes its time to end.
        world.run_until(320_000);
        prop_assert_eq!(world.holders().len(), 1);
    }
}

/// Times are in milliseconds of true time, which no process knows.
struct World {
    now: u64,
    random: fastrand::Rng,
    base: Instant,
    lease: Versioned,
    processes: Vec<Process>,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    /// What happens, by its number in `events`.
    pending: BTreeMap<u64, Event>,
    numbered: u64,
    calm: bool,
}

type Versioned = Option<(u64, Record)>;

struct Process {
    candidate: Candidate,
    /// What its next write replaces.
    known: Versioned,
    writing: Option<(u64, Instant)>,
    stands_still_until: u64,
    clock_offset: Duration,
    /// Thousandths of true time that pass on its clock.
    clock_rate: u64,
    wall_offset: i64,
}

#[derive(Debug)]
enum Event {
    Acts(usize),
    Looks(usize),
    Sees(usize, Versioned),
    WriteArrives { process: usize, write: u64, replaces: Option<u64>, record: Record },
    Answer { process: usize, write: u64, written: bool, lease: Versioned },
    GivesUp { process: usize, write: u64 },
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let processes = (0..3)
            .map(|number| Process {
                candidate: Candidate::new(format!("{number}-0")),
                known: None,
                writing: None,
                stands_still_until: 0,
                clock_offset: Duration::from_secs(random.u64(..1_000_000)),
                clock_rate: random.u64(900..=1100),
                wall_offset: random.i64(-1_000_000_000..1_000_000_000),
            })
            .collect();
        let mut world = Self {
            now: 0,
            random,
            base: Instant::now(),
            lease: None,
            processes,
            events: BinaryHeap::new(),
            pending: BTreeMap::new(),
            numbered: 0,
            calm: false,
        };
        for process in 0..world.processes.len() {
            world.after(0, Event::Looks(process));
            world.after(0, Event::Acts(process));
        }
        world
    }

    fn after(&mut self, delay: u64, event: Event) -> u64 {
        self.numbered += 1;
        self.events.push(Reverse((self.now + delay, self.numbered)));
        self.pending.insert(self.numbered, event);
        self.numbered
    }

    /// How long a message takes.
    fn delay(&mut self) -> u64 {
        match self.random.u8(..) {
            _ if self.calm => self.random.u64(1..50),
            0..20 => self.random.u64(..40_000),
            20..80 => self.random.u64(..4_000),
            _ => self.random.u64(..300),
        }
    }

    fn happens(&mut self, in_a_thousand: u32) -> bool {
        !self.calm && self.random.u32(..1000) < in_a_thousand
    }

    fn clock(&self, process: usize) -> Instant {
        let Process { clock_offset, clock_rate, .. } = self.processes[process];
        self.base + clock_offset + Duration::from_millis(self.now * clock_rate / 1000)
    }

    fn wall(&self, process: usize) -> Timestamp {
        let seconds = 1_700_000_000 + self.processes[process].wall_offset;
        Timestamp::from_second(seconds).unwrap() + Duration::from_millis(self.now)
    }

    fn holders(&self) -> Vec<&str> {
        let holds = |process: &usize| {
            let until = self.processes[*process].candidate.holds_until();
            until.is_some_and(|until| self.clock(*process) < until)
        };
        let holding = (0..self.processes.len()).filter(holds);
        holding.map(|process| self.processes[process].candidate.identity()).collect()
    }

    fn run_until(&mut self, end: u64) {
        while let Some(Reverse((time, number))) = self.events.pop() {
            if time > end {
                self.events.push(Reverse((time, number)));
                break;
            }
            self.now = time;
            let event = self.pending.remove(&number).unwrap();
            self.happen(event);
            let holders = self.holders();
            assert!(holders.len() <= 1, "{holders:?} hold it after {} ms", self.now);
        }
        self.now = end;
    }

    fn happen(&mut self, event: Event) {
        let (Event::Acts(process)
        | Event::Looks(process)
        | Event::Sees(process, _)
        | Event::WriteArrives { process, .. }
        | Event::Answer { process, .. }
        | Event::GivesUp { process, .. }) = event;
        let still_for = self.processes[process].stands_still_until.saturating_sub(self.now);
        match event {
            // The API server never stands still.
            Event::WriteArrives { process, write, replaces, record } => {
                let written = self.lease.as_ref().map(|(version, _)| *version) == replaces;
                if written {
                    self.lease = Some((replaces.unwrap_or_default() + 1, record));
                }
                let (delay, lease) = (self.delay(), self.lease.clone());
                if !self.happens(50) {
                    self.after(delay, Event::Answer { process, write, written, lease });
                }
            }
            Event::Looks(process) => {
                let (state, delay) = (self.lease.clone(), self.delay());
                self.after(delay, Event::Sees(process, state));
                let next = 1 + self.delay();
                self.after(next, Event::Looks(process));
            }
            event if still_for > 0 => {
                self.after(still_for, event);
            }
            Event::Sees(process, state) => {
                let now = self.clock(process);
                let Process { candidate, known, writing, .. } = &mut self.processes[process];
                // A holder watches nothing.
                if writing.is_none() && candidate.holds_until().is_none() {
                    candidate.observe(now, state.clone().map(|(_, record)| record));
                    *known = state;
                }
            }
            Event::Answer { process, write, written, lease } => {
                let (now, rests) = (self.clock(process), self.random.bool());
                let Process { candidate, known, writing, .. } = &mut self.processes[process];
                let Some((_, started)) = writing.take_if(|(number, _)| *number == write) else { return };
                known.clone_from(&lease);
                let record = lease.map(|(_, record)| record);
                if written {
                    candidate.wrote(started, now, record.unwrap());
                } else {
                    candidate.observe(now, record);
                    // The first time it tries again at once.
                    if rests {
                        candidate.failed(started);
                    }
                }
            }
            Event::GivesUp { process, write } => {
                let Process { candidate, writing, .. } = &mut self.processes[process];
                if let Some((_, started)) = writing.take_if(|(number, _)| *number == write) {
                    candidate.failed(started);
                }
            }
            Event::Acts(process) => self.act(process),
        }
    }

    fn act(&mut self, process: usize) {
        let next = self.random.u64(1..400);
        self.after(next, Event::Acts(process));
        if self.happens(4) {
            self.processes[process].stands_still_until = self.now + self.random.u64(..40_000);
        }
        if self.processes[process].writing.is_some() {
            return;
        }
        let now = self.clock(process);
        if self.happens(3) {
            let resigns = self.holders().contains(&self.processes[process].candidate.identity());
            if resigns && self.random.bool() {
                let record = self.processes[process].candidate.resignation(self.wall(process));
                self.send(process, record);
            }
            // What starts next is another process on the same machine.
            let identity = format!("{process}-{}", self.now);
            let started = &mut self.processes[process];
            (started.candidate, started.known, started.writing) = (Candidate::new(identity), None, None);
            return;
        }
        match self.processes[process].candidate.decide(now) {
            Step::Wait(_) => {}
            Step::Lost(_) => self.processes[process].candidate.step_down(),
            Step::Write => {
                let record = self.processes[process].candidate.claim(self.wall(process));
                let write = self.send(process, record);
                self.processes[process].writing = Some((write, now));
                self.after(5_000, Event::GivesUp { process, write });
            }
        }
    }

    fn send(&mut self, process: usize, record: Record) -> u64 {
        let replaces = self.processes[process].known.as_ref().map(|(version, _)| *version);
        let write = self.numbered + 1;
        let delay = self.delay();
        self.after(delay, Event::WriteArrives { process, write, replaces, record })
    }
}
