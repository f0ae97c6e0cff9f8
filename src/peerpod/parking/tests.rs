use std::collections::VecDeque;

use futures::{FutureExt, StreamExt, future::pending};
use prometheus_client::{encoding::text::encode, registry::Registry};
use proptest::prelude::*;

use super::*;

fn key(name: impl std::fmt::Display) -> Key {
    ObjectRef::new(&name.to_string()).within("shop").into()
}

/// The parking, what it requeues, and its metrics.
fn parking(slots: usize) -> (Parking, impl FnMut() -> Vec<String>, Registry) {
    let mut registry = Registry::default();
    let requeues = Requeues::default();
    let parking = Parking::new(slots, requeues.clone(), Metrics::new(&mut registry));
    let mut stream = Box::pin(requeues.stream());
    let called = move || {
        let mut called = Vec::new();
        while let Some(Some(next)) = stream.next().now_or_never() {
            called.push(next.name);
        }
        called.sort();
        called
    };
    (parking, called, registry)
}

#[test]
fn a_peerpod_that_finds_no_slot_is_called_when_one_is_free() {
    let (parking, mut called, _) = parking(1);
    let keys = ["a", "b", "c"].map(key);
    let [first, second, third] = keys.each_ref().map(|key| parking.turn("libvirt", key));
    assert!(first.enter() && !second.enter() && !third.enter());
    assert!(parking.turn("aws", &keys[1]).enter(), "another cloud has slots of its own");
    drop((second, third));
    assert!(called().is_empty());
    drop(first);
    // It changed its cloud for a moment, so it lost its turn.
    assert_eq!(called(), ["c"]);
    let late = key("late");
    assert!(!parking.turn("libvirt", &late).enter(), "the slot is c's");
    assert!(parking.turn("libvirt", &keys[2]).enter());
    assert_eq!(called(), ["late"]);
}

#[test]
fn an_unused_slot_passes_to_the_next_peerpod() {
    let (parking, mut called, _) = parking(1);
    let keys = ["a", "removed", "needless", "last"].map(key);
    {
        let first = parking.turn("libvirt", &keys[0]);
        assert!(first.enter());
        for key in &keys[1..] {
            assert!(!parking.turn("libvirt", key).enter());
        }
    }
    assert_eq!(called(), ["removed"]);
    parking.retain(|key| key.name != "removed");
    assert_eq!(called(), ["needless"]);
    drop(parking.turn("libvirt", &keys[2]));
    assert_eq!(called(), ["last"]);
    parking.forget(&keys[3]);
    assert!(called().is_empty() && parking.turn("libvirt", &keys[0]).enter());
}

#[test]
fn a_crowd_of_one_namespace_lets_others_pass() {
    let (parking, mut called, _) = parking(1);
    let running = key("running");
    let turn = parking.turn("libvirt", &running);
    assert!(turn.enter());
    let crowd: Vec<_> = (0..1000).map(key).collect();
    for key in &crowd {
        assert!(!parking.turn("libvirt", key).enter());
    }
    let other: Key = ObjectRef::new("other").within("garden").into();
    assert!(!parking.turn("libvirt", &other).enter());
    drop(turn);
    assert_eq!(called(), ["0"]);
    let turn = parking.turn("libvirt", &crowd[0]);
    assert!(turn.enter());
    drop(turn);
    assert_eq!(called(), ["other"]);
}

#[tokio::test(start_paused = true)]
async fn stalled_reconciles_free_a_limited_number_of_slots() {
    let (parking, mut called, registry) = parking(2);
    let keys: Vec<_> = (0..6).map(key).collect();
    let turns: Vec<_> = keys.iter().map(|key| parking.turn("libvirt", key)).collect();
    let entered = || turns.iter().map(Turn::enter).filter(|entered| *entered).count();
    assert_eq!(entered(), 2);
    let work = |turn| async move {
        let stalls = Turn::watch(turn, pending::<()>());
        assert!(tokio::time::timeout(STALLED_AFTER * 3, stalls).await.is_err());
    };
    futures::future::join(work(&turns[0]), work(&turns[1])).await;
    assert_eq!(called().len(), 1, "one of two slots is for stalled ones");
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    assert!(text.contains("provider_calls_stalled{provider=\"libvirt\"} 2"), "{text}");
    assert!(text.contains("provider_calls_queued{provider=\"libvirt\"} 3"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_reconcile_stalls_at_its_cloud_alone() {
    let (parking, mut called, _) = parking(1);
    let (slow, next) = (key("slow"), key("next"));
    let turn = parking.turn("libvirt", &slow);
    turn.watch(tokio::time::sleep(STALLED_AFTER * 5)).await;
    assert!(turn.enter() && !parking.turn("libvirt", &next).enter());
    turn.watch(tokio::time::sleep(STALLED_AFTER / 2)).await;
    assert!(called().is_empty());
    turn.watch(tokio::time::sleep(STALLED_AFTER * 2)).await;
    assert_eq!(called(), ["next"]);
}

#[test]
fn where_a_cloud_takes_few_requests_the_others_keep_their_turns() {
    const SLOTS: usize = 16;
    const ROOM: usize = 3;
    let (parking, mut called, _) = parking(SLOTS);
    let crowd = (0..100).map(key);
    let keys: Vec<_> = crowd.chain([ObjectRef::new("other").within("garden").into()]).collect();
    let (mut next, mut under_way): (Vec<_>, VecDeque<Turn<'_>>) = (keys.iter().collect(), VecDeque::new());
    let (mut refused, mut ended) = (0, Vec::new());
    loop {
        for key in next {
            let turn = parking.turn("aws", key);
            if turn.enter() && under_way.len() < ROOM {
                under_way.push_back(turn);
            } else if matches!(*turn.lock(), State::Entered { .. }) {
                turn.leave_slot();
                refused += 1;
            }
        }
        let Some(turn) = under_way.pop_front() else { break };
        ended.push(turn.key.name.clone());
        drop(turn);
        let names = called();
        assert!(names.len() <= 2, "{names:?} are called");
        next = keys.iter().filter(|key| names.contains(&key.name)).collect();
    }
    assert_eq!(ended.len(), keys.len(), "each is done once");
    assert!(refused <= SLOTS + ended.len(), "{refused} were refused");
    let place = ended.iter().position(|name| name == "other").unwrap();
    assert!(place < 2 * SLOTS, "the other namespace was done after {place} of the crowd");
    let all = keys.iter().filter(|key| parking.turn("aws", key).enter());
    assert_eq!(all.count(), keys.len(), "all slots are free again");
}

proptest! {
    /// Whatever happens to PeerPods, in the end all slots are free again, and the queue is empty.
    #[test]
    fn no_slot_is_lost(
        steps in prop::collection::vec(
            (0usize..8, 0usize..2, any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()),
            0..200,
        ),
    ) {
        let (parking, mut called, _) = parking(3);
        let keys: Vec<_> = (0..8).map(key).collect();
        let mut turns: [Option<Turn<'_>>; 8] = Default::default();
        for (which, cloud, ends, enters, stalls, leaves) in steps {
            let turn = &mut turns[which];
            if ends {
                *turn = None;
            } else {
                let turn = turn.get_or_insert_with(|| parking.turn(["aws", "libvirt"][cloud], &keys[which]));
                if enters && turn.enter() && stalls && matches!(*turn.lock(), State::Entered { stalled: None, .. }) {
                    turn.stall();
                }
                if leaves {
                    turn.leave_slot();
                }
            }
        }
        drop(turns);
        // Each PeerPod that is called takes its turn, and then needs no slot any more.
        let mut settle = || {
            loop {
                let names = called();
                if names.is_empty() {
                    return;
                }
                for name in names {
                    drop(parking.turn("aws", &keys[name.parse::<usize>().unwrap()]));
                }
            }
        };
        settle();
        // The timers of those that left their slots when no other reconcile was under way.
        for key in &keys {
            for cloud in ["aws", "libvirt"] {
                let is_parked = parking.lock().get(cloud).is_some_and(|at| at.parked.keys().any(|it| it == key));
                let turn = parking.turn(cloud, key);
                prop_assert!(!is_parked || turn.enter(), "{key:?} waits for nothing at {cloud}");
                drop(turn);
                settle();
            }
        }
        for at in parking.lock().values() {
            prop_assert_eq!((at.free, at.free_stalled), (3, 2));
            prop_assert!(at.parked.is_empty() && at.called.is_empty());
        }
    }
}
