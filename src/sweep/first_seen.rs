//! What the listings before this one showed *(no client, no clock)*.

use std::{collections::HashMap, mem, time::Instant};

use jiff::Timestamp;

use super::candidates::{Candidate, Key};
use crate::provider::Listed;

/// The time of a listing, by both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// This process' own clock.
    pub by_process: Instant,
    /// The time of day.
    pub by_day: Timestamp,
}

/// Since when each untracked thing has been seen without a break.
#[derive(Debug, Default)]
pub struct FirstSeen(HashMap<Key, Sighting>);

#[derive(Debug)]
struct Sighting {
    first: Moment,
    name: String,
    created: Option<Timestamp>,
    is_spared: bool,
}

impl FirstSeen {
    /// A complete listing showed these and nothing else. Returns when each was first seen. A different thing with the same identifier
    /// counts as new. So does a thing that a Pod may have had, when that Pod is gone.
    pub(super) fn update(&mut self, candidates: &[Candidate<'_>], now: Moment) -> Vec<Moment> {
        let before = mem::take(&mut self.0);
        let first_seen = |&Candidate { found, is_spared }: &Candidate<'_>| {
            let Listed { name, created, .. } = &found.listed;
            let is_same =
                |it: &&Sighting| it.name == *name && it.created == *created && it.is_spared == is_spared;
            let key = found.key();
            let first = before.get(&key).filter(is_same).map_or(now, |it| it.first);
            let sighting = Sighting { first, name: name.clone(), created: *created, is_spared };
            self.0.insert(key, sighting);
            first
        };
        candidates.iter().map(first_seen).collect()
    }
}
