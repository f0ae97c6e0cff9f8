//! The controller *(client required)*: observe, plan, apply, report.

use std::time::Duration;

use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::runtime::controller::Action;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client, ResourceExt};
use operator_kit::api_call::{ApiError, Written, bounded};
use operator_kit::controller::{Host, defaults};
use operator_kit::projection::{MOST, Part, Projection, reading};
use operator_kit::{Permission, conditions::NewCondition, families};
use operator_kit::{metrics::Counter, status::Publisher, watch};
use tracing::info;

use crate::NAME;
use crate::api::{CRDS, PodSet, PodSetStatus};
use crate::plan::{Plan, WATCHED_LABEL, WATCHED_VALUE, counts, phase, pod, selector};

/// What the controller may do. The role in the installation is generated from it.
pub const PERMISSIONS: &[Permission] = &[
    Permission::new(CRDS.group, &["podsets"], &["list", "watch"]),
    Permission::new(CRDS.group, &["podsets/status"], &["patch"]),
    // For Pods that block the deletion of their PodSet, where OwnerReferencesPermissionEnforcement is on.
    Permission::new(CRDS.group, &["podsets/finalizers"], &["update"]),
    Permission::new("", &["pods"], &["list", "watch", "create", "delete"]),
];

families! {
    /// The metrics of the controller.
    pub struct Metrics: "podset_operator_";

    /// Reconciles of PodSets.
    reconciles: Counter = "reconciles_total" [],
    /// Pods to create or to delete that reconciles found.
    pods: Counter = "pods_total" ["verb"],
}

/// The fields that the operator keeps of a PodSet and of a Pod. Other fields cost no memory, however large they are.
static PODSET: Projection =
    Projection { metadata: &[], rest: &[("spec", Part::All), ("status", Part::All)], most: MOST };
static POD: Projection = Projection {
    metadata: &[("labels", LABELS), ("ownerReferences", Part::All)],
    rest: &[("status", Part::Only(&[("phase", Part::All), ("conditions", CONDITIONS)]))],
    most: MOST,
};
/// Other labels do not take the room of these, and a time of a condition that cannot be read does not keep all Pods from being read.
const LABELS: Part = Part::Only(&[("app", Part::All), (WATCHED_LABEL, Part::All)]);
const CONDITIONS: Part = Part::Only(&[("type", Part::All), ("status", Part::All)]);

/// How often the operator looks at every PodSet without a cause. That costs no request if nothing is to do.
const RESYNC: Duration = Duration::from_secs(600);

/// Runs the controller until the shutdown.
pub async fn run(host: Host, metrics: Metrics) {
    // The generation changes with the spec. It does not with the status, which the operator writes itself.
    let controller = host.controller(&PODSET, watch::paged(), |podset: &PodSet| podset.metadata.generation);
    let labelled = watch::paged().labels(&format!("{WATCHED_LABEL}={WATCHED_VALUE}"));
    // The watch must see everything that the plan depends on. A Pod's generation does not change with its phase.
    let (pods, pod_changes) = host.cached(&POD, labelled, |pod: &Pod| {
        let owners = pod.owner_references().iter().map(|it| (it.uid.clone(), it.controller));
        let is_deleted = pod.metadata.deletion_timestamp.is_some();
        (phase(pod).to_owned(), pod.labels().clone(), owners.collect::<Vec<_>>(), is_deleted)
    });
    // Twice as many at once as the default: half of them wait for their lists, which must be up to date, while the others create Pods.
    let controller = controller.with_config(defaults().concurrency(16));
    let controller = controller.watches_stream(pod_changes, |pod| podsets_of(&pod));
    let context = Context::new(&host.client, pods, metrics);
    host.run(controller, context, |podset, context| async move { context.reconcile(&podset).await }).await;
}

/// The PodSets to which a Pod belongs, by its owners and by its label. A Pod that lost one of these still has the other.
fn podsets_of(pod: &Pod) -> Vec<ObjectRef<PodSet>> {
    let namespace = pod.namespace().unwrap_or_default();
    let owners = pod.owner_references().iter().filter(|it| it.kind == "PodSet").map(|it| &it.name);
    owners.chain(pod.labels().get("app")).map(|name| ObjectRef::new(name).within(&namespace)).collect()
}

struct Context {
    client: Client,
    pods: Store<Pod>,
    publisher: Publisher,
    metrics: Metrics,
}

impl Context {
    fn new(client: &Client, pods: Store<Pod>, metrics: Metrics) -> Self {
        let publisher = Publisher::new(client, &PODSET, NAME, "Scaling");
        Self { client: reading(client, &POD), pods, publisher, metrics }
    }

    async fn reconcile(&self, podset: &PodSet) -> Result<Action, ApiError> {
        self.metrics.reconciles.with([]).inc();
        if podset.metadata.deletion_timestamp.is_some() {
            // The garbage collector deletes the Pods.
            return Ok(Action::await_change());
        }
        let cached = self.pods.state();
        let mut plan = Plan::of(podset, cached.iter().map(AsRef::as_ref));
        let mut outcome = Ok(());
        if !plan.is_done() {
            // The cache may lack the Pods that the last reconcile created. A plan from the cache alone would create them twice. So the
            // cache only says that something is to do. The plan comes from a list of the API server, which has every Pod that was
            // created. Reconciles of one PodSet never overlap, and only the leader reconciles, so no other reconcile creates Pods
            // meanwhile. Unlike expectations, this needs no memory and survives a restart.
            let pods = Api::namespaced(self.client.clone(), &podset.namespace().unwrap_or_default());
            let params = ListParams::default().labels(&selector(podset));
            plan = Plan::of(podset, &bounded(pods.list(&params)).await?.items);
            self.metrics.pods.with(["create"]).inc_by(plan.create as u64);
            self.metrics.pods.with(["delete"]).inc_by(plan.delete.len() as u64);
            outcome = self.apply(&pods, podset, &mut plan).await;
        }
        // The status is also written after a failure. It then says how many Pods there are, and why there are no more.
        let status = status(podset, plan.keep, outcome.as_ref().err(), Timestamp::now());
        self.publisher.status_if_changed(podset, &status).await?;
        outcome.map(|()| Action::requeue(RESYNC))
    }

    /// Creates or deletes Pods. Those that were created or could not be deleted are then among those that stay.
    async fn apply(&self, pods: &Api<Pod>, podset: &PodSet, plan: &mut Plan) -> Result<(), ApiError> {
        let (params, removal, pod) = (PostParams::default(), DeleteParams::default(), pod(podset));
        let mut outcome = Ok(());
        if !plan.is_done() {
            info!(available = plan.keep.len() + plan.delete.len(), wanted = podset.spec.replicas, "scaling");
        }
        // A new Pod starts another reconcile at once, even if it does not count, as a webhook changed it. So a dry run follows a failure.
        let failed = podset.status.iter().flat_map(|it| &it.conditions).any(|it| it.status == "False");
        let trial = PostParams { dry_run: true, ..PostParams::default() };
        if failed && plan.create > 0 && !counts(podset, &bounded(pods.create(&trial, &pod)).await?) {
            return Err(ApiError::Altered);
        }
        for created in join_all((0..plan.create).map(|_| bounded(pods.create(&params, &pod)))).await {
            match created {
                Ok(pod) if counts(podset, &pod) => plan.keep.push(pod.name_any()),
                Ok(pod) => {
                    plan.delete.push(pod.name_any());
                    outcome = Err(ApiError::Altered);
                }
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        let deleted = join_all(plan.delete.iter().map(|name| bounded(pods.delete(name, &removal)))).await;
        for (name, deleted) in plan.delete.iter().zip(deleted) {
            // If the Pod is already gone, that counts as success.
            let deleted = Written::by(name, deleted).inspect_err(|_| plan.keep.push(name.clone()));
            outcome = outcome.and(deleted.map(drop));
        }
        plan.keep.sort_unstable();
        outcome
    }
}

/// The status of a PodSet that has these Pods. `error`: why the operator could not create or delete more *(no client)*.
fn status(podset: &PodSet, pods: Vec<String>, error: Option<&ApiError>, now: Timestamp) -> PodSetStatus {
    let count = format!("{} of {} Pods are pending or running", pods.len(), podset.spec.replicas);
    let (reason, message) = match error {
        None => ("AsWanted", count),
        Some(error) if error.is_refusal() => ("PodsRefused", format!("{count}: {}", error.in_namespace())),
        Some(error) => ("PodsFailed", format!("{count}: {}", error.in_namespace())),
    };
    let before = podset.status.as_ref().map(|status| &*status.conditions).unwrap_or_default();
    let condition = NewCondition { type_: "Available", is_true: error.is_none(), reason, message: &message };
    PodSetStatus {
        available_replicas: i32::try_from(pods.len()).unwrap_or(i32::MAX),
        pod_names: pods,
        selector: selector(podset),
        conditions: vec![condition.after(before, podset.metadata.generation, now)],
    }
}

#[cfg(test)]
mod tests;
