//! What all webhooks share *(client required)*: the Secret of their certificate, and the Lease of the replica that rotates it.
//!
//! The operator creates both, empty, so that the webhook needs no right to create Secrets. That right would give access to the
//! token of any ServiceAccount in the namespace. (The operator's own right is for this name, which only server-side apply can
//! use.) The configurations that have a webhook own both objects. They are deleted with the last of these configurations, or when
//! it no longer has a webhook. A Secret with a certificate from another source stays.

mod watched;

use std::{fmt::Debug, sync::Arc, time::Instant};

use futures::{Stream, try_join};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{coordination::v1::Lease, core::v1::Secret},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams, Preconditions},
};
use operator_kit::{
    Permission,
    api_call::{ApiError, bounded, get_opt},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use tracing::info;

pub(super) use self::watched::Watched;
use super::super::drift::{Drifts, Key};
use crate::{
    api::v1alpha1::{FIELD_MANAGER, PeerPodConfig},
    webhook::certificates::{
        managed_secret::{self, ManagedSecret},
        rotation::{LEASE, SECRET},
    },
};

/// What the operator may do to create and remove them. Some clusters also require `delete` to set an owner reference.
pub const PERMISSIONS: &[Permission] = &[
    Permission::new("", &["secrets"], &["get", "create", "patch", "delete"]).named(&[SECRET]),
    Permission::new(
        "coordination.k8s.io",
        &["leases"],
        &["get", "list", "watch", "create", "patch", "delete"],
    )
    .named(&[LEASE]),
];

/// Whether a configuration has a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// It has one: it owns both objects, and the operator creates what is missing.
    Needed,
    /// It has none: it owns neither, and the operator deletes an object without owners.
    Over,
}

/// Writes both objects *(client required)*.
pub(super) struct WebhookResources {
    client: Client,
    /// The operator's own namespace.
    namespace: String,
    drifts: Arc<Drifts>,
    watched: Watched,
}

impl WebhookResources {
    /// Yields at each change of one of the objects. The stream must be polled.
    pub(super) fn watch(
        client: &Client,
        namespace: &str,
        drifts: Arc<Drifts>,
    ) -> (Self, impl Stream<Item = ()> + Send + use<>) {
        let (watched, changes) = Watched::watch(client, namespace);
        let namespace = namespace.to_owned();
        (Self { client: client.clone(), namespace, drifts, watched }, changes)
    }

    /// What is known of them.
    pub(super) fn watched(&self) -> &Watched {
        &self.watched
    }

    /// Writes both objects as a configuration needs them. It calls the API server only if they differ.
    pub(super) async fn ensure(&self, config: &PeerPodConfig, use_: Use) -> Result<(), ApiError> {
        let Some(owner) = config.owner_ref(&()) else { return Ok(()) };
        let lease = async {
            if self.watched.lease_is_so(&owner.uid, use_) {
                self.drifts.settled(&key::<Lease>(config, LEASE));
                return Ok(());
            }
            let lease = ObjectMeta { name: Some(LEASE.to_owned()), ..ObjectMeta::default() };
            self.own(config, use_, Lease { metadata: lease, ..Lease::default() }, |_| true).await
        };
        let secret = async {
            if self.watched.secret_is_so(&owner.uid, use_) {
                self.drifts.settled(&key::<Secret>(config, SECRET));
                return Ok(());
            }
            self.own(config, use_, managed_secret::blank(SECRET), ManagedSecret::is_ours).await
        };
        try_join!(lease, secret).map(|_| ())
    }

    async fn own<K>(
        &self,
        config: &PeerPodConfig,
        use_: Use,
        mut blank: K,
        is_ours: impl Fn(&K) -> bool,
    ) -> Result<(), ApiError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        let Some(owner) = config.owner_ref(&()) else { return Ok(()) };
        let api: Api<K> = Api::namespaced(self.client.clone(), &self.namespace);
        let (name, kind) = (blank.name_any(), K::kind(&()));
        let key = key::<K>(config, &name);
        let is_left = || use_ == Use::Needed && !self.drifts.admit(&key, &owner.uid, Instant::now());
        let Some(there) = get_opt(&api, &name).await? else {
            if use_ == Use::Needed && !is_left() {
                info!(%kind, name, "creating the objects that the webhooks share");
                blank.meta_mut().owner_references = Some(vec![owner]);
                // Without force: an object that is created at the same time stays.
                let params = PatchParams::apply(FIELD_MANAGER);
                let made = bounded(api.patch_metadata(&name, &params, &Patch::Apply(&blank))).await;
                unless_changed(&name, made)?;
            }
            return Ok(());
        };
        let (ours, others): (Vec<_>, Vec<_>) =
            there.owner_references().iter().partition(|it| it.uid == owner.uid);
        let (held, ours) = (!ours.is_empty(), is_ours(&there));
        let owners = match (use_ == Use::Needed && ours, held) {
            (true, false) => json!([owner]),
            (false, true) if ours && others.is_empty() => {
                info!(%kind, name, "removing the objects that the webhooks shared");
                // Only if it is unchanged since it was read: a Secret that was filled meanwhile stays.
                let preconditions =
                    Preconditions { uid: there.uid(), resource_version: there.resource_version() };
                let params =
                    DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
                return unless_changed(&name, bounded(api.delete(&name, &params)).await);
            }
            (false, true) => json!([{ "uid": owner.uid, "$patch": "delete" }]),
            (true, true) | (false, false) => return Ok(()),
        };
        if is_left() {
            return Ok(());
        }
        let params = PatchParams::apply(FIELD_MANAGER);
        let patch = json!({ "metadata": { "uid": there.uid(), "ownerReferences": owners } });
        let patched = bounded(api.patch_metadata(&name, &params, &Patch::Strategic(patch))).await;
        unless_changed(&name, patched)
    }
}

fn key<K: Resource<DynamicType = ()>>(config: &PeerPodConfig, name: &str) -> Key {
    Key { config: Some(config.name_any()), kind: K::kind(&()).into_owned(), name: name.to_owned() }
}

/// An object that changed or was removed meanwhile triggers the next reconcile.
fn unless_changed<T>(name: &str, written: Result<T, ApiError>) -> Result<(), ApiError> {
    match written {
        Err(error) if !error.is_gone_or_changed(name) => Err(error),
        _ => Ok(()),
    }
}
