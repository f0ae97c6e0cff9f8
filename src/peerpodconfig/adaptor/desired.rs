//! The wanted DaemonSet. Pure *(no client)*.

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;

use super::{
    super::resources::{self, AdaptorSettings, Inputs},
    settings,
};

/// The DaemonSet with a record of its settings. `since`: since when `settings` are in force, while Pods run on older ones.
pub(super) fn daemon_set(inputs: &Inputs, settings: &AdaptorSettings, since: Option<Timestamp>) -> DaemonSet {
    let mut daemon_set = resources::daemon_set(inputs);
    let record = settings::record(&settings.hash, since);
    daemon_set.metadata.annotations.get_or_insert_default().extend(record);
    daemon_set
}
