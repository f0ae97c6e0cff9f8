//! What a listing of a cloud means. Pure *(no client, no clock)*.
//!
//! What always holds:
//! - Nothing that a PeerPod records is an [`UntrackedFinding`], whether or not the PeerPod still has its finalizer.
//! - A VM that no PeerPod records, but whose name fits a Pod or the Pod of a PeerPod, is [`SweepVerdict::Spared`], whether or not
//!   that Pod is a peer pod: the Pod may run on it. When no such Pod exists any more, it counts as seen for the first time.
//!   Leftovers of such a VM are no finding at all.
//! - Something is a finding only after it was seen twice, an interval apart, and is as old as the grace period.
//! - [`SweepVerdict::Delete`] requires proof that it is this cluster's, and a deletion that deletes no user's data. Also, this
//!   process must have seen it, by its own clock, for as long as [`Patience::watch`] says. That is the grace period if no person
//!   watches. The cloud's clock may be off by any time.

use std::time::Duration;

use jiff::Timestamp;

use super::{
    candidates::{Candidate, Found},
    first_seen::{FirstSeen, Moment},
};
use crate::provider::{Resource, VmRef};

/// How long to wait until something is a finding.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// How old it must be.
    pub grace: Duration,
    /// How long its two sightings must be apart.
    pub interval: Duration,
    /// For how long this process must have seen it, by its own clock, before it is deleted.
    pub watch: Duration,
}

/// Something that no PeerPod records and that is old enough to be reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UntrackedFinding {
    /// What it is.
    pub found: Found,
    /// When it was made, or else when this process first saw it.
    pub since: Timestamp,
    /// What to do.
    pub verdict: SweepVerdict,
}

/// What to do about an [`UntrackedFinding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SweepVerdict {
    /// It is provably this cluster's, and old enough.
    Delete,
    /// The same, but this process has not seen it for long enough.
    Watch,
    /// Nothing proves that it is this cluster's.
    Unproven,
    /// It does not say which VM it came with, or it is a disk: a person has to look at it.
    ByHand,
    /// A Pod of this name exists and may run on it.
    Spared,
}

operator_kit::labels! {
    /// The metric label.
    pub SweepVerdict {
        Delete => "delete",
        Watch => "watch",
        Unproven => "unproven",
        ByHand => "by_hand",
        Spared => "spared",
    }
}

/// Which of these to report and to delete. Notes in `first_seen` what was seen.
pub fn findings(
    candidates: &[Candidate<'_>],
    first_seen: &mut FirstSeen,
    now: Moment,
    patience: Patience,
) -> Vec<UntrackedFinding> {
    let mut findings = Vec::new();
    for (&Candidate { found, is_spared }, seen) in candidates.iter().zip(first_seen.update(candidates, now)) {
        let seen_for = now.by_process.saturating_duration_since(seen.by_process);
        let since = found.listed.created.unwrap_or(seen.by_day);
        let age = Duration::try_from(now.by_day.duration_since(since)).unwrap_or_default();
        // What is left of a VM is no finding while a Pod may have that VM.
        let is_needed = is_spared && found.listed.kind != Resource::Vm;
        if is_needed || seen_for < patience.interval || age.max(seen_for) < patience.grace {
            continue;
        }
        let by_id = matches!(found.listed.vm, Some(VmRef::Id(_)));
        let verdict = match &found.proof {
            _ if is_spared => SweepVerdict::Spared,
            _ if found.listed.kind != Resource::Vm && !by_id => SweepVerdict::ByHand,
            _ if found.listed.kind == Resource::Disk => SweepVerdict::ByHand,
            None => SweepVerdict::Unproven,
            Some(_) if seen_for < patience.watch => SweepVerdict::Watch,
            Some(_) => SweepVerdict::Delete,
        };
        findings.push(UntrackedFinding { found: found.clone(), since, verdict });
    }
    findings.sort_by(|a, b| a.since.cmp(&b.since).then_with(|| a.found.listed.id.cmp(&b.found.listed.id)));
    findings
}
