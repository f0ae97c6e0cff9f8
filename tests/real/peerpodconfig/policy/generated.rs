//! Generated Pods, which policy and webhook change alike.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use peerpod_operator::{
    api::v1alpha1::Sizing,
    webhook::{marker::COUNTED, sizing::ANNOTATIONS},
};
use serde_json::{Map, Value, json};

use super::{Policy, VM, comparable, dry_run};
use crate::support::beside_others;

/// The seed of the generated Pods: the same in every run.
const SEED: u64 = 20_261_121;

/// How many Pods are generated for each kind of sizing. Each is compared three times.
const PODS: usize = 300;

/// How many Pods are compared at once.
const PARALLEL: usize = 16;

/// Amounts of cpu, each above the one before.
const CPU: [&str; 11] = ["0", "1m", "100m", "0.5", "999m", "1", "1.5", "2e0", "4007m", "7", "1k"];

/// The same with amounts that the API server rounds.
const ROUGH_CPU: [&str; 8] = ["0", "1n", "1m", "500001u", "999m", "1.0000001", "7", "1k"];

/// Generates Pods of all shapes, also unusual ones.
struct Generator(Rng);

impl Generator {
    fn one_of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        self.0.choice(choices).copied().expect("there is a choice")
    }

    fn sometimes(&mut self) -> bool {
        self.0.u8(..3) == 0
    }

    /// A request and a limit that is not below it. Either may be missing.
    fn amounts(&mut self, ascending: &[&str]) -> [Option<String>; 2] {
        let [mut low, mut high] = [self.0.usize(..ascending.len()), self.0.usize(..ascending.len())];
        if low > high {
            std::mem::swap(&mut low, &mut high);
        }
        [low, high].map(|place| (self.0.u8(..4) > 0).then(|| ascending[place].to_owned()))
    }

    fn resources(&mut self, cpu: &[&str]) -> Value {
        const MEMORY: [&str; 13] = [
            "0",
            "1m",
            "1",
            "1023",
            "128974848m",
            "1Mi",
            "1048577",
            "64M",
            "129e6",
            "0.5Gi",
            "1Gi",
            "1.1G",
            "3Ti",
        ];
        const GPUS: [&str; 3] = ["0", "1", "4"];
        const STORAGE: [&str; 2] = ["1Mi", "100Gi"];
        const HUGE: [&str; 3] = ["0", "2Gi", "4Gi"];
        let mut lists = [Map::new(), Map::new()];
        let mut set = |name: &str, amounts: [Option<String>; 2]| {
            for (list, amount) in lists.iter_mut().zip(amounts) {
                list.extend(amount.map(|amount| (name.to_owned(), amount.into())));
            }
        };
        set("cpu", self.amounts(cpu));
        set("memory", self.amounts(&MEMORY));
        for (name, amounts) in [("nvidia.com/gpu", &GPUS[..]), ("example.com/fpga", &GPUS), (VM, &GPUS)] {
            if self.sometimes() {
                let amount = Some(self.one_of(amounts).to_owned());
                set(name, [amount.clone().filter(|_| self.sometimes()), amount]);
            }
        }
        if self.sometimes() {
            set("ephemeral-storage", self.amounts(&STORAGE));
        }
        if self.sometimes() {
            // Without a policy the API server takes no hugepages without cpu or memory.
            let huge = |generator: &mut Self| {
                let amount = Some(generator.one_of(&HUGE).to_owned());
                [amount.clone(), amount]
            };
            set("hugepages-2Mi", huge(self));
            if self.sometimes() {
                set("hugepages-1Gi", huge(self));
            }
            let most = cpu.last().map(|amount| (*amount).to_owned());
            set("cpu", [None, most]);
        }
        let [requests, limits] = lists;
        let mut resources = json!({ "requests": requests, "limits": limits });
        if self.sometimes() {
            resources["claims"] = json!([{ "name": "device" }]);
        }
        resources
    }

    fn container(&mut self, name: &str, init: bool, cpu: &[&str]) -> Value {
        let mut container = json!({ "name": name, "image": "any" });
        if !self.sometimes() {
            container["resources"] = self.resources(cpu);
        }
        if init && self.sometimes() {
            container["restartPolicy"] = "Always".into();
        }
        container
    }

    fn spec(&mut self) -> Value {
        let (init, containers, whole) = (self.0.usize(..5), self.0.usize(1..6), self.sometimes());
        // The API server compares the resources of a Pod as a whole with the exact sum of its containers, before it rounds to thousandths.
        let cpu = if whole { &CPU[..] } else { &ROUGH_CPU };
        let mut spec = json!({ "resourceClaims": [{ "name": "device", "resourceClaimName": "any" }] });
        spec["containers"] =
            (0..containers).map(|index| self.container(&format!("c{index}"), false, cpu)).collect();
        // Init containers come first in the marker, and these names begin with those of the others.
        spec["initContainers"] =
            (0..init).map(|index| self.container(&format!("c{index}-i"), true, cpu)).collect();
        if whole {
            // Not below the sum of the containers.
            let [cpu, memory] = ["1M", "99T"].map(|amount| self.sometimes().then_some(amount));
            let list = |amounts: [Option<&'static str>; 2]| {
                let entries = ["cpu", "memory"].into_iter().zip(amounts);
                entries.filter_map(|(name, amount)| Some((name, amount?))).collect::<BTreeMap<_, _>>()
            };
            let requests = list([cpu.filter(|_| self.sometimes()), memory.filter(|_| self.sometimes())]);
            spec["resources"] = json!({ "requests": requests, "limits": list([cpu, memory]) });
            if cpu.is_none() && memory.is_none() && self.sometimes() {
                // The API server adds the containers' requests.
                spec["resources"] = json!({ "limits": { "cpu": "1M" } });
            }
        }
        spec
    }

    fn annotations(&mut self) -> Map<String, Value> {
        let mut annotations = Map::new();
        for key in ANNOTATIONS {
            if self.0.u8(..6) == 0 {
                annotations.insert(key.to_owned(), self.one_of(&["7", "7", ""]).into());
            }
        }
        if self.0.u8(..10) == 0 {
            annotations.insert(
                COUNTED.to_owned(),
                self.one_of(&[
                    "",
                    "//",
                    "yes",
                    "2//;c0=1",
                    "2/4/;*=4////;c0=1////",
                    "7//;c0=1Ki////",
                    "+7//;c0=1////",
                    "18446744073709551616//;c0=1////",
                    "//;=1////",
                ])
                .into(),
            );
        }
        annotations
    }

    /// Changes a Pod between two looks as other webhooks do: adds and removes containers, fills in defaults, changes annotations.
    fn disturb(&mut self, pod: &mut Value) {
        // The API server refuses a Pod that as a whole asks for less than its containers.
        let bounded = ["requests", "limits"].iter().any(|list| pod["spec"]["resources"][list].is_object());
        if !bounded && self.sometimes() {
            let late = self.container("late", false, &CPU);
            let containers = pod["spec"]["containers"].as_array_mut().expect("it has containers");
            containers.insert(self.0.usize(..=containers.len()), late);
        }
        for list in ["containers", "initContainers"] {
            for container in pod["spec"][list].as_array_mut().into_iter().flatten() {
                if !bounded && self.sometimes() {
                    let defaults = json!({ "cpu": "250m", "memory": "100Mi" });
                    for (name, amount) in defaults.as_object().expect("a map") {
                        container["resources"]["requests"][name] = amount.clone();
                        container["resources"]["limits"][name] = amount.clone();
                    }
                }
            }
        }
        for key in ANNOTATIONS {
            if self.0.u8(..8) == 0 {
                pod["metadata"]["annotations"][key] = "99".into();
            }
        }
    }
}

/// Has the policy look twice at each generated Pod, and compares the results.
async fn compare_generated(policy: &Policy, sizing: Sizing) -> Result<()> {
    let started = std::time::Instant::now();
    let look = async |number: usize| {
        let mut generator = Generator(Rng::with_seed(SEED + number as u64));
        let mut pod = policy.pod(generator.spec());
        pod["metadata"]["annotations"] = generator.annotations().into();
        let context = || format!("Pod {number} of seed {SEED} by {sizing:?}");
        let mut once = policy.compare(&pod).await.with_context(context)?;
        let twice = comparable(dry_run(&policy.pods, &once).await?);
        ensure!(twice == once, "a second look makes\n{twice}\nof\n{once}");
        generator.disturb(&mut once);
        policy.compare(&once).await.with_context(|| format!("the second look at {}", context()))
    };
    let looks = stream::iter(0..PODS).map(look).buffer_unordered(PARALLEL);
    looks.try_for_each(async |_| Ok(())).await?;
    println!("{PODS} Pods of seed {SEED}, three looks each, by {sizing:?}: {:?}", started.elapsed());
    Ok(())
}

#[test]
fn the_policy_does_what_the_webhook_does() -> Result<()> {
    beside_others(async |scene| {
        let policy = Policy::install(scene, Sizing::Kubernetes).await?;
        compare_generated(&policy, Sizing::Kubernetes).await
    })
}

#[test]
fn the_policy_adds_up_as_the_webhook_does() -> Result<()> {
    beside_others(async |scene| {
        let policy = Policy::install(scene, Sizing::Sum).await?;
        compare_generated(&policy, Sizing::Sum).await
    })
}
