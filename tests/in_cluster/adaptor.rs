//! cloud-api-adaptor on the real node, deployed by a PeerPodConfig: restarts, Pods that never become ready, starts that overlap or fail.

mod starts;

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use cluster::node::{self, Gate};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use peerpod_operator::{
    NAMESPACE,
    api::v1alpha1::{FINALIZER, PeerPod, PeerPodConfig},
    names::{CONFIG_MAP, DEFAULT_IMAGE},
};
use peers::libvirt::POOL;
use serde_json::{Value, json};
use testbed::{
    stand_in::{self, StandIn},
    wait::{self, DEADLINE},
};

use crate::{
    configuration::runtime_class,
    installation::Way,
    support::{Installation, alone},
};

/// A kubelet with the default figures fails a startup probe after fewer refusals than these.
const REFUSALS: i32 = 4;

/// The shortest time between two changes that make the operator look again.
const NUDGE_INTERVAL: Duration = Duration::from_secs(2);

/// cloud-api-adaptor on the real node, and its neighbour Pods.
struct Stage<'a> {
    installation: &'a Installation,
    namespace: String,
    pods: Api<Pod>,
    peerpods: Api<PeerPod>,
    configs: Api<PeerPodConfig>,
    adaptor: StandIn,
}

/// Runs a test with a cloud-api-adaptor that is ready.
fn with_adaptor(test: impl AsyncFnOnce(&Stage<'_>) -> Result<()>) -> Result<()> {
    alone(async |installation| {
        installation.install(Way::Kustomize).await?;
        installation.enforce("privileged").await?;
        let outcome = async {
            let stage = Stage::set(installation).await?;
            let outcome = match stage.until("AdaptorRunning").await {
                Ok(_) => test(&stage).await,
                Err(error) => Err(error),
            };
            outcome.and(stage.clear().await)
        };
        let outcome = outcome.await;
        installation.enforce("restricted").await?;
        outcome
    })
}

impl<'a> Stage<'a> {
    async fn set(installation: &'a Installation) -> Result<Self> {
        runtime_class(installation).await?;
        let config = json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig",
            "metadata": { "name": "config", "namespace": NAMESPACE },
            "spec": {
                "limit": 5,
                "nodeSelector": { "kubernetes.io/hostname": node::NAME },
                "adaptor": { "image": format!("{}:{}", stand_in::NAME, stand_in::TAG), "imagePullPolicy": "Never" },
                "admission": { "mode": "None" },
            },
        });
        installation.testbed.apply("config", &[config]).await?;
        let client = installation.testbed.client();
        let namespace = installation.testbed.namespace("adaptor").await?;
        let node = Api::<Node>::all(client.clone()).get(node::NAME).await?;
        let mut addresses = node.status.and_then(|it| it.addresses).unwrap_or_default().into_iter();
        let address = addresses.find(|it| it.type_ == "InternalIP").context("the node has an address")?;
        Ok(Self {
            installation,
            pods: Api::namespaced(client.clone(), &namespace),
            peerpods: Api::namespaced(client.clone(), &namespace),
            configs: Api::namespaced(client, NAMESPACE),
            adaptor: StandIn::at(address.address.parse::<Ipv4Addr>()?),
            namespace,
        })
    }

    async fn clear(&self) -> Result<()> {
        self.pods.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        wait::eventually("no Pod is left", 2 * DEADLINE, async || {
            let left = self.pods.list_metadata(&ListParams::default()).await?.items.len();
            ensure!(left == 0, "{left} Pods are left");
            Ok(())
        })
        .await?;
        self.configs.delete("config", &DeleteParams::default()).await?;
        wait::gone(&self.configs, "config", 2 * DEADLINE).await
    }

    /// Waits until the condition of cloud-api-adaptor has this reason; gives its message.
    async fn until(&self, reason: &str) -> Result<String> {
        wait::eventually(&format!("AdaptorReady is {reason}"), 2 * DEADLINE, async || {
            let config = self.configs.get("config").await?;
            let conditions = config.status.map(|status| status.conditions).unwrap_or_default();
            let condition = conditions.into_iter().find(|it| it.type_ == "AdaptorReady");
            let condition = condition.context("there is none")?;
            ensure!(condition.reason == reason, "{}: {}", condition.reason, condition.message);
            Ok(condition.message)
        })
        .await
    }

    /// Changes the metadata of the ConfigMap, so that the operator reconciles the configuration.
    async fn nudge(&self) -> Result<()> {
        let config_maps: Api<ConfigMap> = Api::namespaced(self.installation.testbed.client(), NAMESPACE);
        let annotations = json!({ "tests/nudge": Timestamp::now().to_string() });
        let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
        config_maps.patch(CONFIG_MAP, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Waits until the condition says that it waits for this Pod. No event shows that to the operator. Its own resync comes only after
    /// a minute, so this makes it look earlier.
    async fn until_it_waits_for(&self, pod: &str) -> Result<()> {
        let told = format!(
            "on node {}, cloud-api-adaptor waits for the Pods {}/{pod} (",
            node::NAME,
            self.namespace
        );
        let mut nudged: Option<Instant> = None;
        wait::eventually(&format!("the condition names {pod}"), 3 * DEADLINE, async || {
            let message = self.until("AdaptorStarting").await?;
            if nudged.is_none_or(|at| at.elapsed() >= NUDGE_INTERVAL) {
                self.nudge().await?;
                nudged = Some(Instant::now());
            }
            ensure!(message.contains(&told), "{message}");
            Ok(())
        })
        .await
    }

    /// All Pods of its DaemonSet.
    async fn adaptors(&self) -> Result<Vec<Pod>> {
        let own: Api<Pod> = Api::namespaced(self.installation.testbed.client(), NAMESPACE);
        let of_adaptor = ListParams::default().labels("app.kubernetes.io/component=adaptor");
        Ok(own.list(&of_adaptor).await?.items)
    }

    /// Its Pod, if it runs.
    async fn own_pod(&self) -> Result<Pod> {
        let mut found = self.adaptors().await?;
        found.retain(|pod| pod.metadata.deletion_timestamp.is_none() && phase(pod) == "Running");
        found.pop().context("no Pod of cloud-api-adaptor runs")
    }

    /// Replaces its Pod by another one, which has no memory of the first.
    async fn restart(&self) -> Result<()> {
        let before = self.own_pod().await?;
        let own: Api<Pod> = Api::namespaced(self.installation.testbed.client(), NAMESPACE);
        own.delete(&before.name_any(), &DeleteParams::default()).await?;
        wait::eventually("another cloud-api-adaptor runs", 2 * DEADLINE, async || {
            ensure!(self.own_pod().await?.uid() != before.uid());
            Ok(())
        })
        .await
    }

    /// How often its containers restarted.
    async fn restarts(&self) -> Result<i32> {
        let pod = self.own_pod().await?;
        let statuses = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
        Ok(statuses.iter().map(|it| it.restart_count).sum())
    }

    /// A Pod of the runtime class in this phase.
    async fn pod(&self, name: &str, container: Value, reached: &str) -> Result<Pod> {
        self.create(name, container).await?;
        wait::present(&self.pods, name, reached, DEADLINE, |pod| phase(pod) == reached).await
    }

    async fn create(&self, name: &str, container: Value) -> Result<Pod> {
        // As if a controller had the API server generate the name.
        let start = name.rsplit_once('-').map(|(start, _)| format!("{start}-"));
        let pod = serde_json::from_value(json!({
            "metadata": { "name": name, "generateName": start },
            "spec": {
                "terminationGracePeriodSeconds": 1, "restartPolicy": "Never", "runtimeClassName": "kata-remote",
                "containers": [container],
            },
        }))?;
        Ok(self.pods.create(&PostParams::default(), &pod).await?)
    }

    async fn running(&self, name: &str) -> Result<Pod> {
        self.pod(name, idle(), "Running").await
    }

    /// A Pod whose sandbox is being created, and the gate that holds it back.
    async fn starting(&self, name: &str) -> Result<Gate> {
        let gate = self.installation.testbed.cluster().gate(name)?;
        self.create(name, idle()).await?;
        self.until_held(&gate).await?;
        Ok(gate)
    }

    /// Waits until a sandbox is being created, the next one after a failure.
    async fn until_held(&self, gate: &Gate) -> Result<()> {
        wait::eventually("a sandbox is being created", 2 * DEADLINE, async || gate.holds_one()).await
    }

    async fn domains_of(&self, pod: &str) -> Result<Vec<String>> {
        let mut domains = self.installation.host().virsh().domains().await?;
        domains.retain(|it| it.starts_with(&format!("podvm-{pod}-")));
        Ok(domains)
    }

    /// Waits until the Pod has this many PeerPods, and machines with both their volumes; gives the machines.
    async fn until_left(&self, pod: &str, peerpods: usize, machines: usize) -> Result<Vec<String>> {
        wait::eventually(
            &format!("{peerpods} PeerPods and {machines} machines are left"),
            DEADLINE,
            async || {
                let recorded = self.peerpods.list_metadata(&ListParams::default()).await?.items;
                let of_pod =
                    recorded.iter().filter(|it| it.name_any().starts_with(&format!("{pod}-resource-")));
                let domains = self.domains_of(pod).await?;
                let names: Vec<_> = of_pod.map(ResourceExt::name_any).collect();
                ensure!((names.len(), domains.len()) == (peerpods, machines), "{names:?}, {domains:?}");
                let mut volumes = self.installation.host().virsh().volumes(POOL).await?;
                volumes.retain(|it| it.starts_with(&format!("podvm-{pod}-")));
                ensure!(volumes.len() == 2 * machines, "{volumes:?}");
                Ok(domains)
            },
        )
        .await
    }
}

/// A container that does nothing.
fn idle() -> Value {
    json!({ "name": "main", "image": node::PAUSE_IMAGE, "imagePullPolicy": "Never" })
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

#[test]
fn a_pod_that_completed_has_cloud_api_adaptor_wait_and_never_restart() -> Result<()> {
    with_adaptor(async |stage| {
        let once = json!({
            "name": "main", "image": DEFAULT_IMAGE, "imagePullPolicy": "Never", "args": ["--version"],
        });
        stage.pod("job", once, "Succeeded").await?;
        stage.restart().await?;
        stage.until_it_waits_for("job").await?;
        let events: Api<Event> = Api::namespaced(stage.installation.testbed.client(), NAMESPACE);
        let name = stage.own_pod().await?.name_any();
        wait::eventually("its probe was refused often", 3 * DEADLINE, async || {
            let of_pod =
                ListParams::default().fields(&format!("involvedObject.name={name},reason=Unhealthy"));
            let refusals = events.list(&of_pod).await?.items.into_iter().filter_map(|event| event.count);
            let refusals = refusals.max().context("no probe was refused")?;
            ensure!(refusals >= REFUSALS, "{refusals} times");
            Ok(())
        })
        .await?;
        assert_eq!(stage.restarts().await?, 0);
        stage.pods.delete("job", &DeleteParams::default()).await?;
        stage.until("AdaptorRunning").await?;
        assert_eq!(stage.restarts().await?, 0);
        Ok(())
    })
}

/// Fails unless a cloud-api-adaptor that restarted refused a call because it does not remember the machine.
fn ensure_unknown(outcome: Result<()>, vm: &str) -> Result<()> {
    let refusal = format!("{:#}", outcome.err().context("it remembers the machine")?);
    ensure!(refusal.contains(&format!("no VM {vm} is known")), "{refusal}");
    Ok(())
}

#[test]
fn a_machine_that_a_restarted_adaptor_forgot_is_deleted_with_its_pod() -> Result<()> {
    with_adaptor(async |stage| {
        stage.running("web").await?;
        let vm = stage.adaptor.make(&stage.namespace, "web").await?;
        stage.adaptor.record(&stage.namespace, "web", &vm).await?;
        stage.until_left("web", 1, 1).await?;
        stage.restart().await?;
        stage.until_it_waits_for("web").await?;
        let stopped = stage.adaptor.stop(&stage.namespace, "web", &vm).await;
        ensure_unknown(stopped, &vm)?;

        stage.pods.delete("web", &DeleteParams::default()).await?;
        wait::gone(&stage.pods, "web", DEADLINE).await?;
        stage.until_left("web", 0, 0).await?;
        stage.until("AdaptorRunning").await.map(drop)
    })
}

#[test]
fn a_cut_off_start_leaves_an_unrecorded_machine_and_failed_ones_none() -> Result<()> {
    with_adaptor(async |stage| {
        stage.running("web").await?;
        let cut_off = stage.adaptor.make(&stage.namespace, "web").await?;
        stage.restart().await?;
        let lost = stage.until_left("web", 0, 1).await?;
        assert_eq!(lost, [cut_off.as_str()]);
        let recorded = stage.adaptor.record(&stage.namespace, "web", &cut_off).await;
        ensure_unknown(recorded, &cut_off)?;

        for start in 0..20 {
            if start == 19 {
                // Creation times are whole seconds. The youngest one needs a second of its own, or the operator cannot tell which it is.
                wait::second_after(Timestamp::now()).await?;
            }
            let vm = stage.adaptor.make(&stage.namespace, "web").await?;
            stage.adaptor.record(&stage.namespace, "web", &vm).await?;
            stage.adaptor.stop(&stage.namespace, "web", &vm).await?;
        }
        // The operator never touches the youngest one.
        assert_eq!(stage.until_left("web", 1, 1).await?, lost);
        let released = stage.peerpods.list(&ListParams::default()).await?.items;
        ensure!(released.iter().all(|it| !it.finalizers().contains(&FINALIZER.to_owned())));
        stage.pods.delete("web", &DeleteParams::default()).await?;
        assert_eq!(stage.until_left("web", 0, 1).await?, lost, "the sweep's case");
        for domain in lost {
            let virsh = stage.installation.host().virsh();
            virsh.run(&["destroy", &domain]).await?;
            virsh.run(&["undefine", &domain]).await?;
            for volume in [format!("{domain}-root.qcow2"), format!("{domain}-cloudinit.iso")] {
                virsh.run(&["vol-delete", &volume, "--pool", POOL]).await?;
            }
        }
        Ok(())
    })
}
