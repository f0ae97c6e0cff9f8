//! What all webhooks share *(client required)*: the Secret of their certificate, and the Lease of the replica that rotates it.
//!
//! The operator creates both, empty, so that the webhook needs no right to create Secrets. That right would give access to the
//! token of any ServiceAccount in the namespace. (The operator's own right is for this name, which only server-side apply can
//! use.) The configurations that have a webhook own both objects. They are deleted with the last of these configurations, or when
//! it no longer has a webhook. A Secret with a certificate from another source stays.
//!
//! `trust.rs` writes what is in the Secret into a registration, `watched.rs` knows both objects.

mod trust;
mod watched;

use std::{fmt::Debug, sync::Arc, time::Instant};

use futures::{Stream, try_join};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{coordination::v1::Lease, core::v1::Secret},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ObjectMeta, Patch, PatchParams},
};
use operator_kit::{
    Permission,
    api_call::{ApiError, bounded, delete_as_read, get_opt, if_unchanged},
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

/// How an object's owners change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnerChange {
    /// They stay as they are.
    Keep,
    /// The configuration becomes an owner.
    Add,
    /// The configuration is no longer an owner.
    RemoveOwner,
    /// The object goes with its last owner.
    DeleteObject,
}

/// How the owners of an object change for the configuration with this uid. `is_needed`: the configuration has a webhook. `is_managed`:
/// the operator created what the object has.
fn owner_change(owner_uids: &[String], uid: &str, is_needed: bool, is_managed: bool) -> OwnerChange {
    let is_owner = owner_uids.iter().any(|owner| owner == uid);
    let has_other_owners = owner_uids.iter().any(|owner| owner != uid);
    match (is_needed && is_managed, is_owner) {
        (true, true) | (false, false) => OwnerChange::Keep,
        (true, false) => OwnerChange::Add,
        (false, true) if is_managed && !has_other_owners => OwnerChange::DeleteObject,
        (false, true) => OwnerChange::RemoveOwner,
    }
}

fn owner_uids(object: &impl ResourceExt) -> Vec<String> {
    object.owner_references().iter().map(|owner| owner.uid.clone()).collect()
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

    /// `is_needed`: the configuration has a webhook. Then it becomes an owner of both objects, and what is missing is created. Else it
    /// owns neither object, and an object that only it owned is deleted. It calls the API server only for what differs.
    pub(super) async fn set_owner(&self, config: &PeerPodConfig, is_needed: bool) -> Result<(), ApiError> {
        let Some(owner) = config.owner_ref(&()) else { return Ok(()) };
        let lease = async {
            if self.is_settled::<Lease>(config, LEASE, self.watched.lease_matches(&owner.uid, is_needed)) {
                return Ok(());
            }
            let metadata = ObjectMeta { name: Some(LEASE.to_owned()), ..ObjectMeta::default() };
            let blank = Lease { metadata, ..Lease::default() };
            self.set_owner_of(blank, config, &owner, is_needed, |_| true).await
        };
        let secret = async {
            if self.is_settled::<Secret>(config, SECRET, self.watched.secret_matches(&owner.uid, is_needed)) {
                return Ok(());
            }
            let blank = managed_secret::blank(SECRET);
            self.set_owner_of(blank, config, &owner, is_needed, ManagedSecret::is_ours).await
        };
        try_join!(lease, secret).map(|_| ())
    }

    /// Whether nothing is to do because the watched object `matches`. Then no drift of it is left.
    fn is_settled<K: Resource<DynamicType = ()>>(
        &self,
        config: &PeerPodConfig,
        name: &str,
        matches: bool,
    ) -> bool {
        if matches {
            self.drifts.settled(&key::<K>(config, name));
        }
        matches
    }

    /// The same for one of the objects. `blank`: what is created if it is needed and missing, unless others keep changing its owners.
    async fn set_owner_of<K>(
        &self,
        blank: K,
        config: &PeerPodConfig,
        owner: &OwnerReference,
        is_needed: bool,
        is_managed: impl Fn(&K) -> bool,
    ) -> Result<(), ApiError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), &self.namespace);
        let name = blank.name_any();
        let key = key::<K>(config, &name);
        let present = get_opt(&api, &name).await?;
        let change =
            present.as_ref().map(|it| owner_change(&owner_uids(it), &owner.uid, is_needed, is_managed(it)));
        let is_done = change.map_or(!is_needed, |change| change == OwnerChange::Keep);
        if is_done || is_needed && !self.drifts.admit(&key, &owner.uid, Instant::now()) {
            return Ok(());
        }
        let written = match present.zip(change) {
            None => create(&api, blank, owner).await,
            Some((present, change)) => change_owners(&api, &present, owner, change).await,
        };
        if is_needed && written.is_err() {
            self.drifts.not_written(&key);
        }
        // An object that changed or was removed meanwhile triggers the next reconcile.
        if_unchanged(&name, written).map(drop)
    }
}

/// Creates an object with this owner.
async fn create<K>(api: &Api<K>, mut blank: K, owner: &OwnerReference) -> Result<(), ApiError>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    let (name, kind) = (blank.name_any(), K::kind(&()));
    info!(%kind, name, "creating the objects that the webhooks share");
    blank.meta_mut().owner_references = Some(vec![owner.clone()]);
    // Without force: an object that is created at the same time stays.
    let params = PatchParams::apply(FIELD_MANAGER);
    bounded(api.patch_metadata(&name, &params, &Patch::Apply(&blank))).await.map(drop)
}

/// Makes this change of the owners of an object that was read.
async fn change_owners<K>(
    api: &Api<K>,
    present: &K,
    owner: &OwnerReference,
    change: OwnerChange,
) -> Result<(), ApiError>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let (name, kind) = (present.name_any(), K::kind(&()));
    let owners = match change {
        OwnerChange::Keep => return Ok(()),
        OwnerChange::Add => json!([owner]),
        OwnerChange::RemoveOwner => json!([{ "uid": owner.uid, "$patch": "delete" }]),
        OwnerChange::DeleteObject => {
            info!(%kind, name, "removing the objects that the webhooks shared");
            // A Secret that was filled meanwhile stays.
            return delete_as_read(api, present).await;
        }
    };
    let patch = json!({ "metadata": { "uid": present.uid(), "ownerReferences": owners } });
    let params = PatchParams::apply(FIELD_MANAGER);
    bounded(api.patch_metadata(&name, &params, &Patch::Strategic(patch))).await.map(drop)
}

fn key<K: Resource<DynamicType = ()>>(config: &PeerPodConfig, name: &str) -> Key {
    Key { config: Some(config.name_any()), kind: K::kind(&()).into_owned(), name: name.to_owned() }
}

#[cfg(test)]
mod tests {
    use operator_kit::testing::{Answer, ApiServer, Call};

    use super::*;
    use crate::api::v1alpha1::PeerPodConfigSpec;

    const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/ns/leases";

    fn config() -> (PeerPodConfig, OwnerReference) {
        let mut config = PeerPodConfig::new("config", PeerPodConfigSpec::default());
        config.metadata.uid = Some("own".to_owned());
        let owner = config.owner_ref(&()).unwrap();
        (config, owner)
    }

    #[tokio::test]
    async fn a_write_that_keeps_failing_is_an_error_each_time_and_no_drift() {
        let path = format!("{LEASES}/{LEASE}");
        let (config, owner) = config();
        let metadata = ObjectMeta { name: Some(LEASE.to_owned()), ..ObjectMeta::default() };
        let lease = Lease { metadata, ..Lease::default() };
        for found in [Answer::not_found("leases", LEASE), Answer::object(&lease)] {
            let denied = Answer::error(403, "Forbidden", "denied by a policy");
            let calls = [Call::get(&path).answer(found), Call::patch(&path).answer(denied)];
            let server = ApiServer::expecting((0..5).flat_map(|_| calls.clone()));
            let drifts = Arc::new(Drifts::default());
            let (resources, _changes) = WebhookResources::watch(&server.client(), "ns", drifts.clone());
            for _ in 0..5 {
                let acquired = resources.set_owner_of(lease.clone(), &config, &owner, true, |_| true).await;
                let error = acquired.unwrap_err();
                assert!(error.to_string().contains("denied by a policy"), "{error}");
            }
            assert!(drifts.finding("config", Instant::now()).is_none());
        }
    }

    #[tokio::test]
    async fn a_released_object_loses_the_owner_and_the_last_owner_takes_it_along() {
        let path = format!("{LEASES}/{LEASE}");
        let (config, owner) = config();
        let blank = Lease {
            metadata: ObjectMeta { name: Some(LEASE.to_owned()), ..ObjectMeta::default() },
            ..Lease::default()
        };
        let found = |owners: &[&str]| {
            let of = |uid: &&str| OwnerReference { uid: (*uid).to_owned(), ..owner.clone() };
            let metadata = ObjectMeta {
                name: Some(LEASE.to_owned()),
                uid: Some("u-1".to_owned()),
                resource_version: Some("7".to_owned()),
                owner_references: Some(owners.iter().map(of).collect()),
                ..ObjectMeta::default()
            };
            Call::get(&path).answer(Answer::object(&Lease { metadata, ..Lease::default() }))
        };
        let without = json!([{ "uid": "own", "$patch": "delete" }]);
        let changed = || Answer::conflict("leases", LEASE);
        let server = ApiServer::expecting([
            Call::get(&path).answer(Answer::not_found("leases", LEASE)),
            found(&["other"]),
            found(&["other", "own"]),
            Call::patch(&path)
                .body(json!({ "metadata": { "uid": "u-1", "ownerReferences": without } }))
                .answer(changed()),
            found(&["own"]),
            Call::delete(&path)
                .body_with(json!({ "preconditions": { "uid": "u-1", "resourceVersion": "7" } }))
                .answer(changed()),
        ]);
        let (resources, _changes) = WebhookResources::watch(&server.client(), "ns", Arc::default());
        for _ in 0..4 {
            resources.set_owner_of(blank.clone(), &config, &owner, false, |_| true).await.unwrap();
        }
    }

    #[test]
    fn an_object_goes_with_its_last_owner_and_one_of_another_source_has_none() {
        use OwnerChange::{Add, DeleteObject, Keep, RemoveOwner};
        let uids = |uids: &[&str]| -> Vec<_> { uids.iter().map(|uid| (*uid).to_owned()).collect() };
        for (owners, is_managed, needed, not_needed) in [
            (uids(&[]), true, Add, Keep),
            (uids(&["other"]), true, Add, Keep),
            (uids(&["own"]), true, Keep, DeleteObject),
            (uids(&["other", "own"]), true, Keep, RemoveOwner),
            (uids(&["other"]), false, Keep, Keep),
            (uids(&["own"]), false, RemoveOwner, RemoveOwner),
        ] {
            let change = |is_needed| owner_change(&owners, "own", is_needed, is_managed);
            assert_eq!((change(true), change(false)), (needed, not_needed), "{owners:?} {is_managed}");
        }
    }
}
