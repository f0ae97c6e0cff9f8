//! The admission policy on the real API server: it does to a Pod what the webhook does.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};
use peerpod_operator::{
    NAMESPACE,
    api::v1alpha1::{AdmissionMode, PeerPodConfig, PeerPodConfigSpec, Sizing},
    peerpodconfig::resources::{Owner, policy},
    webhook::{
        self, Options,
        marker::COUNTED,
        mutate::{ANNOTATIONS, MOST_RESOURCES},
    },
};
use serde_json::{Map, Value, json};
use testbed::wait;

use crate::support::{Scene, beside_others};

/// The seed of the generated Pods: the same in every run.
const SEED: u64 = 20_261_121;

/// How many Pods are generated for each kind of sizing. Each is compared three times.
const PODS: usize = 600;

/// How many Pods are compared at once.
const PARALLEL: usize = 16;

const VM: &str = "kata.peerpods.io/vm";

/// Amounts of cpu, each above the one before.
const CPU: [&str; 11] = ["0", "1m", "100m", "0.5", "999m", "1", "1.5", "2e0", "4007m", "7", "1k"];

/// The same with amounts that the API server rounds.
const ROUGH_CPU: [&str; 8] = ["0", "1n", "1m", "500001u", "999m", "1.0000001", "7", "1k"];

/// A policy in force.
struct Policy {
    options: Options,
    /// A namespace where the policy applies.
    pods: Api<Pod>,
    /// A namespace that the policy excludes.
    excluded: Api<Pod>,
}

impl Policy {
    async fn install(scene: &Scene<'_>, sizing: Sizing) -> Result<Self> {
        let excluded = scene.elsewhere().await?.namespace;
        let mut spec: PeerPodConfigSpec = serde_json::from_value(json!({}))?;
        spec.admission.mode = AdmissionMode::Policy;
        spec.admission.sizing = sizing;
        // A runtime class of its own, so that the policy changes no other test's Pods.
        spec.admission.runtime_class_name = format!("class-of-{excluded}");
        spec.admission.excluded_namespaces = vec![excluded.clone()];
        let options = Options {
            runtime_class: spec.admission.runtime_class_name.clone(),
            extended_resource: VM.to_owned(),
            sizing,
        };
        let mut config = PeerPodConfig::new(&excluded, spec);
        config.metadata = ObjectMeta { uid: Some("1".to_owned()), ..config.metadata };
        let owner = Owner { config: &config, namespace: NAMESPACE };
        let objects = [
            json!({
                "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "kata-remote",
                "metadata": { "name": options.runtime_class },
            }),
            serde_json::to_value(policy::policy(&owner))?,
            serde_json::to_value(policy::binding(&owner))?,
        ];
        scene.testbed.apply(&excluded, &objects).await?;
        let installed = Self {
            options,
            pods: Api::namespaced(scene.testbed.client(), &scene.namespace),
            excluded: Api::namespaced(scene.testbed.client(), &excluded),
        };
        let pod = installed.pod(json!({ "containers": [{ "name": "a", "image": "i" }] }));
        wait::eventually("the policy is in force", wait::DEADLINE, async || {
            let seen = dry_run(&installed.pods, &pod).await?;
            ensure!(seen["metadata"]["annotations"][COUNTED].is_string(), "{seen}");
            Ok(())
        })
        .await?;
        Ok(installed)
    }

    fn pod(&self, mut spec: Value) -> Value {
        spec["runtimeClassName"] = self.options.runtime_class.clone().into();
        spec["automountServiceAccountToken"] = false.into();
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "pod" }, "spec": spec })
    }

    /// Has the policy and the function change a Pod. Fails if their results differ, and returns the result.
    async fn compare(&self, pod: &Value) -> Result<Value> {
        let (mutated, plain) = tokio::try_join!(dry_run(&self.pods, pod), dry_run(&self.excluded, pod))?;
        let mut expected = plain.clone();
        let seen: webhook::Pod = serde_json::from_value(plain.clone())?;
        json_patch::patch(&mut expected, &webhook::mutate(&seen, &self.options)?.patch)?;
        let (mutated, expected) = (comparable(mutated), comparable(expected));
        ensure!(
            mutated == expected,
            "the Pod\n{plain}\nis by the policy\n{mutated}\nand by the webhook\n{expected}"
        );
        Ok(mutated)
    }
}

/// The Pod that the API server would create.
async fn dry_run(pods: &Api<Pod>, pod: &Value) -> Result<Value> {
    let params = PostParams { dry_run: true, ..PostParams::default() };
    let object: Pod = serde_json::from_value(pod.clone())?;
    let answer = pods.create(&params, &object).await.with_context(|| format!("creating {pod}"))?;
    let mut answer = serde_json::to_value(answer)?;
    answer["apiVersion"] = "v1".into();
    answer["kind"] = "Pod".into();
    Ok(answer)
}

/// Removes the fields that differ between any two Pods, and empty fields.
fn comparable(mut pod: Value) -> Value {
    for field in ["uid", "creationTimestamp", "namespace", "managedFields", "generation"] {
        pod["metadata"].as_object_mut().expect("an object has metadata").remove(field);
    }
    // The API server derives a QoS class from the final Pod.
    pod.as_object_mut().expect("a Pod is an object").remove("status");
    pod
}

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
        spec["initContainers"] =
            (0..init).map(|index| self.container(&format!("i-{index}"), true, cpu)).collect();
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
                self.one_of(&["", "//", "yes", "2//;c0=1", "2/4/;*=4////;c0=1////"]).into(),
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

#[test]
fn limit_range_defaults_are_removed_and_not_counted() -> Result<()> {
    beside_others(async |scene| {
        let policy = Policy::install(scene, Sizing::Kubernetes).await?;
        let limits = json!([{
            "type": "Container",
            "default": { "cpu": "1", "memory": "64Mi" },
            "defaultRequest": { "cpu": "500m", "memory": "64Mi" },
        }]);
        let range = json!({
            "apiVersion": "v1", "kind": "LimitRange",
            "metadata": { "name": "defaults", "namespace": scene.namespace },
            "spec": { "limits": limits },
        });
        scene.testbed.apply("limit-range", &[range]).await?;
        let large = json!({ "cpu": "4", "memory": "8Gi" });
        let pod = policy.pod(json!({ "containers": [
            { "name": "large", "image": "i", "resources": { "requests": large, "limits": large } },
            { "name": "by-default", "image": "i" },
        ] }));
        wait::eventually("the API server fills in what the LimitRange says", wait::DEADLINE, async || {
            let seen = dry_run(&policy.pods, &pod).await?;
            let [cpu, memory, _] = ANNOTATIONS.map(|key| &seen["metadata"]["annotations"][key]);
            ensure!((cpu, memory) == (&json!("5"), &json!("8256")), "{seen}");
            let left = seen["spec"]["containers"].to_string();
            ensure!(!left.contains("cpu") && !left.contains("memory\":"), "{left}");
            Ok(())
        })
        .await
    })
}

#[test]
fn a_pod_with_hugepages_alone_and_more_storage_than_any_node_has_is_taken() -> Result<()> {
    beside_others(async |scene| {
        for sizing in [Sizing::Kubernetes, Sizing::Sum] {
            let policy = Policy::install(scene, sizing).await?;
            let asks = json!({ "hugepages-2Mi": "4Mi", "ephemeral-storage": "100Ti" });
            let container = |name: &str| json!({ "name": name, "image": "i", "resources": { "requests": asks, "limits": asks } });
            let pod =
                policy.pod(json!({ "containers": [container("a")], "initContainers": [container("i")] }));
            let refused = dry_run(&policy.excluded, &pod).await.err().context("no peer pod can have this")?;
            ensure!(format!("{refused:#}").contains("HugePages require cpu or memory"), "{refused:#}");
            let seen = dry_run(&policy.pods, &pod).await?["spec"].to_string();
            ensure!(!seen.contains("hugepages") && !seen.contains("ephemeral-storage"), "{seen}");
        }
        Ok(())
    })
}

#[test]
fn the_policy_differs_from_the_webhook_as_documented() -> Result<()> {
    beside_others(async |scene| {
        let policy = Policy::install(scene, Sizing::Kubernetes).await?;
        let huge = policy.pod(json!({ "containers": [
            { "name": "a", "image": "i", "resources": { "limits": { "memory": "8Ei", "cpu": "1E" } } },
        ] }));
        let seen = dry_run(&policy.pods, &huge).await?;
        let [cpu, memory, _] = ANNOTATIONS.map(|key| &seen["metadata"]["annotations"][key]);
        assert_eq!((cpu, memory), (&json!("100000000000000"), &json!("95367432")), "100T, rounded up to MiB");
        let many = |count: usize| {
            let asks = json!({
                "cpu": "100m", "memory": "64Mi", "nvidia.com/gpu": "1", "ephemeral-storage": "1Gi", "hugepages-2Mi": "2Mi",
            });
            let resources = json!({ "requests": asks, "limits": asks });
            let list = |list: &str| {
                let container = |index| json!({ "name": format!("{list}-{index}"), "image": "i", "resources": resources });
                (0..count / 2).map(container).collect::<Vec<_>>()
            };
            policy.pod(json!({ "containers": list("c"), "initContainers": list("i") }))
        };
        policy.compare(&policy.compare(&many(100)).await?).await?;
        let refused = dry_run(&policy.pods, &many(400)).await.err().context("it was accepted")?;
        ensure!(format!("{refused:#}").contains("cost limit exceeded"), "{refused:#}");
        Ok(())
    })
}

#[test]
fn the_policy_refuses_a_negative_amount_and_a_container_with_many_resources() -> Result<()> {
    beside_others(async |scene| {
        let policy = Policy::install(scene, Sizing::Kubernetes).await?;
        let asking = |resources: Map<String, Value>| {
            let resources = json!({ "requests": resources, "limits": resources });
            policy.pod(json!({ "containers": [{ "name": "a", "image": "i", "resources": resources }] }))
        };
        let many = |count: usize| {
            asking((0..count).map(|number| (format!("example.com/r{number}"), json!("0"))).collect())
        };
        // The VM is one more.
        let accepted = policy.compare(&many(MOST_RESOURCES - 1)).await?;
        assert_eq!(accepted["spec"]["containers"][0]["resources"]["requests"][VM], "1");
        let negative = asking([("cpu".to_owned(), json!("-1"))].into_iter().collect());
        for (pod, why) in
            [(many(MOST_RESOURCES + 1), "more than 64 resources"), (negative, "a negative amount")]
        {
            let refused = dry_run(&policy.pods, &pod).await.err().context("it was accepted")?;
            ensure!(format!("{refused:#}").contains(why), "{refused:#}");
        }
        Ok(())
    })
}

#[test]
fn whether_policies_are_served_is_seen() -> Result<()> {
    beside_others(async |scene| {
        assert!(policy::served(
            &scene.testbed.client().list_api_group_resources(policy::GROUP_VERSION).await?
        ));
        Ok(())
    })
}
