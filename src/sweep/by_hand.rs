//! One search that a person starts *(client required)*.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::{
    first_seen::FirstSeen,
    plan::{Candidates, Moment, Patience, SweepVerdict, UntrackedFinding, findings},
    search::{Problem, Search, Tally},
};
use crate::provider::Target;

/// Two listings of one cloud, some time apart. A person watches, so the cloud's clock may determine how old something is.
pub(crate) struct ByHand {
    search: Search,
    target: Target,
    patience: Patience,
    first_seen: FirstSeen,
}

/// What a listing showed.
pub(crate) struct SearchResult {
    /// What is untracked and old enough.
    pub(crate) findings: Vec<UntrackedFinding>,
    /// How much else is untracked.
    pub(crate) younger: usize,
}

impl ByHand {
    pub(crate) fn new(search: Search, target: Target, grace: Duration, pause: Duration) -> Self {
        let patience = Patience { grace, interval: pause, watch: pause };
        Self { search, target, patience, first_seen: FirstSeen::default() }
    }

    /// Lists the cloud, and then the cluster.
    pub(crate) async fn list(&mut self) -> Result<SearchResult, Problem> {
        let now = Moment { by_process: Instant::now(), by_day: Timestamp::now() };
        let listing = self.search.list(&self.target).await?;
        let mut candidates = Candidates::of(self.target.cloud, &listing);
        self.search.track_peerpods(&mut candidates).await?;
        self.search.spare_pods(&mut candidates).await?;
        let candidates = candidates.all();
        let findings = findings(&candidates, &mut self.first_seen, now, self.patience);
        Ok(SearchResult { younger: candidates.len() - findings.len(), findings })
    }

    /// Deletes at most this many of the things that are provably this cluster's.
    pub(crate) async fn delete(
        &self,
        findings: Vec<UntrackedFinding>,
        most: usize,
    ) -> Result<Tally, Problem> {
        let provable = findings.into_iter().filter(|it| it.verdict == SweepVerdict::Delete);
        let found = provable.take(most).map(|it| it.found).collect();
        // The settings were read once.
        self.search.delete(&self.target, found, &|| true).await
    }
}
