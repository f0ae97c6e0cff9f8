use futures::future::pending;
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
    let called = move || {
        let mut called: Vec<_> = requeues.drain().into_iter().map(|it| it.name).collect();
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
    assert!(first.enter(None) && !second.enter(None) && !third.enter(None));
    assert!(parking.turn("aws", &keys[1]).enter(None), "another cloud has slots of its own");
    drop((second, third));
    assert!(called().is_empty());
    drop(first);
    // It changed its cloud for a moment, so it lost its turn.
    assert_eq!(called(), ["c"]);
    let late = key("late");
    assert!(!parking.turn("libvirt", &late).enter(None), "the slot is c's");
    assert!(parking.turn("libvirt", &keys[2]).enter(None));
    assert_eq!(called(), ["late"]);
}

#[test]
fn an_unused_slot_passes_to_the_next_peerpod() {
    let (parking, mut called, _) = parking(1);
    let keys = ["a", "removed", "needless", "last"].map(key);
    {
        let first = parking.turn("libvirt", &keys[0]);
        assert!(first.enter(None));
        for key in &keys[1..] {
            assert!(!parking.turn("libvirt", key).enter(None));
        }
    }
    assert_eq!(called(), ["removed"]);
    parking.retain(|key| key.name != "removed");
    assert_eq!(called(), ["needless"]);
    drop(parking.turn("libvirt", &keys[2]));
    assert_eq!(called(), ["last"]);
    parking.forget(&keys[3]);
    assert!(called().is_empty() && parking.turn("libvirt", &keys[0]).enter(None));
}

#[test]
fn a_crowd_of_one_namespace_lets_others_pass() {
    let (parking, mut called, _) = parking(1);
    let running = key("running");
    let turn = parking.turn("libvirt", &running);
    assert!(turn.enter(None));
    let crowd: Vec<_> = (0..1000).map(key).collect();
    for key in &crowd {
        assert!(!parking.turn("libvirt", key).enter(None));
    }
    let other: Key = ObjectRef::new("other").within("garden").into();
    assert!(!parking.turn("libvirt", &other).enter(None));
    drop(turn);
    assert_eq!(called(), ["0"]);
    let turn = parking.turn("libvirt", &crowd[0]);
    assert!(turn.enter(None));
    drop(turn);
    assert_eq!(called(), ["other"]);
}

#[tokio::test(start_paused = true)]
async fn stalled_reconciles_free_a_limited_number_of_slots() {
    let (parking, mut called, registry) = parking(2);
    let keys: Vec<_> = (0..6).map(key).collect();
    let turns: Vec<_> = keys.iter().map(|key| parking.turn("libvirt", key)).collect();
    let entered = || turns.iter().map(|turn| turn.enter(None)).filter(|entered| *entered).count();
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
    assert!(turn.enter(None) && !parking.turn("libvirt", &next).enter(None));
    turn.watch(tokio::time::sleep(STALLED_AFTER / 2)).await;
    assert!(called().is_empty());
    turn.watch(tokio::time::sleep(STALLED_AFTER * 2)).await;
    assert_eq!(called(), ["next"]);
}

#[test]
fn where_a_cloud_takes_few_requests_no_more_are_under_way_than_it_says() {
    let (parking, mut called, _) = parking(16);
    let keys: Vec<_> = (0..100).map(key).collect();
    // The reconciles that got a slot.
    let enter = |names: &[String], most| {
        let which = keys.iter().filter(|key| names.contains(&key.name));
        let turns = which.map(|key| parking.turn("aws", key)).filter(|turn| turn.enter(Some(most)));
        turns.collect::<Vec<_>>()
    };
    let all: Vec<_> = keys.iter().map(|key| key.name.clone()).collect();
    let mut under_way = enter(&all, 3);
    assert_eq!(under_way.len(), 3);
    // One that has stalled waits for the cloud, too.
    under_way[0].stall();
    assert!(called().is_empty());
    drop(under_way.pop());
    let next = called();
    assert_eq!(next.len(), 1);
    under_way.extend(enter(&next, 5));
    let next = called();
    assert_eq!((under_way.len(), next.len()), (3, 2), "the cloud takes more");
    under_way.extend(enter(&next, 1));
    for _ in 0..4 {
        drop(under_way.pop());
        assert!(called().is_empty(), "the cloud takes less");
    }
    drop(under_way.pop());
    assert_eq!(called().len(), 1, "when none is under way, the next one is called");
}

#[test]
fn while_a_cloud_wants_no_calls_no_parked_peerpod_is_called() {
    let (parking, mut called, _) = parking(2);
    let keys: Vec<_> = (0..7).map(key).collect();
    let turns: Vec<_> = keys[..5].iter().map(|key| parking.turn("aws", key)).collect();
    let entered = turns.iter().filter(|turn| turn.enter(None)).count();
    assert_eq!(entered, 2);
    drop(turns);
    let called_before = called();
    assert_eq!(called_before, ["2", "3"]);
    for key in &keys[2..4] {
        assert!(parking.turn("aws", key).enter(Some(0)), "it has its slot already");
    }
    assert!(!parking.turn("aws", &keys[5]).enter(Some(0)), "others are parked");
    assert!(called().is_empty());
    // The time is over, and one that was refused returns.
    assert!(!parking.turn("aws", &keys[2]).enter(None));
    assert_eq!(called(), ["4", "5"]);
    for key in &keys[4..6] {
        drop(parking.turn("aws", key));
    }
    assert_eq!(called(), ["2"]);
    drop(parking.turn("aws", &keys[2]));
    let first = parking.turn("aws", &keys[6]);
    assert!(first.enter(Some(0)), "where none is parked, one finds out that the cloud wants no calls");
    assert!(!parking.turn("aws", &keys[0]).enter(Some(0)), "one at a time");
}

proptest! {
    /// Whatever happens to PeerPods, in the end all slots are free again, and the queue is empty.
    #[test]
    fn no_slot_is_lost(
        steps in prop::collection::vec(
            (0usize..8, 0usize..2, any::<bool>(), any::<bool>(), any::<bool>(), prop::option::of(0usize..4)),
            0..200,
        ),
    ) {
        let (parking, mut called, _) = parking(3);
        let keys: Vec<_> = (0..8).map(key).collect();
        let mut turns: [Option<Turn<'_>>; 8] = Default::default();
        for (which, cloud, ends, enters, stalls, most) in steps {
            let turn = &mut turns[which];
            if ends {
                *turn = None;
            } else {
                let turn = turn.get_or_insert_with(|| parking.turn(["aws", "libvirt"][cloud], &keys[which]));
                if enters && turn.enter(most) && stalls && matches!(*turn.state.lock(), State::Entered { stalled: None, .. }) {
                    turn.stall();
                }
            }
        }
        drop(turns);
        // Both clouds take calls again.
        for cloud in ["aws", "libvirt"] {
            parking.turn(cloud, &keys[0]).enter(None);
        }
        // Each PeerPod that is called takes its turn, and then needs no slot any more.
        loop {
            let names = called();
            if names.is_empty() {
                break;
            }
            for name in names {
                drop(parking.turn("aws", &keys[name.parse::<usize>().unwrap()]));
            }
        }
        for at in parking.0.clouds.lock().values() {
            prop_assert_eq!((at.taken, at.stalled), (0, 0));
            prop_assert!(at.parked.is_empty() && at.called.is_empty());
        }
    }
}
