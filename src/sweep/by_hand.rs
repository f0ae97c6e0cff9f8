//! One search that a person starts *(client required)*.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::{
    Untracked,
    candidates::{Candidates, Found},
    first_seen::{FirstSeen, Moment},
    plan::{Patience, SweepVerdict, UntrackedFinding, findings},
    search::{Problem, Search, Tally},
    snapshot::Deleter,
};
use crate::provider::Target;

/// Two listings of one cloud, some time apart. A person watches, so the cloud's clock may determine how old something is.
pub(crate) struct ByHand {
    search: Search,
    target: Target,
    patience: Patience,
    first_seen: FirstSeen,
}

impl ByHand {
    pub(crate) fn new(search: Search, target: Target, grace: Duration, pause: Duration) -> Self {
        let patience = Patience { grace, interval: pause, watch: pause };
        Self { search, target, patience, first_seen: FirstSeen::default() }
    }

    /// Lists the cloud, and then the cluster. Returns what is untracked and old enough, and how much else is untracked.
    pub(crate) async fn list(&mut self) -> Result<(Vec<UntrackedFinding>, usize), Problem> {
        let now = Moment { by_process: Instant::now(), by_day: Timestamp::now() };
        let listing = self.search.list(&self.target).await?;
        let mut candidates = Candidates::of(self.target.cloud, &listing);
        self.search.track_peerpods(&mut candidates).await?;
        self.search.spare_pods(&mut candidates).await?;
        let candidates = candidates.all();
        let findings = findings(&candidates, &mut self.first_seen, now, self.patience);
        let younger = candidates.len() - findings.len();
        Ok((findings, younger))
    }

    /// These, and what this command does about them.
    pub(crate) fn shown(&self, findings: &[UntrackedFinding], dry_run: bool) -> Vec<Untracked> {
        shown(findings, self.target.settings.common.is_developer_mode(), dry_run)
    }

    /// Deletes at most this many of the things that are provably this cluster's. Returns also how many more a further call would delete.
    pub(crate) async fn delete(&self, findings: Vec<UntrackedFinding>, most: usize) -> (Tally, usize) {
        let (found, more) = chosen(findings, most);
        // The settings were read once.
        let tally = self.search.delete(&self.target, found, &|| true).await;
        let deletes = !self.target.settings.common.is_developer_mode();
        (tally, if deletes { more } else { 0 })
    }
}

fn shown(findings: &[UntrackedFinding], is_developer_mode: bool, dry_run: bool) -> Vec<Untracked> {
    let deleter = if is_developer_mode { Deleter::DeveloperMode } else { Deleter::Command { dry_run } };
    findings.iter().map(|it| Untracked::of(it, deleter)).collect()
}

/// At most this many of the things to delete, and how many more there are.
fn chosen(findings: Vec<UntrackedFinding>, most: usize) -> (Vec<Found>, usize) {
    let provable = findings.into_iter().filter(|it| it.verdict == SweepVerdict::Delete);
    let mut found: Vec<_> = provable.map(|it| it.found).collect();
    let more = found.len().saturating_sub(most);
    found.truncate(most);
    (found, more)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::{Listed, Resource};

    fn findings() -> Vec<UntrackedFinding> {
        let verdicts =
            [SweepVerdict::Delete, SweepVerdict::Unproven, SweepVerdict::Delete, SweepVerdict::Delete];
        let finding = |(number, verdict): (usize, SweepVerdict)| {
            let listed = Listed::new(Resource::Vm, format!("i-{number}"), format!("podvm-a-0000000{number}"));
            let found = Found { listed, proof: None, is_of_another: false };
            UntrackedFinding { found, since: Timestamp::UNIX_EPOCH, verdict }
        };
        verdicts.into_iter().enumerate().map(finding).collect()
    }

    #[test]
    fn no_more_is_deleted_than_asked_for_and_the_rest_is_counted() {
        for (most, ids, more) in [(0, "", 3), (2, "i-0 i-2", 1), (3, "i-0 i-2 i-3", 0), (9, "i-0 i-2 i-3", 0)]
        {
            let (found, left) = chosen(findings(), most);
            let found: Vec<_> = found.into_iter().map(|it| it.listed.id).collect();
            assert_eq!((found.join(" ").as_str(), left), (ids, more), "{most}");
        }
    }

    #[test]
    fn in_developer_mode_no_deletion_is_promised() {
        for shown in [true, false].map(|dry_run| shown(&findings(), true, dry_run)) {
            assert!(shown.iter().all(|it| it.action.starts_with("kept: ")), "{shown:?}");
        }
    }

    #[test]
    fn what_a_vm_leaves_is_not_promised_to_go_with_it() {
        let by_hand = [true, false].map(|dry_run| shown(&findings(), false, dry_run).remove(0));
        let by_sweep = [Deleter::Sweep, Deleter::Nothing].map(|it| Untracked::of(&findings()[0], it));
        for untracked in by_hand.iter().chain(&by_sweep) {
            assert!(
                untracked.action.ends_with("what it leaves gets a verdict of its own"),
                "{}",
                untracked.action
            );
        }
    }

    #[test]
    fn what_is_shown_names_flags_of_this_command_alone() {
        for (dry_run, begins) in [(true, "kept; without --dry-run, this command"), (false, "this command")] {
            let shown = shown(&findings(), false, dry_run);
            assert!(shown[0].action.starts_with(begins), "{}", shown[0].action);
            assert!(shown[1].action.starts_with("kept: nothing proves"), "{}", shown[1].action);
            assert!(shown.iter().all(|it| !it.action.contains("--sweep")), "{shown:?}");
        }
    }
}
