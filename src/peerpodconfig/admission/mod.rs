//! The admission: what turns Pods of a runtime class into peer pods.
//!
//! ```text
//! observe.rs            reads: the present admission, the webhook's program, TLS options and authorities
//! policy_support.rs     whether the API server supports admission policies, and the watch of them
//! sharing.rs            which configuration has the admission of a runtime class (pure)
//! means.rs              webhook or policy, and the kinds of their objects (pure)
//! desired.rs            the desired means, and the wanted objects (pure)
//! apply.rs              writes these objects
//! webhook_resources/    what all webhooks share: the Secret of their certificate and the Lease for its rotation
//! propagation.rs        whether API servers already apply what was written (pure)
//! findings.rs           the conditions about the admission (pure)
//! ```
//!
//! There is one admission for each runtime class: that of the oldest configuration. If a younger one differs, it gets the
//! condition `Conflict`. When the older one is deleted, the operator first writes what the younger one wants, then removes what
//! the older one had.

mod apply;
mod desired;
mod findings;
mod means;
mod observe;
mod policy_support;
mod propagation;
mod sharing;
pub mod webhook_resources;

use std::{sync::Arc, time::Instant};

use futures::{Stream, StreamExt};
use kube::{Client, ResourceExt, api::DynamicObject, runtime::reflector::ObjectRef};
use operator_kit::{Permission, api_call::ApiError};
use tokio::sync::OnceCell;
use tracing::warn;

use self::{
    apply::Applier,
    desired::Desired,
    findings::Admitted,
    means::{Means, cluster_scoped, kinds},
    observe::{Observed, Observer, WebhookInputs},
    policy_support::PolicySupport,
    propagation::{PROPAGATION_TIME, Propagation, wrote},
    sharing::{has_reason, older_with_same_class, successor},
    webhook_resources::WebhookResources,
};
use super::{
    apply::{Left, Objects},
    conditions::Reason,
    drift::Drifts,
    findings::{Findings, ReconcileError},
    options::Options,
    resources::Owner,
    sources::Sources,
    wanted::{Found, Kind},
};
use crate::{
    api::v1alpha1::PeerPodConfig,
    settings::tls::{TlsError, TlsOptions},
};

/// What this room may do in the whole cluster.
pub const PERMISSIONS: &[Permission] = &[
    Permission::new("node.k8s.io", &["runtimeclasses"], &["get", "list", "watch"]),
    Permission::new(
        "admissionregistration.k8s.io",
        &["mutatingwebhookconfigurations"],
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
    Permission::new(
        "admissionregistration.k8s.io",
        &["mutatingadmissionpolicies", "mutatingadmissionpolicybindings"],
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
];

/// What this room may do in the operator's own namespace, beside [`webhook_resources::PERMISSIONS`].
pub const NAMESPACE_PERMISSIONS: &[Permission] = &[
    // Where the operator itself is to run, and so the webhook.
    Permission::new("", &["pods"], &["get"]),
    Permission::new("apps", &["replicasets"], &["get"]),
    Permission::new("", &["services"], &["get", "list", "watch", "create", "patch", "delete"]),
    Permission::new("apps", &["deployments"], &["get", "list", "watch", "create", "patch", "delete"]),
    Permission::new(
        "policy",
        &["poddisruptionbudgets"],
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
];

/// Sets up the admission of Pods *(client required)*.
pub(super) struct Admission {
    observer: Observer,
    applier: Applier,
    objects: Objects,
    propagation: Propagation,
    namespace: String,
}

/// What was written of an admission.
struct Applied {
    found: Found,
    /// What its webhook is built from, if it has one.
    webhook: Option<WebhookInputs>,
    /// Whether API servers may not apply it yet.
    is_settling: bool,
}

/// The reasons to report if the admission of `config`, one of `configs`, is invalid, and if it fails.
pub(super) fn failure_reasons(config: &PeerPodConfig, configs: &[Arc<PeerPodConfig>]) -> [Reason; 2] {
    if older_with_same_class(config, configs).is_some() {
        // The older one's admission works. After a failure of an admission, `peerpod-limit` would refuse Pods that it admits.
        return [Reason::SharedNotReady; 2];
    }
    [Reason::InvalidAdmission, Reason::AdmissionFailed]
}

impl Admission {
    /// The room, and an item for each change of the objects that all webhooks share. The stream must be polled.
    pub(super) fn watch(
        client: &Client,
        objects: Objects,
        drifts: Arc<Drifts>,
        options: Arc<Options>,
    ) -> (Self, impl Stream<Item = ()> + Send + use<>) {
        let namespace = options.namespace.clone();
        let (webhook_resources, changes) = WebhookResources::watch(client, &namespace, drifts);
        let observer = Observer {
            client: client.clone(),
            objects: objects.clone(),
            options,
            policies: PolicySupport::default(),
            watched: webhook_resources.watched().clone(),
            program: OnceCell::new(),
        };
        let applier = Applier { objects: objects.clone(), webhook_resources };
        (Self { observer, applier, objects, propagation: Propagation::default(), namespace }, changes)
    }

    /// The configurations whose policy or binding changed. `labelled`: reads what has the label of a configuration.
    pub(super) fn policy_changes(
        &self,
        labelled: &Client,
    ) -> impl Stream<Item = ObjectRef<PeerPodConfig>> + Send + use<> {
        let namespace = self.namespace.clone();
        let names = policy_support::changes(labelled, &self.observer.policies.subscribe());
        names.map(move |name| ObjectRef::new(&name).within(&namespace))
    }

    /// Another process may have led meanwhile, and this one may find another API server.
    pub(super) fn leadership_changed(&self) {
        self.doubt_policies();
        self.propagation.leadership_changed();
    }

    /// Asks the API server again whether it supports policies: it may have been restarted, or another one may answer.
    pub(super) fn doubt_policies(&self) {
        self.observer.policies.doubt();
    }

    /// Sets up the admission of one of `configs`, which are all, the oldest first. `tls`: the TLS options in its settings, if they
    /// are known.
    pub(super) async fn reconcile(
        &self,
        config: &PeerPodConfig,
        configs: &[Arc<PeerPodConfig>],
        tls: Option<Result<TlsOptions, TlsError>>,
    ) -> Result<Findings, ReconcileError> {
        let set_up = self.set_up(config, configs, tls).await;
        if set_up.is_err() {
            self.trust(config).await;
        }
        set_up
    }

    async fn set_up(
        &self,
        config: &PeerPodConfig,
        configs: &[Arc<PeerPodConfig>],
        tls: Option<Result<TlsOptions, TlsError>>,
    ) -> Result<Findings, ReconcileError> {
        let observed = self.observer.observe(config, configs).await?;
        if let Some(successor) = self.apply_successor(config, &observed, configs).await? {
            let name = successor.name_any();
            let message = format!("PeerPodConfig {name} takes over, and its policy was created a moment ago");
            let starting = Findings::of(Reason::PolicyStarting, message);
            return Ok(Findings { again: Some(PROPAGATION_TIME), ..starting });
        }
        let desired = Desired::of(config, &observed, &self.namespace);
        let applied = self.apply(config, &desired, tls).await?;
        let class = &config.spec.admission.runtime_class_name;
        let class_exists = self.observer.runtime_class_exists(class).await?;
        let admitted = Admitted {
            owner: self.owner(config),
            observed: &observed,
            desired: &desired,
            applied,
            class_exists,
        };
        let state = admitted.state(self.applier.webhook_resources.watched());
        // The new admission is ready before the former one is removed.
        if state.as_ref().is_none_or(|state| state.reason.status()) {
            self.applier.remove(config, &desired.former).await?;
            if desired.means != Means::Webhook {
                self.applier.without_webhook(config).await?;
            }
        } else if desired.means != Means::Webhook {
            // A former registration stays in force until then.
            self.trust(config).await;
        }
        Ok(admitted.findings(state))
    }

    /// Removes the admission of one of `configs` that is being deleted. Returns what was left.
    pub(super) async fn remove(
        &self,
        config: &PeerPodConfig,
        configs: &[Arc<PeerPodConfig>],
    ) -> Result<Option<Left>, ReconcileError> {
        // An object whose kind is unknown now would stay for ever.
        self.doubt_policies();
        self.propagation.forget(&config.name_any());
        let removed = self.tear_down(config, configs).await;
        if removed.is_err() {
            self.trust(config).await;
        }
        removed
    }

    /// Writes the admission that replaces this one, then removes this one. Returns what was left.
    async fn tear_down(
        &self,
        config: &PeerPodConfig,
        configs: &[Arc<PeerPodConfig>],
    ) -> Result<Option<Left>, ReconcileError> {
        let observed = self.observer.observe(config, configs).await?;
        if self.apply_successor(config, &observed, configs).await?.is_some() {
            return Ok(Some(Left::default()));
        }
        Ok(self.applier.remove(config, &kinds(&self.namespace, observed.supports_policies)).await?)
    }

    /// Makes a registration that stays as it is trust the webhook's next certificate. What keeps the operator from writing the rest
    /// may last longer than the present certificate.
    async fn trust(&self, config: &PeerPodConfig) {
        if let Err(error) = self.applier.webhook_resources.trust(config).await {
            let name = config.name_any();
            warn!(%error, "the webhook's registration of PeerPodConfig {name} may not trust the next certificate");
        }
    }

    /// All cluster-scoped objects that this operator created, for any configuration: the registration of a webhook last.
    pub(super) async fn cluster_scoped_objects(&self) -> Result<Vec<(Kind, DynamicObject)>, ApiError> {
        // An object whose kind is unknown now stays until the next collection.
        self.doubt_policies();
        let supports_policies = self.observer.policies.ask(&self.observer.client).await?;
        let mut made = Vec::new();
        for kind in cluster_scoped(supports_policies).into_iter().rev() {
            let objects = self.objects.made(&kind).await?;
            made.extend(objects.into_iter().map(|object| (kind.clone(), object)));
        }
        Ok(made)
    }

    /// Before a configuration leaves the admission of a runtime class, writes the admission of the configuration which has it
    /// then. Returns that one if the present webhook must stay, because API servers may not apply its policy yet. A problem of
    /// that configuration alone, which its own reconcile reports, does not delay this one.
    async fn apply_successor(
        &self,
        config: &PeerPodConfig,
        observed: &Observed,
        configs: &[Arc<PeerPodConfig>],
    ) -> Result<Option<Arc<PeerPodConfig>>, ReconcileError> {
        let Some(present) = &observed.present else { return Ok(None) };
        let Some(successor) = successor(config, &present.class, configs) else { return Ok(None) };
        let observed = self.observer.observe(&successor, configs).await?;
        let desired = Desired::of(&successor, &observed, &self.namespace);
        let sources = Sources::read(&self.observer.client, &self.namespace, &successor).await?;
        match self.apply(&successor, &desired, sources.tls).await {
            // A refused object is of that configuration alone, and may need what this one is about to leave, such as room in a quota.
            Err(ReconcileError::Api(error)) if !error.is_refusal_of_object() => {
                Err(ReconcileError::Api(error))
            }
            Err(error) => {
                let name = successor.name_any();
                warn!(%error, "the admission of PeerPodConfig {name}, which is to take over, cannot be set up");
                Ok(None)
            }
            Ok(applied) => {
                // API servers forget a registration sooner than they learn of a policy. One that cannot be created is not waited for.
                let is_from_webhook = (present.means, desired.means) == (Means::Webhook, Means::Policy);
                let is_whole = applied.found.objects.len() >= desired.kinds.len();
                Ok((is_from_webhook && is_whole && applied.is_settling).then_some(successor))
            }
        }
    }

    /// Writes the admission, and notes whether API servers may not apply it yet. It notes that after a failure, too.
    async fn apply(
        &self,
        config: &PeerPodConfig,
        desired: &Desired,
        tls: Option<Result<TlsOptions, TlsError>>,
    ) -> Result<Applied, ReconcileError> {
        let was_in_force = match desired.means {
            Means::None => false,
            Means::Webhook => has_reason(config, Reason::WebhookRunning),
            Means::Policy => has_reason(config, Reason::PolicyInForce),
        };
        let written = self.write(config, desired, tls).await;
        let wrote = match &written {
            Ok((found, _)) => wrote(desired, found),
            // It may have written before it failed, or without an answer. What is in force does not become new by that.
            Err(_) => !was_in_force,
        };
        let name = config.name_any();
        let is_settling = self.propagation.is_settling(&name, wrote, was_in_force, Instant::now());
        written.map(|(found, webhook)| Applied { found, webhook, is_settling })
    }

    /// Writes the objects of the admission. Returns them, and what a webhook is built from.
    async fn write(
        &self,
        config: &PeerPodConfig,
        desired: &Desired,
        tls: Option<Result<TlsOptions, TlsError>>,
    ) -> Result<(Found, Option<WebhookInputs>), ReconcileError> {
        let owner = self.owner(config);
        match desired.means {
            Means::None => Ok((Found::default(), None)),
            Means::Policy => Ok((self.applier.policy(&owner, desired).await?, None)),
            Means::Webhook => {
                let inputs = self.observer.webhook(config, tls).await?;
                Ok((self.applier.webhook(&owner, desired, &inputs).await?, Some(inputs)))
            }
        }
    }

    fn owner<'a>(&'a self, config: &'a PeerPodConfig) -> Owner<'a> {
        Owner { config, namespace: &self.namespace }
    }
}

#[cfg(test)]
mod tests;
