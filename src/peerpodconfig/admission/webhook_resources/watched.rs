//! Watches the two objects that all webhooks share.

use std::fmt::Debug;

use futures::{Stream, StreamExt, future::ready, stream};
use jiff::Timestamp;
use k8s_openapi::{
    ByteString, NamespaceResourceScope,
    api::{coordination::v1::Lease, core::v1::Secret},
};
use kube::{Api, Client, Resource, api::PartialObjectMeta, runtime::watcher};
use operator_kit::watch::retry_watch;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::{OwnerChange, owner_change, owner_uids};
use crate::webhook::certificates::{
    managed_secret::{CERTIFICATE, ManagedSecret},
    rotation::{self, LEASE, SECRET},
    validation::problem,
};

/// What is known of the Secret and of the Lease.
#[derive(Clone)]
pub(in super::super) struct Watched {
    secret: watch::Sender<Seen>,
    lease: watch::Sender<Seen>,
}

/// The stored part of one of them. A private key is not stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Seen {
    #[default]
    NotYet,
    Absent,
    There {
        owner_uids: Vec<String>,
        /// Whether the operator created what it has.
        is_managed: bool,
        authorities: Option<ByteString>,
        certificate: Option<ByteString>,
    },
}

impl Watched {
    /// Returns the store, and a stream with an item for each change.
    pub(in super::super) fn watch(
        client: &Client,
        namespace: &str,
    ) -> (Self, impl Stream<Item = ()> + Send + use<>) {
        let (secret, lease) = (watch::Sender::default(), watch::Sender::default());
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let leases: Api<PartialObjectMeta<Lease>> = Api::namespaced(client.clone(), namespace);
        let changes = stream::select(
            changes(secrets, SECRET, secret.clone(), |secret| Seen::There {
                owner_uids: owner_uids(secret),
                is_managed: ManagedSecret::is_ours(secret),
                authorities: rotation::authorities(secret).cloned(),
                certificate: secret.data.as_ref().and_then(|data| data.get(CERTIFICATE)).cloned(),
            }),
            // Its holder writes it every few seconds.
            changes(leases, LEASE, lease.clone(), |lease| Seen::There {
                owner_uids: owner_uids(lease),
                is_managed: true,
                authorities: None,
                certificate: None,
            }),
        );
        (Self { secret, lease }, changes)
    }

    /// Whether the Secret is known to be as wanted for the configuration with this uid. `is_needed`: the configuration has a webhook.
    pub(super) fn secret_matches(&self, uid: &str, is_needed: bool) -> bool {
        self.secret.borrow().matches(uid, is_needed)
    }

    /// The same of the Lease.
    pub(super) fn lease_matches(&self, uid: &str, is_needed: bool) -> bool {
        self.lease.borrow().matches(uid, is_needed)
    }

    /// The authorities in the Secret, if there are any.
    pub(in super::super) fn authorities(&self) -> Option<ByteString> {
        match &*self.secret.borrow() {
            Seen::There { authorities, .. } => authorities.clone(),
            Seen::NotYet | Seen::Absent => None,
        }
    }

    /// Whether the operator did not create the certificate in the Secret.
    pub(in super::super) fn is_unmanaged(&self) -> bool {
        matches!(&*self.secret.borrow(), Seen::There { is_managed: false, .. })
    }

    /// Why API servers that trust these authorities and call the webhook by this name reject a certificate in the Secret that the
    /// operator did not create, as the end of a sentence; `None` if they accept it.
    pub(in super::super) fn certificate_problem(
        &self,
        name: &str,
        authorities: Option<&ByteString>,
        now: Timestamp,
    ) -> Option<String> {
        match &*self.secret.borrow() {
            Seen::There { is_managed: false, certificate, .. } => {
                let certificate = certificate.as_ref().map(|it| &*it.0).unwrap_or_default();
                problem(certificate, authorities.map(|it| &*it.0), name, now)
            }
            _ => None,
        }
    }
}

impl Seen {
    fn matches(&self, uid: &str, is_needed: bool) -> bool {
        match self {
            Self::NotYet => false,
            Self::Absent => !is_needed,
            Self::There { owner_uids, is_managed, .. } => {
                owner_change(owner_uids, uid, is_needed, *is_managed) == OwnerChange::Keep
            }
        }
    }
}

fn changes<K, F>(
    api: Api<K>,
    name: &str,
    known: watch::Sender<Seen>,
    see: F,
) -> impl Stream<Item = ()> + Send + use<K, F>
where
    F: Fn(&K) -> Seen + Send + 'static,
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + 'static,
{
    retry_watch("objects that the webhooks share", watcher::watch_object(api, name)).filter_map(
        move |object| {
            let changed = object.is_ok_and(|object| {
                let seen = object.as_ref().map_or(Seen::Absent, &see);
                known.send_if_modified(|known| std::mem::replace(known, seen.clone()) != seen)
            });
            ready(changed.then_some(()))
        },
    )
}

#[cfg(test)]
impl Watched {
    /// Both objects as the operator creates them for the configuration with this uid, and with these authorities.
    pub(in super::super) fn learn(&self, owner_uid: &str, authorities: &[u8]) {
        let seen = |authorities| Seen::There {
            owner_uids: vec![owner_uid.to_owned()],
            is_managed: true,
            authorities,
            certificate: None,
        };
        self.secret.send_replace(seen(Some(ByteString(authorities.to_vec()))));
        self.lease.send_replace(seen(None));
    }

    /// The Secret with these authorities and this certificate from another source.
    pub(in super::super) fn learn_unmanaged(&self, authorities: &[u8], certificate: &[u8]) {
        let [authorities, certificate] =
            [authorities, certificate].map(|bytes| Some(ByteString(bytes.to_vec())));
        let owner_uids = Vec::new();
        self.secret.send_replace(Seen::There { owner_uids, is_managed: false, authorities, certificate });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_known_to_be_in_the_wanted_state_need_no_request() {
        let there = |owners: &[&str], is_managed| {
            let owner_uids = owners.iter().map(|owner| (*owner).to_owned()).collect();
            Seen::There { owner_uids, is_managed, authorities: None, certificate: None }
        };
        for (seen, needed, not_needed) in [
            (Seen::NotYet, false, false),
            (Seen::Absent, false, true),
            (there(&[], true), false, true),
            (there(&["other"], true), false, true),
            (there(&["other", "own"], true), true, false),
            // A Secret with a certificate from another source has no owner.
            (there(&["own"], false), false, false),
            (there(&["other"], false), true, true),
        ] {
            assert_eq!(seen.matches("own", true), needed, "{seen:?}");
            assert_eq!(seen.matches("own", false), not_needed, "{seen:?}");
        }
    }
}
