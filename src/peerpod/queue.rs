//! A queue of PeerPods in which namespaces take turns *(no client)*.

use std::collections::{BTreeMap, HashMap};

use kube::runtime::reflector::ObjectRef;

use super::index::Key;
use crate::api::v1alpha1::PeerPod;

/// A queue of PeerPods in which namespaces take turns: the next one is the first of the namespace that has waited longest for its
/// turn. Within a namespace, the PeerPods keep the order in which they came. So thousands of PeerPods of one namespace delay one
/// of another namespace by a single turn. Each PeerPod is in the queue once, with a value of `T`.
#[derive(Debug)]
pub(super) struct Queue<T> {
    /// The number of the last PeerPod that came.
    arrivals: u64,
    /// The number of the last turn that was given out.
    turns: u64,
    /// The namespace that has each turn. Only namespaces with waiting PeerPods have one, and each of them has exactly one.
    by_turn: BTreeMap<u64, Namespace>,
    namespaces: HashMap<Namespace, Waiting>,
    values: HashMap<Key, (u64, T)>,
}

type Namespace = Option<String>;

/// What waits in one namespace.
#[derive(Debug)]
struct Waiting {
    turn: u64,
    /// By the number of their arrival, never empty.
    keys: BTreeMap<u64, Key>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            arrivals: 0,
            turns: 0,
            by_turn: BTreeMap::new(),
            namespaces: HashMap::new(),
            values: HashMap::new(),
        }
    }
}

impl<T> Queue<T> {
    /// Adds a PeerPod at the end of its namespace, unless it is in the queue.
    pub(super) fn push(&mut self, key: &Key, value: impl FnOnce() -> T) {
        if self.values.contains_key(key) {
            return;
        }
        self.arrivals += 1;
        self.values.insert(key.clone(), (self.arrivals, value()));
        if let Some(waiting) = self.namespaces.get_mut(&key.namespace) {
            waiting.keys.insert(self.arrivals, key.clone());
            return;
        }
        // A namespace that comes back gets a new turn, behind all that wait. Otherwise one that always has one PeerPod here would
        // always be the next one.
        self.turns += 1;
        self.by_turn.insert(self.turns, key.namespace.clone());
        let keys = BTreeMap::from([(self.arrivals, key.clone())]);
        self.namespaces.insert(key.namespace.clone(), Waiting { turn: self.turns, keys });
    }

    /// Takes out the next PeerPod. Its namespace goes to the end.
    pub(super) fn pop(&mut self) -> Option<Key> {
        let (_, namespace) = self.by_turn.pop_first()?;
        let waiting = self.namespaces.get_mut(&namespace)?;
        let (_, key) = waiting.keys.pop_first()?;
        self.values.remove(&key);
        if waiting.keys.is_empty() {
            self.namespaces.remove(&namespace);
        } else {
            self.turns += 1;
            waiting.turn = self.turns;
            self.by_turn.insert(self.turns, namespace);
        }
        self.give_memory_back();
        Some(key)
    }

    /// Takes out this PeerPod. Its namespace keeps its turn for the others.
    pub(super) fn remove(&mut self, key: &ObjectRef<PeerPod>) {
        let Some((arrival, _)) = self.values.remove(key) else { return };
        let Some(waiting) = self.namespaces.get_mut(&key.namespace) else { return };
        waiting.keys.remove(&arrival);
        if waiting.keys.is_empty() {
            self.by_turn.remove(&waiting.turn);
            self.namespaces.remove(&key.namespace);
        }
        self.give_memory_back();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// All PeerPods, in no order.
    pub(super) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.values.keys()
    }

    /// An empty map keeps the memory of the thousands of entries that it had.
    fn give_memory_back(&mut self) {
        if self.is_empty() {
            self.values = HashMap::new();
            self.namespaces = HashMap::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn key(namespace: impl std::fmt::Display, name: impl std::fmt::Display) -> Key {
        ObjectRef::new(&name.to_string()).within(&namespace.to_string()).into()
    }

    fn queue(keys: impl IntoIterator<Item = Key>) -> Queue<()> {
        let mut queue = Queue::default();
        for key in keys {
            queue.push(&key, || ());
        }
        queue
    }

    #[test]
    fn a_peerpod_of_another_namespace_waits_for_one_other_at_most() {
        let mut queue = queue((0..5000).map(|number| key("crowd", number)));
        for round in 0..100 {
            let other = key("other", round);
            queue.push(&other, || ());
            let next = [queue.pop(), queue.pop()].map(Option::unwrap);
            assert!(next.contains(&other), "{next:?} in round {round}");
        }
        assert_eq!(queue.keys().count(), 4900);
    }

    #[test]
    fn a_namespace_that_comes_back_again_and_again_does_not_keep_others_waiting() {
        let mut queue = queue((0..10).map(|number| key("patient", number)));
        let mut patient = 0;
        for round in 0..20 {
            queue.push(&key("hasty", round), || ());
            patient += usize::from(queue.pop().unwrap().namespace.as_deref() == Some("patient"));
        }
        assert_eq!(patient, 10);
    }

    #[test]
    fn a_removed_peerpod_takes_no_turn_from_its_namespace() {
        let mut queue = queue((0..3).flat_map(|number| ["a", "b"].map(|namespace| key(namespace, number))));
        queue.remove(&key("a", 0));
        queue.remove(&key("unknown", 0));
        let names: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|it| it.name.clone()).collect();
        assert_eq!(names, ["1", "0", "2", "1", "2"]);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push(usize, usize),
        Remove(usize, usize),
        Pop,
    }

    fn step() -> impl Strategy<Value = Step> {
        let which = || (0usize..4, 0usize..6);
        prop_oneof![
            4 => which().prop_map(|(namespace, name)| Step::Push(namespace, name)),
            1 => which().prop_map(|(namespace, name)| Step::Remove(namespace, name)),
            2 => Just(Step::Pop),
        ]
    }

    proptest! {
        /// Nothing is lost or handed out twice, each namespace is first in, first out, and no namespace is passed over while
        /// another one has two turns more.
        #[test]
        fn turns_are_fair(steps in prop::collection::vec(step(), 0..200)) {
            let mut queue = Queue::default();
            let mut model: [VecDeque<usize>; 4] = Default::default();
            // For each namespace that waits, the turns of the others since it came or had its own.
            let mut passed = [[0; 4]; 4];
            let drain = std::iter::repeat_n(Step::Pop, 30);
            for step in steps.into_iter().chain(drain) {
                match step {
                    Step::Push(namespace, name) => {
                        queue.push(&key(namespace, name), || ());
                        if !model[namespace].contains(&name) {
                            model[namespace].push_back(name);
                        }
                    }
                    Step::Remove(namespace, name) => {
                        queue.remove(&key(namespace, name));
                        model[namespace].retain(|it| *it != name);
                    }
                    Step::Pop => {
                        let Some(popped) = queue.pop() else {
                            prop_assert!(model.iter().all(VecDeque::is_empty));
                            continue;
                        };
                        let namespace: usize = popped.namespace.as_ref().unwrap().parse().unwrap();
                        let name = popped.name.parse().unwrap();
                        prop_assert_eq!(model[namespace].pop_front(), Some(name));
                        passed[namespace] = [0; 4];
                        for (waiting, by) in passed.iter_mut().enumerate() {
                            by[namespace] += usize::from(waiting != namespace);
                            prop_assert!(model[waiting].is_empty() || by[namespace] <= 1, "{waiting} waits");
                        }
                    }
                }
                for (waiting, by) in passed.iter_mut().enumerate() {
                    if model[waiting].is_empty() {
                        *by = [0; 4];
                    }
                }
                let known = model.iter().filter(|it| !it.is_empty()).count();
                prop_assert_eq!((queue.namespaces.len(), queue.by_turn.len()), (known, known));
                prop_assert_eq!(queue.keys().count(), model.iter().map(VecDeque::len).sum::<usize>());
            }
            prop_assert!(queue.is_empty());
        }
    }
}
