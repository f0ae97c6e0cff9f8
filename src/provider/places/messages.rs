//! What the keeper of the places logs, and its errors *(no client)*. `places`: its `ConfigMap`, for people.

use std::{fmt::Display, time::Duration};

use operator_kit::Message;
use tracing::{info, warn};

use super::records::{MOST_FORMER, Records, Unreadable};
use crate::{
    names::PLACES,
    provider::{Error, ErrorClass},
    settings::Endpoint,
};

/// How the places of a cloud changed.
pub(super) struct Change<'a> {
    pub(super) before: &'a Records,
    pub(super) after: &'a Records,
    pub(super) cloud: &'a str,
    /// The key of the place that the settings name.
    pub(super) key: &'a str,
    /// The endpoint that the settings name.
    pub(super) endpoint: &'a Endpoint,
}

/// Logs how the places changed.
pub(super) fn announce(places: &str, change: &Change<'_>) {
    let &Change { before, after, cloud, key, endpoint: Endpoint { setting, address } } = change;
    info!(places, key, setting, address, "the place that the settings name is recorded");
    if after.of(key).and_then(|it| it.moved_at) != before.of(key).and_then(|it| it.moved_at) {
        warn!(
            places,
            key,
            setting,
            address,
            "another host, account or pool answers than before: a VM that is not there is not absent, and holds its PeerPod. If \
             no VM is left in the former one, or only the UUID of the host changed, delete the entry"
        );
    }
    for (former, record) in before.former(cloud, key).filter(|(_, record)| record.until.is_none()) {
        warn!(
            places,
            key = former,
            setting,
            address = record.address,
            "the settings named another place before: the operator does not delete a VM that is there, and the VM holds its \
             PeerPod. If no VM is there any more, delete the entry"
        );
    }
}

/// Logs that these entries are new, of places of settings that the operator cannot use.
pub(super) fn announce_unplaced<'a>(places: &str, keys: impl IntoIterator<Item = &'a str>) {
    for key in keys {
        warn!(
            places,
            key,
            "the operator cannot use the mounted settings, by which cloud-api-adaptor may make VMs. From now on a VM that is in no \
             other place holds its PeerPod. After a correction of the settings, delete the VMs that were made there, and then the entry"
        );
    }
}

/// An entry is no place.
pub(super) fn unreadable(Unreadable(key): &Unreadable, places: &str) -> Error {
    let public = format!(
        "the operator cannot read the entry {key} of its ConfigMap {PLACES}; correct or delete that entry"
    );
    invalid(public, places)
}

/// There are more former places than the operator asks in.
pub(super) fn full(endpoint: &Endpoint, places: &str) -> Error {
    let public = format!(
        "{} has pointed to so many places that the ConfigMap {PLACES} holds more than {MOST_FORMER} former ones; delete the \
         entries of places where no VM is any more",
        endpoint.setting
    );
    invalid(public, places)
}

fn invalid(public: String, places: &str) -> Error {
    let full = format!("{public} (ConfigMap {places})");
    Error::new(ErrorClass::Invalid, Message::new(public, full))
}

/// The host did not identify itself within this time.
pub(super) fn no_host(patience: Duration) -> Error {
    let message = format!("the cloud did not say within {patience:?} which host it is");
    Error::new(ErrorClass::Transient, Message::public(message))
}

/// A call for the `ConfigMap` failed, with this status code if there is one.
pub(super) fn failed(verb: &str, places: &str, code: Option<u16>, error: &dyn Display) -> Error {
    let advice = if code == Some(403) { "; apply the operator's roles of this version" } else { "" };
    let public = format!(
        "the operator cannot {verb} its ConfigMap {PLACES}, which holds the places that VMs may be in, and decides nothing until \
         then{advice}"
    );
    let full = format!("{public} (ConfigMap {places}: {error})");
    let class = if code == Some(403) { ErrorClass::Unauthorized } else { ErrorClass::Transient };
    Error::new(class, Message::new(public, full))
}
