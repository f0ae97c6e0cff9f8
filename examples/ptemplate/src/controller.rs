//! The controller *(client required)*: it applies the Module and the DaemonSet of each Ptemplate, and reports.

use std::time::Duration;

use futures::{FutureExt, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Pod};
use kube::runtime::{controller::Action, reflector};
use kube::{Client, Resource, ResourceExt};
use operator_kit::apply::{Applied, apply};
use operator_kit::metrics::{Counter, Gauge};
use operator_kit::projection::{Part, Projection};
use operator_kit::{Permission, api_call::ApiError, controller::Host, crd, families};
use operator_kit::{installed::Installed, metadata::Metadata, status::Publisher, watch};
use serde_json::Value;
use tracing::warn;

use crate::NAME;
use crate::api::{CRDS, Ptemplate};
use crate::daemon_set::{SUFFIX, daemon_set};
use crate::module::{KMM, Module, module};
use crate::owned::{APP, MANAGED_BY};
use crate::status::{kmm_is_missing, status};

/// The controller's rights, from which the role of the installation is generated.
pub const PERMISSIONS: &[Permission] = &[
    Permission::new(CRDS.group, &["ptemplates"], &["list", "watch"]),
    Permission::new(CRDS.group, &["ptemplates/status"], &["patch"]),
    // This and `delete` are for owner references that block the owner's deletion, where OwnerReferencesPermissionEnforcement is on.
    Permission::new(CRDS.group, &["ptemplates/finalizers"], &["update"]),
    Permission::new(KMM.group, &["modules"], &["get", "list", "watch", "create", "patch", "delete"]),
    Permission::new("apps", &["daemonsets"], &["get", "list", "watch", "create", "patch", "delete"]),
    Permission::new("", &["pods"], &["list", "watch"]),
    Permission::new("apiextensions.k8s.io", &["customresourcedefinitions"], &["list", "watch"])
        .named(&["ptemplates.pt.example.com", "modules.kmm.sigs.x-k8s.io"]),
];

families! {
    /// The operator's metrics.
    pub struct Metrics: "ptemplate_operator_";

    /// Reconciles of Ptemplates.
    reconciles: Counter = "reconciles_total" [],
    /// Pods of all consumers. Every replica reports them.
    consumers: Gauge = "consumer_pods" [],
}

/// The fields that the operator keeps of a Ptemplate. The schema limits the spec to less. A status that is read in part would be
/// written again and again. A cluster has up to 5,000 nodes, each with one consumer. The generated name of a Pod has up to 63
/// characters, and counts 64 + 3 more: 5,000 * 130 = 650,000. Three conditions count less than 100,000.
static PTEMPLATE: Projection =
    Projection { metadata: &[], rest: &[("status", Part::All), ("spec", Part::All)], most: 1 << 20 };

/// When a Ptemplate is looked at again without a cause.
const RESYNC: Duration = Duration::from_secs(600);

/// The same while another program's object has a name that is needed. Watches do not show that object, as it lacks the label.
const NAME_TAKEN: Duration = Duration::from_secs(30);

struct Context {
    client: Client,
    publisher: Publisher,
    /// The definition as the program has it, and as it is installed. API servers silently drop fields that an older one lacks.
    wanted: Value,
    definition: Installed,
    kmm: Installed,
    pods: reflector::Store<Metadata<Pod>>,
    metrics: Metrics,
}

/// Runs the controller until the shutdown.
pub async fn run(host: Host, metrics: Metrics) {
    let controller = host.controller(&PTEMPLATE, watch::paged(), |it: &Ptemplate| it.metadata.generation);
    let (definition, redefined) = Installed::follow::<Ptemplate>(&host);
    let (kmm, kmm_changes) = Installed::follow::<Module>(&host);
    let owned = watch::paged().labels(&format!("{MANAGED_BY}={NAME}"));
    let (pods, pod_changes) = host.cached_metadata::<Pod>(owned.clone());
    let (cached, gauge) = (pods.clone(), metrics.consumers.with([]));
    let count = move || i64::try_from(cached.len()).unwrap_or(i64::MAX);
    let pod_changes = pod_changes.inspect(move |_| _ = gauge.set(count()));
    let (_, daemon_sets) = host.cached_metadata::<DaemonSet>(owned.clone());
    // While KMM is not installed, a watch of Modules would fail. The watch begins once KMM is installed.
    let (later, installed) = (host.clone(), kmm.clone().established());
    let modules = installed.map(move |()| later.cached_metadata::<Module>(owned).1).flatten_stream();

    let controller = controller
        // Objects are matched by name, because another program may have changed the owner reference.
        .watches_stream(modules, |module| belongs_to(&module, Some(&module.name_any())))
        .watches_stream(daemon_sets, |it| belongs_to(&it, it.name_any().strip_suffix(SUFFIX)))
        .watches_stream(pod_changes, |pod| belongs_to(&pod, pod.labels().get(APP).map(String::as_str)))
        .reconcile_all_on(redefined)
        .reconcile_all_on(kmm_changes);
    let publisher = Publisher::new(&host.client, &PTEMPLATE, NAME, "Applying");
    let (client, wanted) = (host.client.clone(), crd::definition::<Ptemplate>().unwrap_or_default());
    let context = Context { client, publisher, wanted, definition, kmm, pods, metrics };
    host.run(controller, context, async |ptemplate, context| context.reconcile(&ptemplate).await).await;
}

/// The Ptemplate of this name beside an object.
fn belongs_to(object: &impl ResourceExt, name: Option<&str>) -> Option<reflector::ObjectRef<Ptemplate>> {
    Some(reflector::ObjectRef::new(name?).within(&object.namespace()?))
}

impl Context {
    async fn reconcile(&self, ptemplate: &Ptemplate) -> Result<Action, ApiError> {
        self.metrics.reconciles.with([]).inc();
        if ptemplate.metadata.deletion_timestamp.is_some() {
            // The garbage collector deletes what the Ptemplate owns.
            return Ok(Action::await_change());
        }
        let module = apply(&self.client, &module(ptemplate), NAME).await;
        let consumer = apply(&self.client, &daemon_set(ptemplate), NAME).await;
        let lacking = self.definition.lacking(&self.wanted);
        if !lacking.is_empty() {
            warn!(?lacking, "the installed CRD is older than the operator: {}", CRDS.install);
        }
        let (both, pods) = ((&module, &consumer), self.consumers(ptemplate));
        let is_taken = matches!(both, (Ok(Applied::Foreign), _) | (_, Ok(Applied::Foreign)));
        let status = status(ptemplate, both, pods, &lacking, Timestamp::now());
        self.publisher.status_if_changed(ptemplate, &status).await?;
        // The watch of CRDs tells the controller when KMM is installed. Only a KMM that is installed and does not answer yet is polled.
        if kmm_is_missing(&module).is_none() || self.kmm.is_established() {
            module?;
        }
        consumer?;
        Ok(Action::requeue(if is_taken { NAME_TAKEN } else { RESYNC }))
    }

    /// The names of the Pods of a Ptemplate's consumer.
    fn consumers(&self, ptemplate: &Ptemplate) -> Vec<String> {
        let owner = ptemplate.name_any() + SUFFIX;
        let mut pods = self.pods.state();
        pods.retain(|pod| {
            let is_consumer =
                pod.owner_references().iter().any(|it| it.kind == "DaemonSet" && it.name == owner);
            is_consumer && pod.namespace() == ptemplate.namespace() && pod.meta().deletion_timestamp.is_none()
        });
        let mut names: Vec<_> = pods.iter().map(|pod| pod.name_any()).collect();
        names.sort_unstable();
        names
    }
}

#[cfg(test)]
mod tests;
