//! The rooms in which one configuration is set up.

use std::sync::Arc;

use futures::StreamExt;
use kube::Client;
use operator_kit::projection::reading;
use tokio::sync::Mutex;

use super::{
    adaptor::Adaptor,
    admission::Admission,
    apply::Objects,
    capacity::Capacity,
    drift::Drifts,
    options::Options,
    watches::{Changes, LABELLED},
};

/// The rooms. All configurations use the same nodes, so reconciles and the garbage collection take turns.
pub(super) struct Rooms {
    pub(super) adaptor: Adaptor,
    pub(super) admission: Admission,
    pub(super) capacity: Capacity,
    /// The objects that rooms write.
    pub(super) objects: Objects,
    pub(super) drifts: Arc<Drifts>,
    pub(super) turn: Mutex<()>,
}

impl Rooms {
    /// The rooms, and the changes that they watch, which must be polled.
    pub(super) fn watch(client: &Client, options: &Arc<Options>) -> (Self, Changes) {
        let drifts = Arc::new(Drifts::default());
        let objects = Objects::new(client.clone(), drifts.clone());
        let (capacity, nodes) = Capacity::watch(client);
        let (adaptor, daemon_sets, daemon_sets_elsewhere) =
            Adaptor::watch(client, objects.clone(), capacity.nodes().clone(), options.clone());
        let (admission, webhook_resources) =
            Admission::watch(client, objects.clone(), drifts.clone(), options.clone());
        let changes = Changes {
            nodes: nodes.boxed(),
            daemon_sets: daemon_sets.boxed(),
            daemon_sets_elsewhere: daemon_sets_elsewhere.boxed(),
            webhook_resources: webhook_resources.boxed(),
            policies: admission.policy_changes(&reading(client, &LABELLED)).boxed(),
        };
        (Self { adaptor, admission, capacity, objects, drifts, turn: Mutex::default() }, changes)
    }

    /// This process began or ceased to lead: another process may have led meanwhile.
    pub(super) fn leadership_changed(&self) {
        self.capacity.leadership_changed();
        self.admission.leadership_changed();
    }
}
