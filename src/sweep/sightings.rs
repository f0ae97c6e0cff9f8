//! What the listings before this one showed *(no client, no clock)*.

use std::collections::HashMap;

use jiff::Timestamp;

use super::plan::Moment;
use crate::provider::{Listed, Resource};

/// Since when each untracked thing has been seen without a break.
#[derive(Debug, Default)]
pub struct Sightings {
    before: HashMap<(Resource, String), Sighting>,
    now: HashMap<(Resource, String), Sighting>,
}

#[derive(Debug)]
struct Sighting {
    first: Moment,
    name: String,
    created: Option<Timestamp>,
}

impl Sightings {
    /// A listing begins.
    pub(super) fn begin(&mut self) {
        self.now.clear();
    }

    /// The listing showed it. Returns when it was first seen. Another thing with the same identifier is another one.
    pub(super) fn saw(&mut self, listed: &Listed, now: Moment) -> Moment {
        let key = (listed.kind, listed.id.clone());
        let is_same = |it: &Sighting| it.name == listed.name && it.created == listed.created;
        let before = self.before.get(&key).filter(|it| is_same(it)).map(|it| it.first);
        let first = before.unwrap_or(now);
        self.now.insert(key, Sighting { first, name: listed.name.clone(), created: listed.created });
        first
    }

    /// The listing is complete: what it did not show is gone.
    pub(super) fn end(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }
}
