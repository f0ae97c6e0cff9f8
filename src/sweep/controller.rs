//! The rounds of the sweep *(client required)*.

use std::{
    collections::{HashMap, HashSet},
    convert::Infallible,
    future::pending,
    time::{Duration, Instant},
};

use futures::future::join_all;
use jiff::Timestamp;
use tokio::time::sleep;
use tracing::{Instrument, info_span, warn};

use super::{
    CloudSnapshot, LostVm, Mode, Options,
    candidates::{Candidates, Found, Key},
    first_seen::{FirstSeen, Moment},
    lost::live,
    plan::{Patience, SweepVerdict, UntrackedFinding, findings},
    search::Problem,
    snapshot::Deleter,
    suspects::{Round, Suspects},
    sweeper::Sweeper,
};
use crate::{
    metrics::Listing,
    peerpod::LostState,
    provider::{Listed, Resource, Target, cloud_label},
};

/// The time to the next round after one that failed. It doubles up to the interval.
const SOON: Duration = Duration::from_secs(15);

/// What is remembered of one cloud between rounds.
#[derive(Default)]
struct Memory {
    cloud: Option<&'static str>,
    /// How many rounds failed since one was complete.
    failures: u32,
    /// The problem of these failures that the log already has.
    logged_problem: Option<String>,
    first_seen: FirstSeen,
    suspects: Suspects,
    /// The untracked things of the last round, which the log already has.
    logged: HashSet<Key>,
    /// When the deletion of each of those was tried that could not be deleted. They wait until all others had their turn.
    refused: HashMap<Key, Instant>,
    snapshot: CloudSnapshot,
}

impl Memory {
    /// Logs those that the last round did not have.
    fn log_new(&mut self, untracked: &[UntrackedFinding]) {
        for finding in untracked.iter().filter(|it| !self.logged.contains(&it.found.key())) {
            let Listed { kind, id, name, .. } = &finding.found.listed;
            warn!(
                ?kind, id, name, since = %finding.since, verdict = finding.verdict.as_str(),
                "no PeerPod records this"
            );
        }
        self.logged = untracked.iter().map(|it| it.found.key()).collect();
        self.refused.retain(|key, _| self.logged.contains(key));
    }

    /// These could not be deleted.
    fn refused(&mut self, keys: Vec<Key>, now: Instant) {
        self.refused.extend(keys.into_iter().map(|key| (key, now)));
    }

    /// A round was complete.
    fn succeeded(&mut self) {
        self.failures = 0;
        self.logged_problem = None;
        self.snapshot.problem = None;
    }

    /// A round failed because of this. Returns whether the log lacks it.
    fn failed(&mut self, problem: &str) -> bool {
        self.failures = self.failures.saturating_add(1);
        self.snapshot.problem = Some(problem.to_owned());
        // A first failure may pass by itself: at the start, for instance, it may not be known yet where the VMs are.
        let is_new = self.failures > 1 && self.logged_problem.as_deref() != Some(problem);
        if is_new {
            self.logged_problem = Some(problem.to_owned());
        }
        is_new
    }

    /// The most of these to delete in this round: the oldest first, then those that were refused longest ago.
    fn to_delete(&self, untracked: &[UntrackedFinding], most: usize) -> Vec<Found> {
        let found = untracked.iter().filter(|it| it.verdict == SweepVerdict::Delete).map(|it| &it.found);
        let mut found: Vec<_> = found.collect();
        found.sort_by_key(|it| self.refused.get(&it.key()).copied());
        found.into_iter().take(most).cloned().collect()
    }
}

impl Sweeper {
    /// Sweeps while this process leads, without end.
    pub async fn run(self) -> Infallible {
        if self.options.mode == Mode::Off {
            pending::<()>().await;
        }
        self.shared.leadership.each_term(|| Box::pin(self.rounds()), || self.forget()).await
    }

    /// The rounds at all clouds, in parallel: a slow cloud delays no other.
    async fn rounds(&self) -> Infallible {
        self.options.published.begin(true);
        // With incomplete PeerPods, recorded VMs would seem to be unrecorded. No answer means that this process ends.
        if self.shared.peerpods.wait_until_ready().await.is_err() {
            pending::<()>().await;
        }
        join_all((0..self.shared.clouds.len()).map(|source| self.rounds_of(source))).await;
        pending().await
    }

    /// One round after another, with the settings of this number.
    async fn rounds_of(&self, source: usize) -> Infallible {
        let Options { interval, .. } = self.options;
        let mut memory = Memory::default();
        let mut pause = SOON.min(interval);
        loop {
            let begun = Instant::now();
            let target = self.shared.clouds.target(source).await;
            let cloud = target.as_ref().map(|target| target.cloud.name());
            if memory.cloud != cloud {
                memory.cloud.into_iter().for_each(|before| self.no_longer_listed(before));
                memory = Memory { cloud, ..Memory::default() };
                pause = SOON.min(interval);
            }
            let is_complete = match &target {
                Some(target) => {
                    let span = info_span!("sweep", cloud);
                    self.sweep(source, target, &mut memory).instrument(span).await
                }
                None => false,
            };
            // A failed round is tried again soon, and then less and less often. It may have taken long itself.
            let rest = if is_complete { interval.saturating_sub(begun.elapsed()) } else { pause };
            pause = if is_complete { SOON.min(interval) } else { (pause * 2).min(interval) };
            sleep(rest).await;
        }
    }

    /// Another process leads, and will find out everything anew.
    fn forget(&self) {
        for CloudSnapshot { cloud, .. } in self.options.published.current().clouds {
            self.no_longer_listed(cloud_label(&cloud));
        }
        self.options.published.begin(false);
    }

    fn no_longer_listed(&self, cloud: &'static str) {
        self.search.metrics.not_listed(cloud, &nothing(0.0));
        self.shared.findings.replace(cloud, HashMap::new());
        self.options.published.hide(cloud);
    }

    /// One round at one cloud. Returns whether it was complete.
    async fn sweep(&self, source: usize, target: &Target, memory: &mut Memory) -> bool {
        target.cloud.name().clone_into(&mut memory.snapshot.cloud);
        let kinds = Resource::ALL.map(Resource::as_str);
        self.search.metrics.lists(target.cloud.name(), self.options.interval, kinds);
        // If the term ends meanwhile, its metrics end, too.
        self.options.published.show(memory.snapshot.clone());
        let now = Moment { by_process: Instant::now(), by_day: Timestamp::now() };
        let swept = self.try_sweep(source, target, memory, now).await;
        match &swept {
            Ok(()) => memory.succeeded(),
            Err(problem) => {
                if memory.failed(problem.message().for_status()) {
                    warn!(%problem, "the sweep could not list everything; it concludes nothing and tries again");
                }
            }
        }
        self.options.published.show(memory.snapshot.clone());
        swept.is_ok()
    }

    async fn try_sweep(
        &self,
        source: usize,
        target: &Target,
        memory: &mut Memory,
        now: Moment,
    ) -> Result<(), Problem> {
        let listing = self.search.list(target).await?;
        let peerpods = self.shared.peerpods.state();
        let mut candidates = Candidates::of(target.cloud, &listing);
        for peerpod in &peerpods {
            candidates.track(peerpod);
        }
        if candidates.needs_pods() {
            self.search.spare_pods(&mut candidates).await?;
        }
        let live: Vec<_> = live(target.cloud, &peerpods).collect();
        let ended = self.search.of_ended_pods(&live).await;
        let ended = ended
            .inspect_err(|error| warn!(%error, "the sweep could not list the Pods that have ended"))
            .ok();
        // Two rounds are never exactly one interval apart.
        let Options { grace, interval, .. } = self.options;
        let patience = Patience { grace, interval: interval / 10 * 9, watch: grace };
        let untracked = findings(&candidates.all(), &mut memory.first_seen, now, patience);
        memory.log_new(&untracked);
        let round = Round {
            sweeper: self,
            target,
            listing: &listing,
            peerpods: &peerpods,
            now,
            interval: patience.interval,
        };
        let lost = memory.suspects.round(&round, ended).await;
        self.search.metrics.listed(target.cloud.name(), &in_numbers(now, &untracked, &lost));
        let deleter = Deleter::of(self.options.mode, target.settings.common.is_developer_mode());
        memory.snapshot.show(now.by_day, deleter, &listing, &untracked, lost);
        // A round may take minutes. Meanwhile the settings may have turned on developer mode, or have taken back a proof.
        let are_in_force = || self.shared.clouds.has_settings(source, &target.settings);
        if self.options.mode == Mode::Delete && are_in_force() {
            let to_delete = memory.to_delete(&untracked, self.options.most);
            let tally = self.search.delete(target, to_delete, &are_in_force).await;
            memory.refused(tally.refused, Instant::now());
            if let Some(problem) = tally.problem {
                warn!(%problem, "the sweep could not delete what it found; the next round tries again");
            }
        }
        Ok(())
    }
}

/// A round that found nothing, for the metrics: all series with the value 0. `began`: in seconds since 1970.
fn nothing(began: f64) -> Listing {
    let of = |kind: Resource| SweepVerdict::ALL.map(|verdict| ((kind.as_str(), verdict.as_str()), 0));
    Listing {
        began,
        untracked: Resource::ALL.into_iter().flat_map(of).collect(),
        lost: LostState::ALL.map(|state| (state.as_str(), 0)).into(),
    }
}

/// What a round found, for the metrics.
fn in_numbers(now: Moment, untracked: &[UntrackedFinding], lost: &[LostVm]) -> Listing {
    let began = Duration::try_from(now.by_day.duration_since(Timestamp::UNIX_EPOCH)).unwrap_or_default();
    let mut listing = nothing(began.as_secs_f64());
    for UntrackedFinding { found, verdict, .. } in untracked {
        *listing.untracked.entry((found.listed.kind.as_str(), verdict.as_str())).or_default() += 1;
    }
    for vm in lost {
        *listing.lost.entry(vm.state.as_str()).or_default() += 1;
    }
    listing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_deleted_lets_the_others_go_first() {
        let finding = |id: &str| {
            let listed = Listed::new(Resource::Vm, id, format!("podvm-{id}-00000001"));
            let found = Found { listed, proof: None, is_of_another: false };
            UntrackedFinding { found, since: Timestamp::UNIX_EPOCH, verdict: SweepVerdict::Delete }
        };
        let all = ["a", "b", "c"].map(finding);
        let mut memory = Memory::default();
        let chosen = |memory: &Memory| {
            memory.to_delete(&all, 2).into_iter().map(|it| it.listed.id).collect::<Vec<_>>().concat()
        };
        memory.log_new(&all);
        assert_eq!(chosen(&memory), "ab");
        let start = Instant::now();
        let refuse = |memory: &mut Memory, seconds| {
            let keys = memory.to_delete(&all, 2).iter().map(Found::key).collect();
            memory.refused(keys, start + Duration::from_secs(seconds));
        };
        refuse(&mut memory, 0);
        assert_eq!(chosen(&memory), "ca");
        refuse(&mut memory, 1);
        assert_eq!(chosen(&memory), "ba", "they take turns when all were refused");
        memory.log_new(&all[..2]);
        memory.log_new(&all);
        assert_eq!(chosen(&memory), "cb", "one that was gone for a round begins anew");
    }

    #[test]
    fn a_problem_that_lasts_is_logged_once() {
        let mut memory = Memory::default();
        assert!(!memory.failed("a"), "the first failure may pass by itself");
        assert_eq!(memory.snapshot.problem.as_deref(), Some("a"), "status shows it at once");
        assert_eq!(["a", "a", "b", "b"].map(|problem| memory.failed(problem)), [true, false, true, false]);
        memory.succeeded();
        assert_eq!(memory.snapshot.problem, None);
        assert_eq!(["b", "b", "b"].map(|problem| memory.failed(problem)), [false, true, false]);
    }
}
