//! The configurations that the controller honours: those in the operator's own namespace *(no client)*.

use std::sync::Arc;

use jiff::Timestamp;
use kube::{
    ResourceExt,
    runtime::reflector::{ObjectRef, Store},
};

use super::{FINALIZER, conditions::ConditionType};
use crate::api::v1alpha1::PeerPodConfig;

/// All configurations, from the store of their watch.
#[derive(Clone)]
pub(super) struct Configs {
    store: Store<PeerPodConfig>,
    /// The operator's own namespace.
    namespace: String,
}

impl Configs {
    pub(super) fn new(store: Store<PeerPodConfig>, namespace: String) -> Self {
        Self { store, namespace }
    }

    /// The operator's own namespace.
    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// A configuration as it is now.
    pub(super) fn latest(&self, config: &PeerPodConfig) -> Option<Arc<PeerPodConfig>> {
        self.store.get(&ObjectRef::from_obj(config))
    }

    /// Whether the controller honours a configuration.
    pub(super) fn honours(&self, config: &PeerPodConfig) -> bool {
        config.namespace().as_deref() == Some(&*self.namespace)
    }

    /// All configurations that the controller honours, the oldest first, also those that are being deleted and still have the
    /// finalizer.
    pub(super) fn honoured(&self) -> Vec<Arc<PeerPodConfig>> {
        let mut honoured = self.store.state();
        honoured.retain(|config| {
            let deleted = config.metadata.deletion_timestamp.is_some();
            self.honours(config) && (!deleted || has_finalizer(config))
        });
        honoured.sort_by(|a, b| place(a).cmp(&place(b)));
        honoured
    }

    /// The configuration of this name.
    pub(super) fn named(&self, name: &str) -> ObjectRef<PeerPodConfig> {
        ObjectRef::new(name).within(&self.namespace)
    }

    /// Those that match, to be requeued.
    pub(super) fn matching(&self, matches: impl Fn(&PeerPodConfig) -> bool) -> Vec<ObjectRef<PeerPodConfig>> {
        let configs = self.store.state().into_iter();
        let matching = configs.filter(|config| self.honours(config) && matches(config));
        matching.map(|config| ObjectRef::from_obj(&*config)).collect()
    }
}

/// The order of configurations: the older one first, then by name. The first one that selects a node has it, and the first one for a
/// runtime class has its admission.
pub(super) fn precedence(created: Option<Timestamp>, name: &str) -> (Option<Timestamp>, &str) {
    (created, name)
}

fn place(config: &PeerPodConfig) -> (Option<Timestamp>, &str) {
    let created = config.metadata.creation_timestamp.as_ref().map(|time| time.0);
    precedence(created, config.metadata.name.as_deref().unwrap_or_default())
}

/// Whether a configuration has the operator's finalizer.
pub(super) fn has_finalizer(config: &PeerPodConfig) -> bool {
    config.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
}

/// Whether its status has the condition `Conflict`.
pub(super) fn is_in_conflict(config: &PeerPodConfig) -> bool {
    let mut conditions = config.status.iter().flat_map(|status| &status.conditions);
    conditions.any(|condition| condition.type_ == ConditionType::Conflict.as_str())
}
