//! PeerPods ordered by the VM that they name, and VMs ordered by the Pod that they are recorded for *(no client)*.
//!
//! A tenant who may create PeerPods may create thousands that name one Pod or one VM. So every query here takes a few steps down
//! an ordered set and returns a few PeerPods at most, however many there are.

use std::{cmp::Ordering, collections::BTreeSet, iter, num::NonZeroU64};

use super::{
    Key,
    hashes::{ALL_PODS, PodHash, PodVm, Pods, same_stem},
};

/// The most relatives that one event asks for or requeues. A timer reconciles a PeerPod with more newer siblings (see
/// [`Siblings`](super::Siblings)), so no chain of changes has to reach all of them.
pub(in crate::peerpod) const MOST_RELATIVES: usize = 4;

/// The most other Pods to read or requeue for one VM. Usually a VM has one PeerPod. When deleted PeerPods of more other Pods than
/// this name the VM, the operator reads none of these Pods and takes one of the PeerPods as a claim.
pub(in crate::peerpod) const MOST_PODS: usize = 15;

/// What a PeerPod is to the VM that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    /// It is not being deleted and has the finalizer: it counts as the record of its VM among its siblings.
    Record,
    /// It is not being deleted and has no finalizer.
    WithoutFinalizer,
    /// It is being deleted.
    Deleting,
    /// It is being deleted, and its own Pod has ended: it claims no VM.
    Ended,
}

impl Role {
    const ALL: [Self; 4] = [Self::Record, Self::WithoutFinalizer, Self::Deleting, Self::Ended];
    const DELETED: [Self; 2] = [Self::Deleting, Self::Ended];

    /// As the watch shows it: the end of its Pod is not in the object.
    pub(super) fn as_written(self) -> Self {
        if self == Self::Ended { Self::Deleting } else { self }
    }
}

/// One PeerPod of a VM. The order serves all queries: first those that are not being deleted, then by Pod, the oldest first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Member {
    vm: NonZeroU64,
    role: Role,
    pod: Option<PodHash>,
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
pub(super) struct RecordedVm {
    pod: PodHash,
    /// The second of the first record.
    pub(super) recorded: i64,
    vm: NonZeroU64,
}

impl RecordedVm {
    pub(super) fn pod_vm(self) -> PodVm {
        PodVm { vm: Some(self.vm), pod: Some(self.pod) }
    }
}

/// A living PeerPod of a Pod without the finalizer. cloud-api-adaptor leaves one for each start of the Pod that failed.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct WithoutFinalizer {
    pod: PodHash,
    created: i64,
    /// `None` in bounds alone.
    name: Option<Name>,
}

impl WithoutFinalizer {
    /// Sorts before all of this Pod and this second.
    fn bound(pod: PodHash, created: i64) -> Self {
        Self { pod, created, name: None }
    }
}

#[derive(Debug, Default)]
pub(super) struct Relatives {
    members: BTreeSet<Member>,
    vms: BTreeSet<RecordedVm>,
    without_finalizer: BTreeSet<WithoutFinalizer>,
}

impl Relatives {
    pub(super) fn insert(&mut self, pod_vm: PodVm, role: Role, created: i64, key: Key) {
        if role == Role::WithoutFinalizer
            && let Some((_, pod)) = pod_vm.whole()
        {
            self.without_finalizer.insert(WithoutFinalizer { pod, created, name: Some(Name(key.clone())) });
        }
        let PodVm { vm, pod } = pod_vm;
        if let Some(vm) = vm {
            self.change(pod_vm, |members| {
                members.insert(Member { vm, role, pod, created, name: Some(Name(key)) })
            });
        }
    }

    pub(super) fn remove(&mut self, pod_vm: PodVm, role: Role, created: i64, key: Key) {
        if role == Role::WithoutFinalizer
            && let Some((_, pod)) = pod_vm.whole()
        {
            self.without_finalizer.remove(&WithoutFinalizer { pod, created, name: Some(Name(key.clone())) });
        }
        let PodVm { vm, pod } = pod_vm;
        if let Some(vm) = vm {
            self.change(pod_vm, |members| {
                members.remove(&Member { vm, role, pod, created, name: Some(Name(key)) })
            });
        }
    }

    fn change(&mut self, pod_vm: PodVm, change: impl FnOnce(&mut BTreeSet<Member>) -> bool) {
        let before = self.recorded_vm(pod_vm);
        change(&mut self.members);
        let after = self.recorded_vm(pod_vm);
        if before != after {
            if let Some(vm) = before {
                self.vms.remove(&vm);
            }
            if let Some(vm) = after {
                self.vms.insert(vm);
            }
        }
    }

    /// The PeerPods of these Pods that name the VM and have this role.
    fn members_of(
        &self,
        vm: Option<NonZeroU64>,
        role: Role,
        pods: Pods,
    ) -> impl DoubleEndedIterator<Item = &Member> {
        let (first, last) = pods.into_inner();
        let bound = |vm, pod, created| Member { vm, role, pod, created, name: None };
        let all = vm.map(|vm| bound(vm, first, i64::MIN)..=bound(vm, last, i64::MAX));
        all.into_iter().flat_map(move |all| self.members.range(all))
    }

    /// Those of one Pod, or without a Pod.
    fn members_of_one(&self, PodVm { vm, pod }: PodVm, role: Role) -> impl Iterator<Item = &Member> {
        self.members_of(vm, role, pod..=pod)
    }

    /// The VM with the time of its first record, if it has a record now.
    pub(super) fn recorded_vm(&self, pod_vm: PodVm) -> Option<RecordedVm> {
        let (vm, pod) = pod_vm.whole()?;
        self.records(pod_vm).next()?;
        Some(RecordedVm { pod, recorded: self.recorded(pod_vm)?, vm })
    }

    /// When the VM was first recorded for the Pod. Another record does not make it younger.
    pub(super) fn recorded(&self, pod_vm: PodVm) -> Option<i64> {
        let first = |role| self.members_of_one(pod_vm, role).next().map(|member| member.created);
        Role::ALL.into_iter().filter_map(first).min()
    }

    pub(super) fn is_known(&self, pod_vm: PodVm) -> bool {
        self.recorded(pod_vm).is_some()
    }

    /// Whether a PeerPod of another Pod, or of none, names the VM.
    pub(super) fn is_contested(&self, pod_vm: PodVm) -> bool {
        Role::ALL.into_iter().any(|role| {
            let mut all = self.members_of(pod_vm.vm, role, ALL_PODS);
            [all.next(), all.next_back()].into_iter().flatten().any(|member| member.pod != pod_vm.pod)
        })
    }

    /// The other VMs of the Pod that were recorded since then, the newest first.
    pub(super) fn newer(&self, pod_vm: PodVm, since: i64) -> impl Iterator<Item = RecordedVm> {
        self.others(pod_vm, since, i64::MAX)
    }

    /// The other VMs of the Pod that were recorded until then, the newest first.
    pub(super) fn older(&self, pod_vm: PodVm, until: i64) -> impl Iterator<Item = RecordedVm> {
        self.others(pod_vm, i64::MIN, until)
    }

    fn others(&self, PodVm { vm, pod }: PodVm, from: i64, to: i64) -> impl Iterator<Item = RecordedVm> {
        let all = pod.into_iter().flat_map(move |pod| self.vms_of(pod, from, to)).rev();
        all.copied().filter(move |it| Some(it.vm) != vm)
    }

    /// The VMs of the Pod that were recorded in these seconds and between them.
    fn vms_of(&self, pod: PodHash, from: i64, to: i64) -> impl DoubleEndedIterator<Item = &RecordedVm> {
        let bound = |recorded, vm| RecordedVm { pod, recorded, vm };
        self.vms.range(bound(from, NonZeroU64::MIN)..=bound(to, NonZeroU64::MAX))
    }

    /// The records of the VM, the oldest first.
    pub(super) fn records(&self, pod_vm: PodVm) -> impl Iterator<Item = &Key> {
        keys(self.members_of_one(pod_vm, Role::Record))
    }

    /// Those of these Pods that record the VM.
    pub(super) fn recording(&self, vm: Option<NonZeroU64>, pods: Pods) -> impl Iterator<Item = &Key> {
        keys(self.members_of(vm, Role::Record, pods))
    }

    /// Those of these Pods that name the VM and are not being deleted.
    pub(super) fn living(&self, vm: Option<NonZeroU64>, pods: Pods) -> impl Iterator<Item = &Key> {
        let roles = [Role::Record, Role::WithoutFinalizer].into_iter();
        roles.flat_map(move |role| keys(self.members_of(vm, role, pods.clone())))
    }

    /// PeerPods that name the VM, are being deleted, and may have waited for a PeerPod of this Pod: a few of the Pod, a few
    /// without a Pod, and one of each other Pod whose VMs have like names, up to the number that a reconcile counts.
    pub(super) fn waiting(&self, pod_vm: PodVm) -> impl Iterator<Item = &Key> {
        let of_pods = [pod_vm, PodVm { pod: None, ..pod_vm }];
        let few = of_pods.into_iter().flat_map(|it| self.deleted(it).take(MOST_RELATIVES + 1));
        few.chain(self.waiting_of_other_pods(pod_vm))
    }

    /// Those of them that are of other Pods.
    pub(super) fn waiting_of_other_pods(&self, pod_vm: PodVm) -> impl Iterator<Item = &Key> {
        let of_role = move |role| self.of_other_pods(pod_vm, role, same_stem(pod_vm.pod));
        Role::DELETED.into_iter().flat_map(of_role).take(MOST_PODS + 1)
    }

    fn deleted(&self, pod_vm: PodVm) -> impl Iterator<Item = &Key> {
        Role::DELETED.into_iter().flat_map(move |it| keys(self.members_of_one(pod_vm, it)))
    }

    /// One PeerPod of each other one of these Pods that names the VM, is being deleted, and whose Pod may run.
    pub(super) fn deleting_of_other_pods(&self, pod_vm: PodVm, pods: Pods) -> impl Iterator<Item = &Key> {
        self.of_other_pods(pod_vm, Role::Deleting, pods)
    }

    fn of_other_pods(&self, PodVm { vm, pod }: PodVm, role: Role, pods: Pods) -> impl Iterator<Item = &Key> {
        let (first, last) = pods.into_inner();
        // A PeerPod without a Pod is not of another Pod.
        let mut next = Some(first.unwrap_or(PodHash::FIRST));
        let each = iter::from_fn(move || {
            let from = next.filter(|next| Some(*next) <= last)?;
            let first = self.members_of(vm, role, Some(from)..=last).next();
            next = first.and_then(|member| member.pod?.next());
            first
        });
        keys(each.filter(move |member| member.pod != pod))
    }

    /// Whether the Pod has a living PeerPod with the finalizer that names another VM.
    pub(super) fn has_another_vm(&self, pod_vm: PodVm) -> bool {
        self.others(pod_vm, i64::MIN, i64::MAX).next().is_some()
    }

    /// Whether the Pod has a living PeerPod that was made after that second.
    pub(super) fn has_younger(&self, pod: PodHash, than: i64) -> bool {
        let after = than.saturating_add(1);
        self.vms_of(pod, after, i64::MAX).next().is_some()
            || self.without_finalizer_since(pod, after).next().is_some()
    }

    /// A few of the oldest and a few of the youngest outdated PeerPods of the Pod (see [`Self::outdated`]). The oldest may stay
    /// for good.
    pub(super) fn few_outdated(&self, pod: PodHash) -> impl Iterator<Item = &Key> {
        let bound = |created| WithoutFinalizer::bound(pod, created);
        let of_pod = self.without_finalizer.range(bound(i64::MIN)..=bound(i64::MAX));
        let youngest =
            of_pod.rev().take(2 * MOST_RELATIVES).filter(move |it| self.has_younger(pod, it.created));
        let youngest = youngest.take(MOST_RELATIVES).filter_map(|it| it.name.as_ref()).map(|Name(key)| key);
        self.outdated(pod).take(MOST_RELATIVES).chain(youngest)
    }

    /// PeerPods of the Pod that have no finalizer and for which a younger one exists, the oldest first.
    fn outdated(&self, pod: PodHash) -> impl Iterator<Item = &Key> {
        let all = self.without_finalizer_since(pod, i64::MIN);
        let outdated = all.take_while(move |it| self.has_younger(pod, it.created));
        outdated.filter_map(|it| it.name.as_ref()).map(|Name(key)| key)
    }

    /// A few such of each Pod.
    pub(super) fn all_outdated(&self) -> impl Iterator<Item = &Key> {
        let mut next = Some(PodHash::FIRST);
        let pods = iter::from_fn(move || {
            let pod = self.without_finalizer.range(WithoutFinalizer::bound(next?, i64::MIN)..).next()?.pod;
            next = pod.next();
            Some(pod)
        });
        pods.flat_map(|pod| self.few_outdated(pod))
    }

    fn without_finalizer_since(&self, pod: PodHash, from: i64) -> impl Iterator<Item = &WithoutFinalizer> {
        let all = self.without_finalizer.range(WithoutFinalizer::bound(pod, from)..);
        all.take_while(move |it| it.pod == pod)
    }

    /// PeerPods that record one of several VMs of a Pod. Some occur several times.
    pub(super) fn rivals(&self) -> impl Iterator<Item = &Key> {
        let neighbours = self.vms.iter().zip(self.vms.iter().skip(1));
        let rivals = neighbours.filter(|(one, next)| one.pod == next.pod);
        rivals.flat_map(|(one, next)| [one, next]).flat_map(|it| self.records(it.pod_vm()))
    }
}

fn keys<'a>(members: impl Iterator<Item = &'a Member>) -> impl Iterator<Item = &'a Key> {
    members.filter_map(|member| member.name.as_ref()).map(|Name(key)| key)
}
