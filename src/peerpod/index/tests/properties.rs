//! After any sequence of changes, the index says what a look at all objects would say.

use proptest::prelude::*;

use super::{
    super::super::relations::{ClaimVerdict, are_of_one_pod, is_namesake, is_sibling, judge_claim},
    *,
};

/// A PeerPod as some step makes it; `None`: the step deletes it.
type Step = (usize, Option<(usize, u64, i64, usize)>);

fn any_step() -> impl Strategy<Value = Step> {
    (0..20usize, prop::option::weighted(0.9, (0..4usize, 0..12u64, 0..4i64, 0..6usize)))
}

fn step((name, made_of): Step) -> (String, Option<PeerPod>) {
    let name = name.to_string();
    let peerpod = made_of.map(|(pod, number, second, state)| {
        let instance = if number == 0 { "17".to_owned() } else { vm(number) };
        let mut peerpod = made(&name, &pod.to_string(), &instance, second);
        // What was made at another time is another object.
        peerpod.metadata.uid = Some(format!("{name}-{second}"));
        match (pod, &mut peerpod.metadata.owner_references) {
            (0, owners) => *owners = None,
            // Its VMs have another name.
            (3, Some(owners)) => owners[0].name = "db".to_owned(),
            _ => {}
        }
        if state == 0 {
            peerpod.metadata.finalizers = None;
        }
        if state == 1 { deleted(peerpod) } else { peerpod }
    });
    (name, peerpod)
}

fn id(peerpod: &PeerPod) -> Option<InstanceId> {
    InstanceId::parse(peerpod.cloud_provider(), peerpod.instance_id()).ok()
}

/// Those that name the same VM, by comparing all.
fn namesakes<'a>(all: &'a [PeerPod], of: &PeerPod) -> Vec<&'a PeerPod> {
    let Some(id) = id(of) else { return Vec::new() };
    all.iter().filter(|other| is_namesake(other, of, &id)).collect()
}

fn recorded(all: &[PeerPod], of: &PeerPod) -> Timestamp {
    let same = namesakes(all, of).into_iter().filter(|other| are_of_one_pod(other, of));
    same.map(created).fold(created(of), Timestamp::min)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn the_index_agrees_with_a_comparison_of_all_objects(steps in prop::collection::vec(any_step(), 1..80)) {
        let index = Index::default();
        let mut all: Vec<PeerPod> = Vec::new();
        for (name, peerpod) in steps.into_iter().map(step) {
            let has_more = |one: &PeerPod| index.siblings(one).next.is_some();
            let had_more: HashSet<_> = all.iter().filter(|one| has_more(one)).map(PeerPod::uid).collect();
            let mut change = Change::default();
            if let Some(at) = all.iter().position(|it| it.name_any() == name) {
                let before = all.remove(at);
                if peerpod.is_none() {
                    change = index.apply(&Event::Delete(before));
                }
            }
            if let Some(peerpod) = peerpod {
                change = index.apply(&Event::Apply(peerpod.clone()));
                all.push(peerpod);
            }
            let woken = names(&change.others);
            for one in all.iter().filter(|one| has_more(one) && !had_more.contains(&one.uid())) {
                // Of several that record one VM, one is enough.
                let is_held = |it: &&PeerPod| has_finalizer(it) && it.metadata.deletion_timestamp.is_none();
                let same = all.iter().filter(|it| id(it) == id(one) && (it.uid() == one.uid() || are_of_one_pod(it, one)));
                let looks = |it: &PeerPod| woken.contains(&it.name_any()) || (it.name_any() == name && change.matters);
                prop_assert!(
                    !is_held(&one) || id(one).is_none() || same.filter(is_held).any(looks),
                    "{} has more newer siblings than it asks for", one.name_any()
                );
            }
            let facts = all.iter().map(|it| {
                let contested = namesakes(&all, it).into_iter().any(|other| !are_of_one_pod(other, it));
                (recorded(&all, it), id(it), contested)
            });
            let facts: Vec<_> = facts.collect();
            for (one, (since, own, _)) in all.iter().zip(&facts) {
                let since = *since;
                let siblings = all.iter().zip(&facts).filter(|(other, (_, id, _))| is_sibling(other, one) && id != own);
                let siblings = siblings.filter(|(_, (recorded, ..))| *recorded >= since);
                let mut newer: Vec<_> = siblings.map(|(_, facts)| facts.clone()).collect();
                newer.sort_by(|a, b| b.cmp(a));
                newer.dedup();
                let found = index.siblings(one);
                prop_assert_eq!(found.recorded, since);
                prop_assert_eq!(found.next, newer.get(MOST_RELATIVES).map(|it| it.0));
                let by_key = |key: &Key| all.iter().find(|it| it.name_any() == key.name).and_then(id);
                let found: Vec<_> = found.newest.iter().map(|it| (it.recorded, by_key(&it.key), it.contested)).collect();
                let recorded: Vec<_> = newer.iter().map(|it| it.0).take(MOST_RELATIVES).collect();
                prop_assert_eq!(found.iter().map(|it| it.0).collect::<Vec<_>>(), recorded);
                prop_assert!(found.iter().all(|it| newer.contains(it)), "{found:?} of {newer:?}");
                prop_assert_eq!(found.iter().map(|it| &it.1).collect::<HashSet<_>>().len(), found.len());

                let Claimants { living, deleting, one_more } = index.claimants(one, 100);
                let is_living = |other: &&&PeerPod| judge_claim(other, one) == ClaimVerdict::Living;
                let of_any_name = namesakes(&all, one).iter().any(|other| is_living(&other));
                prop_assert_eq!(index.claimants_of_any_name(one, 100).living.is_some(), of_any_name);
                let pod_name = |it: &PeerPod| owner(it).map(|pod| pod.name.clone());
                let mut namesakes = namesakes(&all, one);
                namesakes.retain(|it| pod_name(it) == pod_name(one));
                prop_assert_eq!(living.is_some(), namesakes.iter().any(|other| is_living(&other)));
                let pod = |other: &PeerPod| match judge_claim(other, one) {
                    ClaimVerdict::WhilePodRuns(pod) => Some(pod.uid.clone()),
                    ClaimVerdict::Living | ClaimVerdict::NoClaim => None,
                };
                let expected: HashSet<_> = namesakes.into_iter().filter_map(pod).collect();
                prop_assert_eq!((deleting.len(), one_more), (expected.len(), None));
                let deleting = deleting.iter().filter_map(|key| all.iter().find(|it| it.name_any() == key.name));
                prop_assert_eq!(deleting.filter_map(pod).collect::<HashSet<_>>(), expected);
            }
        }
    }
}
