//! Hashes of the Pods and VMs that PeerPods share *(no client)*. Their keys are random, so a tenant cannot construct a collision.

use std::{num::NonZeroU64, ops::RangeInclusive};

/// A VM as it is recorded for one Pod: the hashes of both, as far as the PeerPod names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PodVm {
    pub(super) vm: Option<NonZeroU64>,
    pub(super) pod: Option<PodHash>,
}

impl PodVm {
    /// The VM and the Pod, if there are both.
    pub(super) fn whole(self) -> Option<(NonZeroU64, PodHash)> {
        self.vm.zip(self.pod)
    }
}

/// The hash of a Pod. It begins with bits of the hash of the stem of its VMs' names, so that Pods whose VMs have like names are
/// neighbours. Two stems with the same bits make a PeerPod too much count as a claim, which is the safe side. Two Pods with the same
/// bits would make a claim too few, so the Pod itself has most of the bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct PodHash(NonZeroU64);

/// Some neighbours. `None`: no Pod, which comes before all Pods.
pub(super) type Pods = RangeInclusive<Option<PodHash>>;

/// All Pods.
pub(super) const EACH_POD: Pods = Some(PodHash::FIRST)..=Some(PodHash(NonZeroU64::MAX));

/// All Pods, and no Pod.
pub(super) const ALL_PODS: Pods = None..=Some(PodHash(NonZeroU64::MAX));

/// The bits of the Pod itself, after those of the stem.
const OWN_BITS: u32 = 40;

const OWN: u64 = (1 << OWN_BITS) - 1;

impl PodHash {
    pub(super) const FIRST: Self = Self(NonZeroU64::MIN);

    /// By the hashes of its VMs' stem and of the Pod itself.
    pub(super) fn new(stem: u64, pod: u64) -> Self {
        Self(non_zero((stem & !OWN) | (pod >> (u64::BITS - OWN_BITS))))
    }

    /// The next higher one.
    pub(super) fn next(self) -> Option<Self> {
        self.0.checked_add(1).map(Self)
    }
}

/// The Pods whose VMs' names have the same stem. Without a Pod: no Pod alone.
pub(super) fn same_stem(pod: Option<PodHash>) -> Pods {
    let first = pod.map(|PodHash(pod)| PodHash(non_zero(pod.get() & !OWN)));
    let last = pod.map(|PodHash(pod)| PodHash(pod | OWN));
    first..=last
}

/// The hash with 1 in place of 0.
pub(super) fn non_zero(hash: u64) -> NonZeroU64 {
    NonZeroU64::new(hash).unwrap_or(NonZeroU64::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_neighbours_of_those_with_the_same_stem_alone() {
        let stems = [0, 1 << OWN_BITS, 7 << OWN_BITS, !OWN];
        let none: Option<PodHash> = None;
        let pods = |stem| [0, 1 << 30, u64::MAX].map(|pod| Some(PodHash::new(stem, pod)));
        for stem in stems {
            for pod in pods(stem) {
                for other in stems {
                    assert!(pods(other).iter().all(|it| same_stem(pod).contains(it) == (stem == other)));
                }
                assert!(!same_stem(pod).contains(&none) && !same_stem(none).contains(&pod));
                assert!(ALL_PODS.contains(&pod));
            }
        }
        assert!(same_stem(none).contains(&none) && ALL_PODS.contains(&none));
    }

    #[test]
    fn a_hash_that_may_be_missing_needs_no_more_memory() {
        assert_eq!(size_of::<PodVm>(), 2 * size_of::<u64>());
    }
}
