//! PeerPods ordered by the VM that they name, and VMs ordered by the Pod that they are recorded for *(no client)*.
//!
//! A tenant who may create PeerPods may create thousands that name one Pod or one VM. So every query here takes a few steps down
//! an ordered set and returns a few PeerPods at most, however many there are.

use std::{cmp::Ordering, collections::BTreeSet, iter, ops::RangeInclusive};

use super::Key;

/// The most relatives that one event asks for or requeues. A timer reconciles a PeerPod with more newer siblings (see
/// [`Siblings`](super::Siblings)), so no chain of changes has to reach all of them.
pub(in crate::peerpod) const FEW: usize = 4;

/// The most other Pods to read or requeue for one VM. Usually a VM has one PeerPod. When deleted PeerPods of more other Pods than
/// this name the VM, the operator reads none of these Pods and takes one of the PeerPods as a claim.
pub(in crate::peerpod) const MOST_PODS: usize = 15;

/// A VM as it is recorded for one Pod: the hashes of both, 0 if there is none. The hash keys are random, so a tenant cannot
/// construct a collision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Placement {
    pub(super) vm: u64,
    pub(super) pod: PodHash,
}

/// The hash of a Pod. It begins with bits of the hash of the stem of its VMs' names, so that Pods whose VMs have like names are
/// neighbours. Two stems with the same bits make a PeerPod too much count as a claim, which is the safe side.
pub(super) type PodHash = u64;

/// The bits of the Pod itself, after those of the stem.
const OWN_BITS: u32 = 40;

/// The hash of a Pod by the hashes of its VMs' stem and of itself. It is not 0.
pub(super) fn pod_hash(stem: u64, pod: u64) -> PodHash {
    (stem >> OWN_BITS).max(1) << OWN_BITS | pod >> (u64::BITS - OWN_BITS)
}

/// The Pods whose VMs' names have the same stem. Without a Pod: those without one.
pub(super) fn alike(pod: PodHash) -> Pods {
    let first = pod >> OWN_BITS << OWN_BITS;
    [first, first | ((1 << OWN_BITS) - 1)]
}

/// The first and the last of some neighbours.
pub(super) type Pods = [PodHash; 2];

impl Placement {
    pub(super) fn is_whole(self) -> bool {
        self.vm != 0 && self.pod != 0
    }
}

/// The state of a PeerPod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stake {
    /// It is not being deleted and has the finalizer: it counts as the record of its VM among its siblings.
    Held,
    /// It is not being deleted and has no finalizer.
    Unheld,
    /// It is being deleted.
    Going,
    /// It is being deleted, and its own Pod has ended: it claims no VM.
    Over,
}

impl Stake {
    const ALL: [Self; 4] = [Self::Held, Self::Unheld, Self::Going, Self::Over];
    const DELETED: [Self; 2] = [Self::Going, Self::Over];
}

/// One PeerPod of a VM. The order serves all queries: first those that are not being deleted, then by Pod, the oldest first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Member {
    vm: u64,
    stake: Stake,
    pod: PodHash,
    created: i64,
    /// `None` in bounds alone.
    name: Option<Name>,
}

#[derive(Debug, PartialEq, Eq)]
struct Name(Key);

impl Ord for Name {
    fn cmp(&self, other: &Self) -> Ordering {
        (&self.0.namespace, &self.0.name).cmp(&(&other.0.namespace, &other.0.name))
    }
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A VM that some living PeerPod with the finalizer records for a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Placed {
    pod: PodHash,
    /// The second of the first record.
    pub(super) recorded: i64,
    vm: u64,
}

impl Placed {
    pub(super) fn placement(self) -> Placement {
        Placement { vm: self.vm, pod: self.pod }
    }
}

/// A living PeerPod of a Pod without the finalizer. cloud-api-adaptor leaves one for each start of the Pod that failed.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Loose {
    pod: PodHash,
    created: i64,
    /// `None` in bounds alone.
    name: Option<Name>,
}

#[derive(Debug, Default)]
pub(super) struct Relatives {
    members: BTreeSet<Member>,
    placed: BTreeSet<Placed>,
    loose: BTreeSet<Loose>,
}

/// All members of a VM with these stakes, of these Pods.
fn range(vm: u64, stakes: [Stake; 2], pods: Pods) -> RangeInclusive<Member> {
    let bound = |stake, pod, created| Member { vm, stake, pod, created, name: None };
    bound(stakes[0], pods[0], i64::MIN)..=bound(stakes[1], pods[1], i64::MAX)
}

fn of_one(Placement { vm, pod }: Placement, stake: Stake) -> RangeInclusive<Member> {
    range(vm, [stake; 2], [pod; 2])
}

/// Sorts before all of this second.
fn loose(pod: PodHash, created: i64) -> Loose {
    Loose { pod, created, name: None }
}

/// All Pods, and none.
pub(super) const ALL: Pods = [0, PodHash::MAX];

impl Relatives {
    pub(super) fn insert(&mut self, placement: Placement, stake: Stake, created: i64, key: Key) {
        let Placement { vm, pod } = placement;
        if stake == Stake::Unheld && placement.is_whole() {
            self.loose.insert(Loose { pod, created, name: Some(Name(key.clone())) });
        }
        if vm != 0 {
            self.change(placement, |members| {
                members.insert(Member { vm, stake, pod, created, name: Some(Name(key)) })
            });
        }
    }

    pub(super) fn remove(&mut self, placement: Placement, stake: Stake, created: i64, key: Key) {
        let Placement { vm, pod } = placement;
        if stake == Stake::Unheld && placement.is_whole() {
            self.loose.remove(&Loose { pod, created, name: Some(Name(key.clone())) });
        }
        if vm != 0 {
            self.change(placement, |members| {
                members.remove(&Member { vm, stake, pod, created, name: Some(Name(key)) })
            });
        }
    }

    fn change(&mut self, placement: Placement, change: impl FnOnce(&mut BTreeSet<Member>) -> bool) {
        let Placement { vm, pod } = placement;
        let before = self.placed(placement);
        change(&mut self.members);
        let after = self.placed(placement);
        if before != after {
            if let Some(recorded) = before {
                self.placed.remove(&Placed { pod, recorded, vm });
            }
            if let Some(recorded) = after {
                self.placed.insert(Placed { pod, recorded, vm });
            }
        }
    }

    /// When the VM was first recorded for the Pod, if a PeerPod holds it.
    pub(super) fn placed(&self, placement: Placement) -> Option<i64> {
        (placement.is_whole() && self.held(placement).next().is_some())
            .then(|| self.recorded(placement))
            .flatten()
    }

    /// When the VM was first recorded for the Pod. Another record does not make it younger.
    pub(super) fn recorded(&self, placement: Placement) -> Option<i64> {
        let first = |stake| self.members.range(of_one(placement, stake)).next().map(|member| member.created);
        Stake::ALL.into_iter().filter_map(first).min()
    }

    pub(super) fn is_known(&self, placement: Placement) -> bool {
        self.recorded(placement).is_some()
    }

    /// Whether a PeerPod of another Pod, or of none, names the VM.
    pub(super) fn is_contested(&self, placement: Placement) -> bool {
        Stake::ALL.into_iter().any(|stake| {
            let mut all = self.members.range(range(placement.vm, [stake; 2], ALL));
            [all.next(), all.next_back()].into_iter().flatten().any(|member| member.pod != placement.pod)
        })
    }

    /// The other VMs of the Pod that were recorded since then, the newest first.
    pub(super) fn newer(&self, placement: Placement, since: i64) -> impl Iterator<Item = Placed> {
        self.others(placement, since, i64::MAX)
    }

    /// The other VMs of the Pod that were recorded until then, the newest first.
    pub(super) fn older(&self, placement: Placement, until: i64) -> impl Iterator<Item = Placed> {
        self.others(placement, i64::MIN, until)
    }

    fn others(&self, Placement { vm, pod }: Placement, from: i64, to: i64) -> impl Iterator<Item = Placed> {
        let all = Placed { pod, recorded: from, vm: 0 }..=Placed { pod, recorded: to, vm: u64::MAX };
        self.placed.range(all).rev().copied().filter(move |it| it.vm != vm && pod != 0)
    }

    /// Those that hold the VM, the oldest first.
    pub(super) fn held(&self, placement: Placement) -> impl Iterator<Item = &Key> {
        keys(self.members.range(of_one(placement, Stake::Held)))
    }

    /// Those of these Pods that name the VM and are not being deleted.
    pub(super) fn living(&self, vm: u64, pods: Pods) -> impl Iterator<Item = &Key> {
        let stakes = [Stake::Held, Stake::Unheld].into_iter();
        stakes.flat_map(move |stake| keys(self.members.range(range(vm, [stake; 2], pods))))
    }

    /// PeerPods that name the VM, are being deleted, and may have waited for a PeerPod of this Pod: a few of the Pod, a few
    /// without a Pod, and one of each other Pod whose VMs have like names, up to the number that a reconcile counts.
    pub(super) fn waiting(&self, placement: Placement) -> impl Iterator<Item = &Key> {
        let of_pods = [placement, Placement { pod: 0, ..placement }];
        let few = of_pods.into_iter().flat_map(|it| self.deleted(it).take(FEW + 1));
        few.chain(self.waiting_of_other_pods(placement))
    }

    /// Those of them that are of other Pods.
    pub(super) fn waiting_of_other_pods(&self, placement: Placement) -> impl Iterator<Item = &Key> {
        let pods = alike(placement.pod);
        Stake::DELETED
            .into_iter()
            .flat_map(move |it| self.of_other_pods(placement, it, pods))
            .take(MOST_PODS + 1)
    }

    fn deleted(&self, placement: Placement) -> impl Iterator<Item = &Key> {
        Stake::DELETED.into_iter().flat_map(move |it| keys(self.members.range(of_one(placement, it))))
    }

    /// One PeerPod of each other one of these Pods that names the VM, is being deleted, and whose Pod may run.
    pub(super) fn going_of_other_pods(&self, placement: Placement, pods: Pods) -> impl Iterator<Item = &Key> {
        self.of_other_pods(placement, Stake::Going, pods)
    }

    fn of_other_pods(
        &self,
        Placement { vm, pod }: Placement,
        stake: Stake,
        pods: Pods,
    ) -> impl Iterator<Item = &Key> {
        let mut next = Some(pods[0].max(1));
        let each = iter::from_fn(move || {
            let first = next.filter(|next| *next <= pods[1])?;
            let first = self.members.range(range(vm, [stake; 2], [first, pods[1]])).next();
            next = first.and_then(|member| member.pod.checked_add(1));
            first
        });
        keys(each.filter(move |member| member.pod != pod))
    }

    /// Whether the Pod has a living PeerPod with the finalizer that names another VM.
    pub(super) fn holds_another(&self, placement: Placement) -> bool {
        self.others(placement, i64::MIN, i64::MAX).next().is_some()
    }

    /// Whether the Pod has a living PeerPod that was made after that second.
    pub(super) fn has_younger(&self, Placement { pod, .. }: Placement, than: i64) -> bool {
        let after = than.saturating_add(1);
        let placed =
            Placed { pod, recorded: after, vm: 0 }..=Placed { pod, recorded: i64::MAX, vm: u64::MAX };
        pod != 0
            && (self.placed.range(placed).next().is_some() || self.loose_since(pod, after).next().is_some())
    }

    /// A few of the oldest and a few of the youngest outdated PeerPods of the Pod (see [`Self::outdated`]). The oldest may stay
    /// for good.
    pub(super) fn few_outdated(&self, placement: Placement) -> impl Iterator<Item = &Key> {
        let of_pod = self.loose.range(loose(placement.pod, i64::MIN)..=loose(placement.pod, i64::MAX));
        let youngest = of_pod.rev().take(2 * FEW).filter(move |it| self.has_younger(placement, it.created));
        let youngest = youngest.take(FEW).filter_map(|loose| loose.name.as_ref()).map(|Name(key)| key);
        self.outdated(placement).take(FEW).chain(youngest)
    }

    /// PeerPods of the Pod that have no finalizer and for which a younger one exists, the oldest first.
    pub(super) fn outdated(&self, placement: Placement) -> impl Iterator<Item = &Key> {
        let all = self.loose_since(placement.pod, i64::MIN);
        let outdated = all.take_while(move |loose| self.has_younger(placement, loose.created));
        outdated.filter_map(|loose| loose.name.as_ref()).map(|Name(key)| key)
    }

    /// A few such of each Pod.
    pub(super) fn all_outdated(&self) -> impl Iterator<Item = &Key> {
        let mut next = Some(1);
        let pods = iter::from_fn(move || {
            let pod = self.loose.range(loose(next?, i64::MIN)..).next()?.pod;
            next = pod.checked_add(1);
            Some(pod)
        });
        pods.flat_map(|pod| self.few_outdated(Placement { vm: 0, pod }))
    }

    fn loose_since(&self, pod: PodHash, from: i64) -> impl Iterator<Item = &Loose> {
        let all = self.loose.range(loose(pod, from)..);
        all.take_while(move |loose| loose.pod == pod)
    }

    /// PeerPods that hold one of several VMs of a Pod. Some occur several times.
    pub(super) fn rivals(&self) -> impl Iterator<Item = &Key> {
        let neighbours = self.placed.iter().zip(self.placed.iter().skip(1));
        let rivals = neighbours.filter(|(one, next)| one.pod == next.pod);
        rivals.flat_map(|(one, next)| [one, next]).flat_map(|it| self.held(it.placement()))
    }
}

fn keys<'a>(members: impl Iterator<Item = &'a Member>) -> impl Iterator<Item = &'a Key> {
    members.filter_map(|member| member.name.as_ref()).map(|Name(key)| key)
}
