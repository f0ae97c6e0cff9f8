//! What all webhooks share *(client required)*: the Secret of their certificate, and the Lease of the one that keeps it.
//!
//! The operator makes both, empty, since no right to make a Secret is a small one: by it one gets the token of any
//! ServiceAccount in the namespace. (The operator's own is for this name, which only server-side apply can use.) They are
//! owned by the configurations that ask for a webhook, so the garbage collector removes them after the last one. A Secret that
//! somebody else filled stays theirs.

use std::fmt::Debug;

use k8s_openapi::{NamespaceResourceScope, api::coordination::v1::Lease};
use kube::{
    Api, Resource, ResourceExt,
    api::{ObjectMeta, Patch, PatchParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use tracing::info;

use super::{Context, pass::PassError};
use crate::{
    api::v1alpha1::{FIELD_MANAGER, PeerPodConfig},
    permissions::Permission,
    runtime::api_call::bounded,
    webhook::certificates::{
        keeper::{LEASE, SECRET},
        kept::{self, Kept},
    },
};

/// What the operator may do to have them there. `delete` is for clusters that let nobody say who owns an object without it.
pub const PERMISSIONS: &[Permission] = &[
    Permission::new("", &["secrets"], &["get", "create", "patch", "delete"]).named(&[SECRET]),
    Permission::new("coordination.k8s.io", &["leases"], &["get", "create", "patch", "delete"])
        .named(&[LEASE]),
];

impl Context {
    /// Makes what the webhook of a configuration needs, if it is missing, and lets the configuration own it.
    pub(super) async fn share(&self, config: &PeerPodConfig) -> Result<(), PassError> {
        let lease = ObjectMeta { name: Some(LEASE.to_owned()), ..ObjectMeta::default() };
        self.own(config, Lease { metadata: lease, ..Lease::default() }, |_| true).await?;
        self.own(config, kept::blank(SECRET), Kept::is_ours).await
    }

    async fn own<K>(
        &self,
        config: &PeerPodConfig,
        mut wanted: K,
        is_ours: impl Fn(&K) -> bool,
    ) -> Result<(), PassError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        let Some(owner) = config.owner_ref(&()) else { return Ok(()) };
        let api: Api<K> = Api::namespaced(self.client.clone(), &self.options.namespace);
        let name = wanted.name_any();
        let Some(there) = bounded(api.get_opt(&name)).await? else {
            info!(kind = %K::kind(&()), name, "making what the webhooks share");
            wanted.meta_mut().owner_references = Some(vec![owner]);
            // Without force: what somebody else makes at the same time stays.
            let params = PatchParams::apply(FIELD_MANAGER);
            bounded(api.patch(&name, &params, &Patch::Apply(&wanted))).await?;
            return Ok(());
        };
        let held = there.owner_references().iter().any(|it| it.uid == owner.uid);
        let owners = match (is_ours(&there), held) {
            (true, false) => json!([owner]),
            (false, true) => json!([{ "uid": owner.uid, "$patch": "delete" }]),
            (true, true) | (false, false) => return Ok(()),
        };
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patch = json!({ "metadata": { "uid": there.uid(), "ownerReferences": owners } });
        bounded(api.patch_metadata(&name, &params, &Patch::Strategic(patch))).await?;
        Ok(())
    }
}
