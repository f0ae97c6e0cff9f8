//! Random worlds: clouds that several clusters share, as one of them sees them round after round.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use serde_json::json;

use super::{
    candidates::{Candidate, Candidates, Found},
    first_seen::{FirstSeen, Moment},
    plan::{Patience, SweepVerdict, UntrackedFinding, findings},
};
use crate::{
    api::v1alpha1::PeerPod,
    provider::{
        CLOUDS, Cloud, ClusterClaims, ClusterProof, InstanceId, Listed, NAME_LIMIT, PowerState, Resource,
        VmRef, ownership::stem_of,
    },
};

const INTERVAL: Duration = Duration::from_secs(300);
const GRACE: Duration = Duration::from_secs(1800);

/// The tag of this cluster, and of another one.
const TAGS: [&str; 2] = ["ours", "theirs"];

fn cloud() -> &'static Cloud {
    Cloud::named("aws").unwrap()
}

/// Something at the cloud, for this Pod.
#[derive(Clone, Debug)]
struct Thing {
    pod: usize,
    kind: Resource,
    bears: Bears,
    /// The number of the VM that it came with, if it is none itself. Taken modulo the number of things.
    of: usize,
    /// Whether its name is none of cloud-api-adaptor's.
    odd: bool,
    state: PowerState,
    /// Whose tag it has.
    tag: Option<usize>,
    /// How long before the first round it was made, by the cloud's clock, which may be wrong. In seconds.
    age: Option<i64>,
    /// The first round that shows it.
    from: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bears {
    Name,
    Id,
    Nothing,
}

/// A PeerPod of this Pod that records the VM with this number, if any.
#[derive(Clone, Debug)]
struct Record {
    pod: usize,
    vm: Option<usize>,
    finalizer: bool,
    owned: bool,
}

/// Everything: names of Pods, and before which rounds they exist.
#[derive(Clone, Debug)]
struct World {
    pods: Vec<String>,
    exist: Vec<usize>,
    things: Vec<Thing>,
    records: Vec<Record>,
    exclusive: bool,
}

/// The rounds of a world.
const ROUNDS: usize = 8;

prop_compose! {
    fn any_thing()(
        pod in 0usize..4,
        kind in prop_oneof![6 => Just(Resource::Vm), 1 => Just(Resource::Disk), 1 => Just(Resource::Address), 1 => Just(Resource::Interface)],
        bears in prop::sample::select(vec![Bears::Name, Bears::Id, Bears::Nothing]),
        of in 0usize..8,
        odd in prop::bool::weighted(0.1),
        state in prop::sample::select(vec![PowerState::Running, PowerState::Stopped, PowerState::Leaving, PowerState::Unknown]),
        tag in prop::option::of(0usize..2),
        age in prop::option::of(-7200i64..7200),
        from in prop_oneof![3 => Just(0usize), 2 => 1..ROUNDS],
    ) -> Thing {
        let state = if kind == Resource::Vm { state } else { PowerState::Unknown };
        Thing { pod, kind, bears, of, odd, state, tag, age, from }
    }
}

prop_compose! {
    fn any_record()(
        pod in 0usize..4,
        vm in prop::option::of(0usize..6),
        finalizer in any::<bool>(),
        owned in prop::bool::weighted(0.8),
    ) -> Record {
        Record { pod, vm, finalizer, owned }
    }
}

prop_compose! {
    fn any_world()(
        pods in prop::collection::vec(prop_oneof!["[a-c]", "[a-b]-[a-b]", "[a-b]\\.[a-b]", Just("x".repeat(200)), Just("x".repeat(199) + "y")], 4),
        exist in prop::collection::vec(prop_oneof![3 => Just(0), 1 => 1..ROUNDS, 1 => Just(ROUNDS)], 4),
        things in prop::collection::vec(any_thing(), 1..8),
        records in prop::collection::vec(any_record(), 0..3),
        exclusive in prop::bool::weighted(0.3),
    ) -> World {
        World { pods, exist, things, records, exclusive }
    }
}

impl World {
    /// The number of the VM that the thing with this number is, or came with.
    fn vm_of(&self, number: usize) -> usize {
        let thing = &self.things[number];
        if thing.kind == Resource::Vm { number } else { thing.of % self.things.len() }
    }

    /// The name of the VM with this number, which may never have existed.
    fn name(&self, number: usize) -> String {
        let thing = &self.things[number];
        let stem = stem_of(&self.pods[thing.pod], NAME_LIMIT);
        if thing.odd { format!("{stem}template") } else { format!("{stem}{number:08x}") }
    }

    fn id(number: usize) -> String {
        format!("i-{number:017x}")
    }

    fn listed(&self, number: usize, start: Timestamp) -> Listed {
        let thing = &self.things[number];
        let created = thing.age.map(|age| start - SignedDuration::from_secs(age));
        let tags = thing.tag.map(|tag| ("cluster".to_owned(), TAGS[tag].to_owned()));
        let base = match thing.kind {
            Resource::Vm => Listed::new(thing.kind, Self::id(number), self.name(number)),
            kind => Listed::new(kind, format!("r-{number}"), format!("r-{number}")),
        };
        let vm = (thing.kind != Resource::Vm).then_some(()).and(match thing.bears {
            Bears::Name => Some(VmRef::Name(self.name(self.vm_of(number)))),
            Bears::Id => Some(VmRef::Id(Self::id(self.vm_of(number)))),
            Bears::Nothing => None,
        });
        Listed { created, state: thing.state, vm, tags: tags.into_iter().collect(), ..base }
    }

    fn peerpods(&self) -> Vec<PeerPod> {
        let peerpod = |record: &Record| {
            let pod = &self.pods[record.pod];
            let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": pod, "uid": "u" });
            serde_json::from_value(json!({
                "metadata": {
                    "name": "p",
                    "finalizers": record.finalizer.then_some("peer.pod/finalizer").into_iter().collect::<Vec<_>>(),
                    "ownerReferences": record.owned.then_some(owner).into_iter().collect::<Vec<_>>(),
                },
                "spec": { "cloudProvider": "aws", "instanceID": record.vm.map(Self::id).unwrap_or_default() },
            }))
            .unwrap()
        };
        self.records.iter().map(peerpod).collect()
    }

    /// What each round finds. The names of Pods are `spared` by whether they exist.
    fn rounds(&self) -> Vec<Vec<UntrackedFinding>> {
        let claims = ClusterClaims::of_tag("cluster", TAGS[0], self.exclusive);
        let (start, by_day) = (Instant::now(), Timestamp::UNIX_EPOCH + SignedDuration::from_hours(500_000));
        let peerpods = self.peerpods();
        let mut first_seen = FirstSeen::default();
        let patience = Patience { grace: GRACE, interval: INTERVAL / 10 * 9, watch: GRACE };
        let round = |round: usize| {
            let shown = (0..self.things.len()).filter(|number| self.things[*number].from <= round);
            let listing: Vec<_> = shown
                .map(|number| self.listed(number, by_day))
                .map(|listed| Found {
                    proof: claims.proof(&listed),
                    is_of_another: claims.is_of_another(&listed),
                    listed,
                })
                .collect();
            let mut candidates = Candidates::of(cloud(), &listing);
            for peerpod in &peerpods {
                candidates.track(peerpod);
            }
            let existing = self.pods.iter().zip(&self.exist).filter(|(_, until)| round < **until);
            existing.for_each(|(pod, _)| candidates.spare_pod(pod));
            let passed = INTERVAL * u32::try_from(round).unwrap();
            let now = Moment { by_process: start + passed, by_day: by_day + passed };
            findings(&candidates.all(), &mut first_seen, now, patience)
        };
        (0..ROUNDS).map(round).collect()
    }

    /// The stem of the name that it has or bears.
    fn stem(&self, number: usize) -> Option<String> {
        let thing = &self.things[number];
        let bears = thing.kind == Resource::Vm || thing.bears == Bears::Name;
        bears.then(|| self.stem_of(self.things[self.vm_of(number)].pod))
    }

    fn stem_of(&self, pod: usize) -> String {
        stem_of(&self.pods[pod], NAME_LIMIT)
    }

    /// Whether a PeerPod records the thing with this number, or does not say what it records for its Pod.
    fn is_recorded(&self, number: usize) -> bool {
        let thing = &self.things[number];
        let bears_id = thing.kind == Resource::Vm || thing.bears == Bears::Id;
        self.records.iter().any(|it| match it.vm {
            Some(vm) => bears_id && vm == self.vm_of(number),
            None => it.owned && self.stem(number) == Some(self.stem_of(it.pod)),
        })
    }

    /// The round before which a Pod may have it by its name, computed in another way than the code under test.
    fn spared_until(&self, number: usize) -> usize {
        let stem = self.stem(number);
        let has_stem = |pod: &usize| stem == Some(self.stem_of(*pod));
        let is_owners = self.records.iter().any(|it| it.owned && has_stem(&it.pod));
        let exists = (0..self.pods.len()).filter(has_stem).map(|pod| self.exist[pod]).max();
        if is_owners { ROUNDS } else { exists.unwrap_or(0) }
    }

    /// The first round of the time in which it was seen as in this round.
    fn since(&self, number: usize, round: usize) -> usize {
        let (from, until) = (self.things[number].from, self.spared_until(number));
        if round < until { from } else { from.max(until) }
    }

    /// Whether the thing with this number came with a VM that this round shows.
    fn is_in_use(&self, number: usize, round: usize) -> bool {
        let (thing, vm) = (&self.things[number], &self.things[self.vm_of(number)]);
        let is_shown = vm.kind == Resource::Vm && vm.from <= round;
        thing.kind != Resource::Vm && thing.bears != Bears::Nothing && is_shown
    }

    /// Whether the VM's name, its own or in its reference, is not one of cloud-api-adaptor's.
    fn is_odd(&self, number: usize) -> bool {
        let thing = &self.things[number];
        (thing.kind == Resource::Vm || thing.bears == Bears::Name) && self.things[self.vm_of(number)].odd
    }

    /// The number of the thing that a finding is about.
    fn number(finding: &UntrackedFinding) -> usize {
        let id = &finding.found.listed.id;
        id.strip_prefix("i-").map_or_else(
            || id.strip_prefix("r-").unwrap().parse().unwrap(),
            |hex| usize::from_str_radix(hex, 16).unwrap(),
        )
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn old_untracked_vms_are_found_and_only_unused_ones_proven_ours_and_seen_long_enough_are_deleted(world in any_world()) {
        let rounds = world.rounds();
        for (round, findings) in rounds.iter().enumerate() {
            for finding in findings {
                let number = World::number(finding);
                let thing = &world.things[number];
                prop_assert!(!world.is_recorded(number), "{finding:?}");
                prop_assert!(!world.is_odd(number), "{finding:?}");
                prop_assert!(!world.is_in_use(number, round), "its VM is there: {finding:?}");
                let is_spared = round < world.spared_until(number);
                prop_assert_eq!(is_spared, finding.verdict == SweepVerdict::Spared, "{:?}", finding);
                prop_assert!(!is_spared || thing.kind == Resource::Vm, "{finding:?}");
                let since = world.since(number, round);
                prop_assert!(round > since, "seen once: {finding:?}");
                let seen = INTERVAL * u32::try_from(round - since).unwrap();
                let passed = INTERVAL * u32::try_from(round).unwrap();
                let age = thing.age.map(|age| age + i64::try_from(passed.as_secs()).unwrap());
                let is_old = age.is_some_and(|age| age >= i64::try_from(GRACE.as_secs()).unwrap());
                prop_assert!(is_old || seen >= GRACE, "too young: {finding:?}");
                if finding.verdict != SweepVerdict::Delete {
                    continue;
                }
                let is_ours = thing.tag == Some(0) || (thing.tag.is_none() && world.exclusive);
                prop_assert!(is_ours, "{finding:?}");
                // The cloud's clock counts for nothing.
                prop_assert!(seen >= GRACE, "seen for {seen:?} alone: {finding:?}");
                prop_assert!(thing.kind != Resource::Disk, "{finding:?}");
                prop_assert!(thing.kind == Resource::Vm || thing.bears == Bears::Id, "{finding:?}");
                prop_assert_ne!(thing.state, PowerState::Leaving);
            }
        }

        let last = &rounds[ROUNDS - 1];
        for (number, thing) in world.things.iter().enumerate() {
            let seen = INTERVAL * u32::try_from(ROUNDS - 1 - world.since(number, ROUNDS - 1)).unwrap();
            let is_due = thing.kind == Resource::Vm && thing.state != PowerState::Leaving && seen >= GRACE;
            if !is_due || world.is_recorded(number) || thing.odd {
                continue;
            }
            let finding = last.iter().find(|it| it.found.listed.id == World::id(number));
            let expected = match thing.tag {
                Some(1) => None,
                _ if world.spared_until(number) == ROUNDS => Some(SweepVerdict::Spared),
                Some(_) => Some(SweepVerdict::Delete),
                None => Some(if world.exclusive { SweepVerdict::Delete } else { SweepVerdict::Unproven }),
            };
            prop_assert_eq!(finding.map(|it| it.verdict), expected, "{:?}", thing);
        }
        let unique: HashSet<_> = last.iter().map(|it| (it.found.listed.kind, &it.found.listed.id)).collect();
        prop_assert_eq!(unique.len(), last.len());
    }
}

#[test]
fn a_peerpod_that_records_less_than_the_list_shows_counts_for_all_of_that_name() {
    let gcp = Cloud::named("gcp").unwrap();
    let name = "podvm-a-1a2b3c4d";
    let peerpod =
        json!({ "metadata": { "name": "p" }, "spec": { "cloudProvider": "gcp", "instanceID": name } });
    let path = format!("projects/p/zones/z/instances/{name}");
    let listing =
        [Found { listed: Listed::new(Resource::Vm, path, name), proof: None, is_of_another: false }];
    let mut candidates = Candidates::of(gcp, &listing);
    candidates.track(&serde_json::from_value(peerpod).unwrap());
    assert!(candidates.all().is_empty());
}

#[test]
fn a_vm_that_disappears_and_returns_is_seen_anew() {
    let listed = Listed::new(Resource::Vm, "i-1", "podvm-a-00000001");
    let (start, mut first_seen) = (Instant::now(), FirstSeen::default());
    let at = |minutes: u32| Moment {
        by_process: start + Duration::from_secs(60) * minutes,
        by_day: Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minutes.into()),
    };
    let mut saw = |minutes, listed: Option<&Listed>, is_spared| {
        let found = listed.map(|it| Found { listed: it.clone(), proof: None, is_of_another: false });
        let candidates: Vec<_> = found.iter().map(|found| Candidate { found, is_spared }).collect();
        first_seen.update(&candidates, at(minutes)).first().map(|it| it.by_day)
    };
    assert_eq!(saw(0, Some(&listed), true), saw(5, Some(&listed), true));
    assert_eq!(saw(6, Some(&listed), false), Some(at(6).by_day), "the Pod that may have had it is gone");
    saw(10, None, false);
    assert_eq!(saw(15, Some(&listed), false), Some(at(15).by_day));
    let other = Listed { name: "podvm-b-00000001".to_owned(), ..listed };
    assert_eq!(saw(20, Some(&other), false), Some(at(20).by_day), "another VM with the same identifier");
}

#[test]
fn every_cloud_finds_its_own_names() {
    const IDS: [&str; 7] = [
        "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11",
        "i-0123456789abcdef0",
        "/subscriptions/0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/podvm",
        "podvm-web-0-1a2b3c4d",
        "0717_0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11",
        "10.0.0.1",
        "0dd2f0c56a3d44a79b5e2f7a6c2f9a110dd2f0c56a3d44a79b5e2f7a6c2f9a11",
    ];
    for cloud in CLOUDS {
        let stem = stem_of("web-0", cloud.name_limit);
        let found = |id: &str| Found {
            listed: Listed::new(Resource::Vm, id, format!("{stem}1a2b3c4d")),
            proof: None::<ClusterProof>,
            is_of_another: false,
        };
        let unknown = [found("")];
        assert!(Candidates::of(cloud, &unknown).all().is_empty(), "{cloud} does not know its identifier");
        let id = IDS.iter().find(|id| InstanceId::of(cloud, id).is_ok());
        let listing = [found(id.unwrap_or_else(|| panic!("an identifier of {cloud}")))];
        let mut candidates = Candidates::of(cloud, &listing);
        assert!(candidates.needs_pods(), "{cloud}");
        candidates.spare_pod("web-0");
        assert!(!candidates.needs_pods(), "{cloud}");
        assert!(candidates.all().iter().all(|it| it.is_spared), "{cloud}");
    }
}
