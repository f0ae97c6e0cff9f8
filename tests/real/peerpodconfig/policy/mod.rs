//! The admission policy on the real API server: it does to a Pod what the webhook does.

mod generated;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};
use peerpod_operator::{
    NAMESPACE,
    api::v1alpha1::{AdmissionMode, PeerPodConfig, PeerPodConfigSpec, Sizing},
    peerpodconfig::resources::{Owner, policy},
    webhook::{self, Options, marker::COUNTED, mutate::MOST_RESOURCES, sizing::ANNOTATIONS},
};
use serde::Deserialize as _;
use serde_json::{Map, Value, json};
use testbed::wait;

use crate::support::{Scene, beside_others};

const VM: &str = "kata.peerpods.io/vm";

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
        let seen = webhook::Pod::deserialize(&plain)?;
        let patch = serde_json::to_value(webhook::mutate(&seen, &self.options)?.patch)?;
        json_patch::patch(&mut expected, &serde_json::from_value::<json_patch::Patch>(patch)?)?;
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
        // The VM is one more, which a second review finds.
        let accepted = policy.compare(&policy.compare(&many(MOST_RESOURCES)).await?).await?;
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
