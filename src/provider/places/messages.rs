//! What the keeper of the places logs, and its errors *(no client)*. `places`: its `ConfigMap`, for people.

use std::{fmt::Display, time::Duration};

use operator_kit::Message;
use tracing::{info, warn};

use super::records::{MOST_FORMER, Record, Records, Unreadable};
use crate::{
    names::PLACES,
    provider::{Error, ErrorClass},
    settings::Endpoint,
};

/// Logs that the record has the place that the settings name.
pub(super) fn announce(places: &str, key: &str, Endpoint { setting, address }: &Endpoint) {
    info!(places, key, setting, address, "the place that the settings name is recorded");
}

/// Logs that another identity answers at the place that the settings name.
pub(super) fn announce_move(places: &str, key: &str, Endpoint { setting, address }: &Endpoint) {
    warn!(
        places,
        key,
        setting,
        address,
        "another host, account or pool answers than before: the operator does not count a VM as absent because it is not there; its \
         PeerPod stays. If no VM is left in the former one, or only the UUID of the host changed, delete the entry"
    );
}

/// Logs which places that the settings do not name the record has since `before`.
pub(super) fn announce_former(places: &str, before: &Records, after: &Records) {
    for (key, Record { address, .. }) in after.newly_former(before) {
        if address.is_empty() {
            warn!(
                places,
                key,
                "the operator cannot use the mounted settings, by which cloud-api-adaptor may make VMs. Until this entry is deleted, a \
                 PeerPod stays if the operator finds its VM in no known place and has not seen it before. After a correction of the \
                 settings, delete the VMs that were made there, and then the entry"
            );
        } else {
            warn!(
                places,
                key,
                address,
                "the settings named another place before, or cloud-api-adaptor's name another one: the operator does not delete a VM \
                 that is there, and the VM holds its PeerPod. If no VM is there any more, delete the entry"
            );
        }
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

/// The cloud did not say within this time who answers.
pub(super) fn no_identity(patience: Duration) -> Error {
    let message = format!("the cloud did not say within {patience:?} which host, account or pool answers");
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
