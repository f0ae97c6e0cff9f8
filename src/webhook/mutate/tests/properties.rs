//! Properties that hold for all Pods, whatever they request.

use proptest::{
    collection::vec,
    option,
    prelude::{Just, Strategy, prop_assert_eq, prop_oneof, proptest},
    sample::{select, subsequence},
};
use serde_json::{Map, Value, json};

use super::{super::*, VM, changed, changed_by, look, pod, sizes};
use crate::webhook::sizing::GPU;

/// One container of a generated Pod: its role, and thousandths of cpu and of bytes.
#[derive(Clone, Debug)]
struct Generated {
    role: Role,
    cpu: (Option<u32>, Option<u32>),
    memory: (Option<u32>, Option<u32>),
    gpus: Option<u8>,
    storage: Option<u8>,
    hugepages: Option<u8>,
    claims: bool,
}

fn generated() -> impl Strategy<Value = Generated> {
    let amounts = || (option::of(0..9_000_u32), option::of(0..9_000_u32));
    let role = prop_oneof![Just(Role::Container), Just(Role::Init), Just(Role::Sidecar)];
    let few = || option::of(0..3_u8);
    let rest = (few(), few(), few(), select(&[true, false][..]));
    (role, amounts(), amounts(), rest).prop_map(|(role, cpu, memory, (gpus, storage, hugepages, claims))| {
        Generated { role, cpu, memory, gpus, storage, hugepages, claims }
    })
}

fn written(containers: &[Generated], annotations: &[&str]) -> Value {
    let object = |index: usize, it: &Generated| {
        let list = |cpu: Option<u32>, memory: Option<u32>| {
            let amounts = [
                ("cpu", cpu.map(|cpu| format!("{cpu}m"))),
                ("memory", memory.map(|memory| format!("{memory}Ki"))),
                (GPU, it.gpus.map(|gpus| gpus.to_string())),
                ("ephemeral-storage", it.storage.map(|size| format!("{size}Gi"))),
                ("hugepages-2Mi", it.hugepages.map(|pages| format!("{}Mi", 2 * pages))),
                ("hugepages-1Gi", it.hugepages.map(|pages| format!("{pages}Gi"))),
                ("example.com/other", it.claims.then(|| "1".to_owned())),
            ];
            amounts.into_iter().filter_map(|(name, amount)| Some((name, amount?))).collect::<BTreeMap<_, _>>()
        };
        let mut object = json!({ "name": format!("c{index}"), "resources": {
            "requests": list(it.cpu.0, it.memory.0), "limits": list(it.cpu.1, it.memory.1),
        } });
        // The API server drops empty lists.
        object["resources"].as_object_mut().unwrap().retain(|_, list| list != &json!({}));
        if it.claims {
            object["resources"]["claims"] = json!([{ "name": "c" }]);
        }
        if it.role == Role::Sidecar {
            object["restartPolicy"] = "Always".into();
        }
        object
    };
    let of = |init: bool| {
        let of_kind = containers.iter().enumerate().filter(|(_, it)| (it.role != Role::Container) == init);
        of_kind.map(|(index, it)| object(index, it)).collect::<Vec<_>>()
    };
    let mut pod =
        pod(&json!({ "containers": of(false), "initContainers": of(true), "unknown": { "a": [1] } }));
    pod["metadata"]["annotations"] =
        annotations.iter().map(|key| ((*key).to_owned(), Value::from("77"))).collect::<Map<_, _>>().into();
    pod
}

/// The most that runs at any moment, by stepping through the life of the Pod: who runs while the init container at each
/// place does, and who runs in the end.
fn naive(containers: &[Generated], amount: impl Fn(&Generated) -> u64) -> u64 {
    let init: Vec<_> = containers.iter().filter(|it| it.role != Role::Container).collect();
    let moments = (0..init.len()).map(|now| {
        let runs =
            |(place, it): &(usize, &&Generated)| *place == now || (*place < now && it.role == Role::Sidecar);
        init.iter().enumerate().filter(runs).map(|(_, it)| amount(it)).sum::<u64>()
    });
    let last = containers.iter().filter(|it| it.role != Role::Init).map(&amount).sum();
    moments.chain([last]).max().unwrap_or_default()
}

fn plain_sum(containers: &[Generated], amount: impl Fn(&Generated) -> u64) -> u64 {
    containers.iter().map(amount).sum()
}

/// How containers add up.
type Total = fn(&[Generated], &dyn Fn(&Generated) -> u64) -> u64;

/// The rule for requests against limits, on totals.
fn chosen(request: u64, limit: u64) -> u64 {
    if request != 0 && limit >= request { limit } else { request }
}

proptest! {
    #[test]
    fn the_size_is_what_a_naive_model_of_the_scheduler_says(mut containers in vec(generated(), 1..8)) {
        containers[0].role = Role::Container;
        let rules: [(Sizing, Total); 2] =
            [(Sizing::Kubernetes, |all, amount| naive(all, amount)), (Sizing::Sum, |all, amount| plain_sum(all, amount))];
        for (sizing, total) in rules {
            let of = |pair: fn(&Generated) -> (Option<u32>, Option<u32>)| {
                let request = total(&containers, &|it| u64::from(pair(it).0.or(pair(it).1).unwrap_or_default()));
                let limit = total(&containers, &|it| u64::from(pair(it).1.unwrap_or_default()));
                chosen(request, limit)
            };
            let expected = [
                of(|it| it.cpu).div_ceil(1000),
                of(|it| it.memory).div_ceil(1024),
                total(&containers, &|it| it.gpus.unwrap_or_default().into()),
            ];
            let (after, _) = changed_by(sizing, &written(&containers, &[]));
            let told = sizes(&after).map(|size| size.map_or(0, |size| size.parse().unwrap()));
            prop_assert_eq!(told, expected);
        }
    }

    #[test]
    fn a_second_mutation_changes_nothing(
        mut containers in vec(generated(), 1..8),
        own in subsequence(ANNOTATIONS.to_vec(), 0..=ANNOTATIONS.len()),
        sum in select(&[true, false][..]),
    ) {
        containers[0].role = Role::Container;
        let sizing = if sum { Sizing::Sum } else { Sizing::Kubernetes };
        let (after, _) = changed_by(sizing, &written(&containers, &own));
        prop_assert_eq!(look(&after, sizing).unwrap().0, json_patch::Patch::default());
    }

    #[test]
    fn containers_injected_later_count_as_if_present_from_the_start(
        mut containers in vec(generated(), 2..8),
        late in vec(select(&[true, false][..]), 8),
        refill in option::of(1..9_000_u32),
    ) {
        containers[0].role = Role::Container;
        let all = written(&containers, &[]);
        let is_late = |container: &Value| {
            let index: usize = container["name"].as_str().unwrap()[1..].parse().unwrap();
            index > 0 && late[index]
        };
        let mut early = all.clone();
        for list in ["containers", "initContainers"] {
            early["spec"][list].as_array_mut().unwrap().retain(|container| !is_late(container));
        }
        let mut second = changed(&early);
        for list in ["containers", "initContainers"] {
            let seen: Vec<Value> = second["spec"][list].as_array().unwrap().clone();
            let merged = all["spec"][list].as_array().unwrap().iter().map(|container| {
                let Some(seen) = seen.iter().find(|seen| seen["name"] == container["name"]) else {
                    return container.clone();
                };
                let mut seen = seen.clone();
                if let Some(refill) = refill {
                    seen["resources"]["requests"]["cpu"] = format!("{refill}m").into();
                }
                seen
            });
            second["spec"][list] = merged.collect();
        }
        prop_assert_eq!(changed(&second), changed(&all));
    }

    #[test]
    fn the_order_of_containers_does_not_matter(mut containers in vec(generated(), 1..8)) {
        containers[0].role = Role::Container;
        let before = written(&containers, &[]);
        let mut turned = before.clone();
        turned["spec"]["containers"].as_array_mut().unwrap().reverse();
        let (before, turned) = (changed(&before), changed(&turned));
        prop_assert_eq!(sizes(&before), sizes(&turned));
    }

    #[test]
    fn nothing_else_is_touched(
        mut containers in vec(generated(), 1..8),
        own in subsequence(ANNOTATIONS.to_vec(), 0..=ANNOTATIONS.len()),
    ) {
        containers[0].role = Role::Container;
        let before = written(&containers, &own);
        let mut after = changed(&before);
        for key in own {
            prop_assert_eq!(&after["metadata"]["annotations"][key], "77");
        }
        let mut before = before;
        for pod in [&mut before, &mut after] {
            pod["metadata"]["annotations"].as_object_mut().unwrap().clear();
            for list in ["containers", "initContainers"] {
                for container in pod["spec"][list].as_array_mut().unwrap() {
                    for amounts in LISTS {
                        if let Some(amounts) = container["resources"][amounts].as_object_mut() {
                            amounts.retain(|name, _| !is_moved(&MOVED, name) && name != VM);
                        }
                        if container["resources"][amounts].as_object().is_none_or(Map::is_empty) {
                            container["resources"].as_object_mut().unwrap().remove(amounts);
                        }
                    }
                }
            }
        }
        prop_assert_eq!(before, after);
    }
}
