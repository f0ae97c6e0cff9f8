//! Helpers of the scenarios.

use std::{
    convert::Infallible,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::{
    admissionregistration::v1::MutatingWebhookConfiguration,
    apps::v1::Deployment,
    core::v1::Pod,
    discovery::v1::{Endpoint, EndpointSlice},
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams},
};
use peerpod_operator::{NAMESPACE, api::v1alpha1::PeerPodConfig, webhook::sizing::ANNOTATIONS};
use serde_json::{Value, json};
use testbed::{
    Operator, OperatorOptions, Options, PodRunner, Settings, Testbed,
    wait::{self, DEADLINE},
};
use tokio::{
    net::TcpStream,
    sync::{OnceCell, RwLock},
    time::sleep,
};

use crate::{
    support::{PROGRAM, run_dir, run_on},
    webhook::{stage::LOAD_PAUSE, trust},
};

static SHARED: OnceCell<Shared> = OnceCell::const_new();

/// A replica of one of the webhooks leads the renewal of their common certificate. A test that must keep that
/// replica locks this exclusively.
static LEADER: RwLock<()> = RwLock::const_new(());

/// How many clients create Pods at once under load. Several tests may do so at the same time.
const CLIENTS: usize = 2;

pub struct Shared {
    pub testbed: Testbed,
    pub runner: PodRunner,
    operator: Operator,
}

impl Shared {
    async fn start() -> Result<Self> {
        let dir = run_dir()?.join("service");
        let options = Options { fake_nodes: 2, runs_own_pods: true, ..Options::new(&dir) };
        let testbed = Testbed::start(&options).await?;
        // The webhook presents a new certificate once it has been trusted for a twentieth of its life: after 6 s.
        let environment = [("PEERPOD_OPERATOR_TLS_LIFETIME", "2m")];
        let runner = PodRunner::start(&testbed, PROGRAM, dir.join("pods"), &environment)?;
        // This operator handles no PeerPods, so it never calls libvirtd.
        let settings = Settings::libvirt("test:///default");
        let arguments = ["--leader-elect=false", "--controllers=peerpodconfig"].map(str::to_owned).to_vec();
        let options = OperatorOptions::new(PROGRAM, dir.join("operator"), settings);
        let operator = Operator::start(&testbed, &OperatorOptions { arguments, ..options }).await?;
        Ok(Self { testbed, runner, operator })
    }
}

/// One test's own webhook, and the namespace of its Pods.
pub struct Stage<'a> {
    pub shared: &'a Shared,
    pub configs: Api<PeerPodConfig>,
    pub name: &'static str,
    runtime_class: String,
    pub pods: Api<Pod>,
}

impl<'a> Stage<'a> {
    /// Creates a configuration with a webhook, and waits until the API server calls it.
    async fn set(shared: &'a Shared, name: &'static str) -> Result<Self> {
        let (client, runtime_class) = (shared.testbed.client(), format!("kata-{name}"));
        let namespace = shared.testbed.namespace(name).await?;
        let configs: Api<PeerPodConfig> = Api::namespaced(client.clone(), NAMESPACE);
        let pods = Api::namespaced(client, &namespace);
        let stage = Self { shared, configs, name, runtime_class, pods };
        stage.begin().await?;
        stage.is_called().await?;
        stage.until(name, "WebhookRunning").await?;
        Ok(stage)
    }

    /// Makes a configuration of the stage's runtime class.
    pub async fn configure(&self, name: &str) -> Result<()> {
        let config = json!({ "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig",
            "metadata": { "name": name, "namespace": NAMESPACE },
            // The configuration selects no node, because these tests need only the admission.
            "spec": { "nodeSelector": { "test": name }, "admission": { "runtimeClassName": self.runtime_class } } });
        self.shared.testbed.apply(name, &[config]).await
    }

    /// The same stage, whose configuration is for another runtime class from now on.
    pub async fn of_another_class(&self, runtime_class: &str) -> Result<Self> {
        let (configs, pods) = (self.configs.clone(), self.pods.clone());
        let runtime_class = runtime_class.to_owned();
        let stage = Self { shared: self.shared, configs, name: self.name, runtime_class, pods };
        stage.begin().await?;
        Ok(stage)
    }

    /// Makes the stage's runtime class and configuration.
    async fn begin(&self) -> Result<()> {
        let class = json!({ "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "kata-remote",
            "metadata": { "name": self.runtime_class } });
        self.shared.testbed.apply(&self.runtime_class, &[class]).await?;
        self.configure(self.name).await
    }

    /// Waits until all Pods of the webhook serve the stage's runtime class.
    pub async fn serves_its_class(&self) -> Result<()> {
        let deployments: Api<Deployment> = Api::namespaced(self.shared.testbed.client(), NAMESPACE);
        let class = format!("--runtime-class={}", self.runtime_class);
        let serves = |deployment: &Deployment| {
            let template = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
            let mut arguments =
                template.iter().flat_map(|spec| &spec.containers).flat_map(|it| it.args.iter().flatten());
            let status = deployment.status.clone().unwrap_or_default();
            let replicas = [status.replicas, status.updated_replicas, status.available_replicas];
            arguments.any(|it| *it == class)
                && status.observed_generation == deployment.metadata.generation
                && replicas == [Some(2); 3]
        };
        let name = format!("{}-webhook", self.name);
        wait::present(&deployments, &name, "it serves its class", DEADLINE, serves).await.map(drop)
    }

    /// Waits until the admission of a configuration has this reason.
    pub async fn until(&self, name: &str, reason: &str) -> Result<()> {
        let admission = |config: &PeerPodConfig| {
            let mut conditions = config.status.iter().flat_map(|status| &status.conditions);
            conditions.any(|it| it.type_ == "AdmissionReady" && it.reason == reason)
        };
        let what = format!("the admission of {name} is {reason}");
        wait::present(&self.configs, name, &what, DEADLINE, admission).await.map(drop)
    }

    /// Waits until the webhook changes peer pods.
    pub async fn is_called(&self) -> Result<()> {
        wait::eventually("the API server calls the webhook", DEADLINE, async || {
            let pod = self.dry_run(&self.peer_pod()?).await?;
            ensure!(pod.annotations().contains_key(ANNOTATIONS[0]), "the Pod is not changed");
            Ok(())
        })
        .await
    }

    pub fn peer_pod(&self) -> Result<Pod> {
        a_pod(json!({ "runtimeClassName": self.runtime_class }))
    }

    pub async fn dry_run(&self, pod: &Pod) -> Result<Pod> {
        Ok(self.pods.create(&PostParams { dry_run: true, ..PostParams::default() }, pod).await?)
    }

    /// Does `work` while clients create peer pods again and again. Fails if one creation does. Returns the number of creations.
    pub async fn under_load(&self, work: impl Future<Output = Result<()>>) -> Result<usize> {
        self.loaded(work, |_| false).await
    }

    /// The same, but a creation may be refused because no webhook answers yet, or one of the former runtime class. Every admitted
    /// Pod must still be changed.
    pub async fn under_load_with_refusals(&self, work: impl Future<Output = Result<()>>) -> Result<usize> {
        let may_be = ["failed calling webhook", "create the Pod again in a minute"];
        self.loaded(work, |refusal| may_be.iter().any(|it| refusal.contains(it))).await
    }

    async fn loaded(
        &self,
        work: impl Future<Output = Result<()>>,
        may_fail_so: impl Fn(&str) -> bool,
    ) -> Result<usize> {
        let (done, count) = (AtomicBool::new(false), AtomicUsize::new(0));
        let client = async || {
            while !done.load(Ordering::Relaxed) {
                sleep(LOAD_PAUSE).await;
                let pod = match self.dry_run(&self.peer_pod()?).await {
                    Err(refusal) if may_fail_so(&format!("{refusal:#}")) => continue,
                    pod => pod?,
                };
                ensure!(pod.annotations().contains_key(ANNOTATIONS[0]), "the Pod is not changed");
                count.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        };
        let clients = async {
            let outcome = try_join_all((0..CLIENTS).map(|_| client())).await;
            outcome.with_context(|| format!("under load, after {} requests", count.load(Ordering::Relaxed)))
        };
        let work = async {
            work.await?;
            done.store(true, Ordering::Relaxed);
            Ok(())
        };
        tokio::try_join!(clients, work)?;
        Ok(count.into_inner())
    }

    /// The webhook's Pods.
    pub async fn webhook_pods(&self) -> Result<Vec<Pod>> {
        let pods: Api<Pod> = Api::namespaced(self.shared.testbed.client(), NAMESPACE);
        let of_config = ListParams::default().labels(&format!("app.kubernetes.io/instance={}", self.name));
        Ok(pods.list(&of_config).await?.items)
    }

    /// Connects to every Pod of the webhook again and again, each time with the authorities that API servers trust at that moment.
    /// Returns when a certificate is not trusted.
    pub async fn always_trusted(&self) -> Result<Infallible> {
        let configurations: Api<MutatingWebhookConfiguration> = Api::all(self.shared.testbed.client());
        let pods = self.webhook_pods().await?;
        let addresses = pods.iter().filter_map(|pod| pod.status.as_ref()?.pod_ip.as_deref());
        loop {
            let configuration = configurations.get(&format!("peer-pods-{}", self.name)).await?;
            let mut webhooks = configuration.webhooks.into_iter().flatten();
            let authorities = webhooks.find_map(|webhook| webhook.client_config.ca_bundle);
            let authorities = authorities.context("nobody is trusted")?;
            for address in addresses.clone() {
                let name = format!("{}-webhook.{NAMESPACE}.svc", self.name);
                trust::connect((address, 9443), name, &authorities.0).await?;
            }
            sleep(LOAD_PAUSE).await;
        }
    }

    /// Waits until a Pod of the webhook is no longer an endpoint. API servers notice that at different times, so checks that the Pod
    /// still serves those that have not noticed.
    pub async fn serves_on_when_it_is_no_endpoint_any_more(&self, pod: &Pod) -> Result<()> {
        let address = pod.status.clone().and_then(|status| status.pod_ip).context("it has an address")?;
        let slices: Api<EndpointSlice> = Api::namespaced(self.shared.testbed.client(), NAMESPACE);
        let of_service =
            ListParams::default().labels(&format!("kubernetes.io/service-name={}-webhook", self.name));
        wait::eventually("it is no endpoint any more", DEADLINE, async || {
            let slices = slices.list(&of_service).await?;
            let mut endpoints = slices.iter().flat_map(|slice| &slice.endpoints);
            let ready =
                |it: &Endpoint| it.conditions.as_ref().and_then(|conditions| conditions.ready) == Some(true);
            ensure!(!endpoints.any(|it| it.addresses.contains(&address) && ready(it)), "it is one");
            Ok(())
        })
        .await?;
        TcpStream::connect((address, 9443))
            .await
            .context("it does not serve those who have not heard")
            .map(drop)
    }

    /// Removes the webhook, and waits until its Pods are gone.
    async fn clear(self) -> Result<()> {
        self.configs.delete(self.name, &DeleteParams::default()).await?;
        wait::eventually("the webhook's Pods are gone", DEADLINE, async || {
            let left = self.webhook_pods().await?.len();
            ensure!(left == 0, "{left} are left");
            Ok(())
        })
        .await
    }
}

/// A Pod that asks for something.
pub fn a_pod(mut spec: Value) -> Result<Pod> {
    let resources = json!({ "limits": { "cpu": "1500m", "memory": "1Gi" } });
    spec["containers"] = json!([{ "name": "main", "image": "any", "resources": resources }]);
    Ok(serde_json::from_value(json!({ "metadata": { "generateName": "pod-" }, "spec": spec }))?)
}

/// Runs a test that has a webhook of this name.
pub fn with_webhook(name: &'static str, test: impl AsyncFnOnce(&Stage) -> Result<()>) -> Result<()> {
    run_on(SHARED.get_or_try_init(Shared::start), async |shared| {
        let _others = LEADER.read().await;
        run(shared, name, test).await
    })
}

/// Runs a test that has a webhook of this name, the only one meanwhile.
pub fn with_only_webhook(name: &'static str, test: impl AsyncFnOnce(&Stage) -> Result<()>) -> Result<()> {
    run_on(SHARED.get_or_try_init(Shared::start), async |shared| {
        let _alone = LEADER.write().await;
        run(shared, name, test).await
    })
}

async fn run(
    shared: &Shared,
    name: &'static str,
    test: impl AsyncFnOnce(&Stage) -> Result<()>,
) -> Result<()> {
    let outcome = async {
        let stage = Stage::set(shared, name).await?;
        test(&stage).await?;
        stage.clear().await
    };
    let outcome = outcome.await;
    outcome.inspect_err(|_| println!("{}{}", shared.operator.log_tail(), shared.runner.logs()))
}
