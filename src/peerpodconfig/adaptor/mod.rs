//! cloud-api-adaptor on the selected nodes.
//!
//! ```text
//! observe.rs        reads: its DaemonSet, those of others, Pods on older settings
//! daemon_sets.rs    the watch of all DaemonSets
//! daemon_sets/      view.rs: what is read of them
//! preconditions.rs  why it is not deployed (pure)
//! desired.rs        the wanted DaemonSet (pure)
//! apply.rs          writes the DaemonSet and the annotations of the ServiceAccount
//! findings.rs       the conditions about the rollout (pure)
//! pod_view.rs       what is read of Pods
//! rested_lists.rs   lists of Pods that are read again only after a rest
//! waiting.rs        reads which peer pods keep it from becoming ready
//! settings.rs       the conditions about its settings, and what the DaemonSet records of them (pure)
//! ```
//!
//! It uses the nodes and the summaries of the room [`capacity`](super::capacity).

mod apply;
mod daemon_sets;
mod desired;
mod findings;
mod observe;
mod pod_view;
mod preconditions;
mod rested_lists;
mod settings;
mod waiting;

use std::{sync::Arc, time::Duration};

use futures::Stream;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::{
    Client,
    runtime::{reflector, watcher},
};
use operator_kit::Permission;

use self::{
    observe::Observer,
    preconditions::{Consequence, Running},
};
use super::{
    apply::Objects,
    capacity::{NodeRequest, Nodes, Summary},
    conditions::{Finding, Reason},
    findings::{Findings, ReconcileError, UNWATCHED_RESYNC},
    options::Options,
    resources::{self, AdaptorSecrets, Inputs, Names, Owner},
    sources::Sources,
};
use crate::api::v1alpha1::PeerPodConfig;

/// What this room may do in the whole cluster.
pub const PERMISSIONS: &[Permission] = &[Permission::new("apps", &["daemonsets"], &["list", "watch"])];

/// What this room may do in the operator's own namespace. It lists Pods by a right of [`capacity`](super::capacity).
pub const NAMESPACE_PERMISSIONS: &[Permission] = &[
    Permission::new("", &["serviceaccounts"], &["get", "patch"]).named(&[resources::SERVICE_ACCOUNT]),
    Permission::new("apps", &["daemonsets"], &["get", "list", "watch", "create", "patch", "delete"]),
];

/// How often the operator lists, without an event, Pods on older settings that were not ready when they ended or restarted, and Pods that
/// cloud-api-adaptor waits for. After events it does so [sooner](rested_lists).
const OLDER_PODS_RESYNC: Duration = Duration::from_secs(60);

/// Deploys cloud-api-adaptor *(client required)*.
pub(super) struct Adaptor {
    observer: Observer,
    objects: Objects,
    options: Arc<Options>,
}

impl Adaptor {
    /// The room, and the watch of DaemonSets, which must be polled: those that changed in the operator's own namespace. Beside it, an
    /// item after changes elsewhere.
    pub(super) fn watch(
        client: &Client,
        objects: Objects,
        nodes: Nodes,
        options: Arc<Options>,
    ) -> (
        Self,
        impl Stream<Item = Result<DaemonSet, watcher::Error>> + Send + use<>,
        impl Stream<Item = ()> + Send + use<>,
    ) {
        let (daemon_sets, writer) = reflector::store();
        let namespace = options.namespace.clone();
        let observer = Observer::new(client.clone(), namespace.clone(), daemon_sets, nodes);
        let adaptor = Self { observer, objects, options };
        let (own, elsewhere) = daemon_sets::watch(client, writer, namespace);
        (adaptor, own, elsewhere)
    }

    /// Waits until all DaemonSets have been listed. False: the watch has ended.
    pub(super) fn wait_until_listed(&self) -> impl Future<Output = bool> + Send + use<> {
        let daemon_sets = self.observer.daemon_sets.clone();
        async move { daemon_sets.wait_until_ready().await.is_ok() }
    }

    /// What these configurations request of the nodes; `None` until all nodes and DaemonSets have been listed.
    pub(super) async fn node_requests(&self, configs: &[Arc<PeerPodConfig>]) -> Option<Vec<NodeRequest>> {
        preconditions::node_requests(&self.observer, self.options.mounted.as_ref(), configs).await
    }

    /// Deploys cloud-api-adaptor for one of `configs`. `summary`: of its nodes.
    pub(super) async fn reconcile(
        &self,
        config: &PeerPodConfig,
        configs: &[Arc<PeerPodConfig>],
        summary: &Summary,
        sources: &Sources,
    ) -> Result<Findings, ReconcileError> {
        let (current, unmanaged) = (self.observer.current(config).await?, self.observer.unmanaged(config));
        let mounted = self.options.mounted.as_ref();
        let place = sources.place(current.as_ref());
        if let (Some(mounted), Some(current), Some(place)) = (mounted, &current, &place)
            && resources::has_settings_of(current, &config.spec)
            && let Some(own) = mounted.of(place.endpoint.0)
        {
            // Its Pods may start with these settings at any time, also before the operator's files have them.
            own.report(&place.endpoint);
        }
        let unmet =
            preconditions::unmet(config, summary, sources, place.as_ref(), mounted, unmanaged.as_ref());
        let running = Running::of(current.as_ref(), &config.spec);
        let consequence = unmet.as_ref().map(|unmet| preconditions::consequence(unmet, running));
        // No event says that the operator's files have changed.
        let again = unmet.as_ref().filter(|it| it.reason == Reason::AnotherPlace).map(|_| UNWATCHED_RESYNC);
        let mut findings = Findings { all: unmet.into_iter().collect(), again };
        if let Some(Consequence::Withhold(others)) = consequence {
            findings.add(others);
            return Ok(findings);
        }
        self.deploy(config, configs, summary, sources, current.as_ref(), findings).await
    }

    /// Writes the DaemonSet. Adds the state of the rollout to `findings`. `current`: the present DaemonSet.
    async fn deploy(
        &self,
        config: &PeerPodConfig,
        configs: &[Arc<PeerPodConfig>],
        summary: &Summary,
        sources: &Sources,
        current: Option<&DaemonSet>,
        mut findings: Findings,
    ) -> Result<Findings, ReconcileError> {
        let since = settings::since(current, &sources.settings.hash, Timestamp::now());
        let (older, rest) = self.observer.pods_older_than(config, since).await?;
        // Pods that restart would make VMs there, which the operator cannot delete yet.
        let is_elsewhere = findings.all.iter().any(|it| it.reason == Reason::AnotherPlace);
        let restarts = config.spec.adaptor.restart_on_settings_change && !is_elsewhere;
        let in_force = sources.settings.in_force(current, &config.spec, restarts);
        let inputs = self.inputs(config, &in_force);
        // After the last of them has ended, no further list is needed.
        let since = since.filter(|_| !older.is_empty());
        let daemon_set = desired::daemon_set(&inputs, &sources.settings, since);
        // The webhooks of cloud identities read the annotations when a Pod is created, and never again.
        let has_account = self.annotate_service_account(configs).await?;
        let found = self.apply(config, &daemon_set).await?;
        if let Some(taken) = found.name_taken() {
            let withheld = Finding::new(Reason::AdaptorWithheld, "the operator cannot create the DaemonSet");
            return Ok(Findings { all: vec![taken, withheld], again: None });
        }
        if !has_account {
            findings.all.push(findings::account_missing(&self.options.namespace));
            findings.again = Some(UNWATCHED_RESYNC);
        }
        findings.all.extend(findings::unusable_annotations(config));
        findings.all.extend(findings::overruled_annotations(config, configs));
        let deployed = found.get(&Names::of(config).adaptor);
        findings.add(self.rollout(&inputs, deployed.as_ref(), summary, &sources.missing).await?);
        let misfit = sources.settings.shape_differs(&in_force).then_some((&in_force, &sources.settings));
        if !older.is_empty() || misfit.is_some() {
            let is_built = in_force.hash == sources.settings.hash;
            findings.all.push(settings::older(&older, is_built, misfit, is_elsewhere));
            // The DaemonSet's status shows when a ready Pod ends or restarts.
            findings.again.get_or_insert(OLDER_PODS_RESYNC);
        }
        findings.add(Findings { again: rest, ..Findings::default() });
        Ok(findings)
    }

    /// The state of the rollout. `missing`: the settings that cloud-api-adaptor may lack.
    async fn rollout(
        &self,
        inputs: &Inputs<'_>,
        deployed: Option<&DaemonSet>,
        summary: &Summary,
        missing: &[&str],
    ) -> Result<Findings, ReconcileError> {
        let config = inputs.owner.config;
        let remedy = resources::Part::Adaptor.diagnosis(config, &self.options.namespace);
        let hint = settings::hint(&config.spec, missing);
        let remedy = hint.into_iter().fold(remedy, |remedy, hint| format!("{remedy}; {hint}"));
        let remark = findings::instance_type(inputs);
        let strategy = config.spec.adaptor.update_strategy.as_ref();
        let mut rollout = findings::rollout(deployed, strategy, summary, &remedy, remark);
        let mut again = None;
        if rollout.reason == Reason::AdaptorStarting {
            let (waits, rest) = self.observer.waits_for(config).await?;
            if let Some(waits) = waits {
                rollout.message = format!("{waits}; {}", rollout.message);
            }
            // No event shows that cloud-api-adaptor now waits for another peer pod.
            again = rest.or(Some(OLDER_PODS_RESYNC));
        }
        Ok(Findings { all: vec![rollout], again })
    }

    fn inputs<'a>(
        &'a self,
        config: &'a PeerPodConfig,
        settings: &'a resources::AdaptorSettings,
    ) -> Inputs<'a> {
        Inputs {
            owner: Owner { config, namespace: &self.options.namespace },
            settings,
            adaptor_image: &self.options.adaptor_image,
            secrets: AdaptorSecrets {
                ssh_key: &self.options.ssh_key_secret,
                tls: &self.options.tls_secret,
                byom_host_keys: &self.options.byom_host_keys_secret,
            },
        }
    }
}
