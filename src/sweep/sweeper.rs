//! What all rounds of the sweep share *(client required)*.

use operator_kit::status::Publisher;

use super::{Options, search::Search};
use crate::{
    api::v1alpha1::FIELD_MANAGER,
    peerpod::{PEERPOD, PeerPods, Shared},
};

/// Sweeps all clouds of a controller of PeerPods, and passes its findings about PeerPods to that.
pub struct Sweeper {
    pub(super) search: Search,
    pub(super) shared: Shared,
    pub(super) options: Options,
    pub(super) publisher: Publisher,
}

impl Sweeper {
    /// The sweep beside this controller.
    pub fn beside(controller: &PeerPods, options: Options) -> Self {
        let shared = controller.shared();
        Self {
            search: Search::new(shared.client.clone(), shared.metrics.clone()),
            publisher: Publisher::new(&shared.client, &PEERPOD, FIELD_MANAGER, "Sweeping"),
            shared,
            options,
        }
    }
}
