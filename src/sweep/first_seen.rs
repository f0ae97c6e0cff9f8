//! What the listings before this one showed *(no client, no clock)*.

use std::collections::HashMap;

use jiff::Timestamp;

use super::plan::{Candidate, Key, Moment};

/// Since when each untracked thing has been seen without a break.
#[derive(Debug, Default)]
pub struct FirstSeen {
    before: HashMap<Key, Sighting>,
    now: HashMap<Key, Sighting>,
}

#[derive(Debug)]
struct Sighting {
    first: Moment,
    name: String,
    created: Option<Timestamp>,
    is_spared: bool,
}

impl FirstSeen {
    /// A listing begins.
    pub(super) fn begin(&mut self) {
        self.now.clear();
    }

    /// The listing showed it. Returns when it was first seen. A different thing with the same identifier counts as new. So does a
    /// thing that a Pod may have had, when that Pod is gone.
    pub(super) fn saw(&mut self, Candidate { found, is_spared }: Candidate<'_>, now: Moment) -> Moment {
        let listed = &found.listed;
        let key = found.key();
        let is_same = |it: &Sighting| {
            it.name == listed.name && it.created == listed.created && it.is_spared == is_spared
        };
        let before = self.before.get(&key).filter(|it| is_same(it)).map(|it| it.first);
        let first = before.unwrap_or(now);
        let (name, created) = (listed.name.clone(), listed.created);
        self.now.insert(key, Sighting { first, name, created, is_spared });
        first
    }

    /// The listing is complete: what it did not show is gone.
    pub(super) fn end(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }
}
