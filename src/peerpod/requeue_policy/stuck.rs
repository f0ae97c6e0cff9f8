//! PeerPods that make no progress by themselves, and how often to reconcile each of them *(no client, no clock)*.

use std::{collections::HashMap, time::Duration};

use kube::runtime::reflector::ObjectRef;

use crate::api::v1alpha1::PeerPod;

/// For how many VMs a second each cloud is asked at most for its stuck PeerPods, however many there are: each question costs requests of
/// the cloud's quota, and one tenant can make tens of thousands that never get further.
pub(super) const VMS_A_SECOND: u32 = 10;

/// Which PeerPods are stuck at which cloud.
#[derive(Debug, Default)]
pub(super) struct Stuck {
    /// The cloud of each.
    clouds: HashMap<ObjectRef<PeerPod>, &'static str>,
    counts: HashMap<&'static str, Counts>,
}

type Namespace = Option<String>;

/// How many are stuck at one cloud.
#[derive(Debug, Default)]
struct Counts {
    all: usize,
    /// Only namespaces with one.
    namespaces: HashMap<Namespace, usize>,
}

impl Stuck {
    /// Notes that the PeerPod is stuck at this cloud. Returns when to reconcile it again, at the earliest, if a reconcile asks for one VM.
    pub(super) fn add(&mut self, key: &ObjectRef<PeerPod>, cloud: &'static str) -> Duration {
        if self.clouds.get(key) != Some(&cloud) {
            self.remove(key);
            self.clouds.insert(key.clone(), cloud);
            let counts = self.counts.entry(cloud).or_default();
            counts.all += 1;
            *counts.namespaces.entry(key.namespace.clone()).or_default() += 1;
        }
        self.counts.get(cloud).map(|counts| counts.pause(&key.namespace)).unwrap_or_default()
    }

    /// Notes that the PeerPod is not stuck.
    pub(super) fn remove(&mut self, key: &ObjectRef<PeerPod>) {
        let Some(cloud) = self.clouds.remove(key) else { return };
        let Some(counts) = self.counts.get_mut(cloud) else { return };
        counts.all -= 1;
        if let Some(count) = counts.namespaces.get_mut(&key.namespace) {
            *count -= 1;
            if *count == 0 {
                counts.namespaces.remove(&key.namespace);
            }
        }
        if counts.all == 0 {
            self.counts.remove(cloud);
        }
        if self.clouds.is_empty() {
            // An empty map keeps the memory of the thousands of entries that it had.
            self.clouds = HashMap::new();
        }
    }

    /// Forgets all PeerPods but these.
    pub(super) fn retain(&mut self, exists: impl Fn(&ObjectRef<PeerPod>) -> bool) {
        let gone: Vec<_> = self.clouds.keys().filter(|key| !exists(key)).cloned().collect();
        for key in gone {
            self.remove(&key);
        }
    }
}

impl Counts {
    /// The pause between two reconciles of each stuck PeerPod of this namespace.
    ///
    /// Half of the reconciles are for all alike. The other half is for all namespaces alike, so that the one stuck PeerPod of a tenant is
    /// not reconciled as rarely as the thousands of another. The sum stays at [`VMS_A_SECOND`].
    fn pause(&self, namespace: &Namespace) -> Duration {
        let number = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
        let own = self.namespaces.get(namespace).copied().unwrap_or_default().max(1);
        let shares =
            1.0 / number(self.all.max(1)) + 1.0 / (number(self.namespaces.len().max(1)) * number(own));
        Duration::from_secs_f64(2.0 / (f64::from(VMS_A_SECOND) * shares))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(namespace: usize, name: usize) -> ObjectRef<PeerPod> {
        ObjectRef::new(&name.to_string()).within(&namespace.to_string())
    }

    /// The pauses of those that are stuck at this cloud, this many in each namespace.
    fn pauses(counts: &[usize]) -> Vec<f64> {
        let mut stuck = Stuck::default();
        for (namespace, count) in counts.iter().enumerate() {
            for name in 0..*count {
                stuck.add(&key(namespace, name), "gcp");
            }
        }
        (0..counts.len()).map(|namespace| stuck.add(&key(namespace, 0), "gcp").as_secs_f64()).collect()
    }

    #[test]
    fn a_crowd_waits_for_itself_and_for_its_own_cloud_alone() {
        let near = |pause: f64, expected: f64| assert!((pause / expected - 1.0).abs() < 0.01, "{pause} s");
        near(pauses(&[1])[0], 0.1);
        near(pauses(&[20_000])[0], 2000.0);
        let [crowd, other] = pauses(&[20_000, 1])[..] else { panic!("two namespaces") };
        near(crowd, 2667.0);
        near(other, 0.4);
        let mut stuck = Stuck::default();
        for name in 0..20_000 {
            stuck.add(&key(0, name), "gcp");
        }
        near(stuck.add(&key(0, 0), "azure").as_secs_f64(), 0.1);
    }

    proptest! {
        /// However they are spread over namespaces, the reconciles of a cloud's PeerPods stay below the limit.
        #[test]
        fn the_total_rate_of_reconciles_is_bounded(counts in prop::collection::vec(1u16..100, 1..10)) {
            let pauses = pauses(&counts.iter().map(|count| (*count).into()).collect::<Vec<_>>());
            let rate: f64 = counts.iter().zip(&pauses).map(|(count, pause)| f64::from(*count) / pause).sum();
            prop_assert!(rate <= f64::from(VMS_A_SECOND) * 1.001, "{rate} a second");
        }

        /// What is no longer stuck leaves no trace, whatever happened before.
        #[test]
        fn removed_peerpods_leave_no_counts(steps in prop::collection::vec((0usize..3, 0usize..3, 0usize..3), 0..60)) {
            let mut stuck = Stuck::default();
            for (namespace, name, does) in steps {
                match does {
                    0 => stuck.remove(&key(namespace, name)),
                    cloud => drop(stuck.add(&key(namespace, name), ["gcp", "azure"][cloud - 1])),
                }
                let all: usize = stuck.counts.values().map(|it| it.all).sum();
                let by_namespace: usize = stuck.counts.values().flat_map(|it| it.namespaces.values()).sum();
                prop_assert_eq!((all, by_namespace), (stuck.clouds.len(), stuck.clouds.len()));
            }
            stuck.retain(|_| false);
            prop_assert!(stuck.clouds.is_empty() && stuck.counts.is_empty());
        }
    }
}
