//! The identity of the cluster that the operator runs in *(client required)*.

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, Resource as _};
use operator_kit::{
    Permission,
    api_call::{self, ApiError},
    metadata::Metadata,
    projection::{IDENTITY_ALONE, reading},
};
use tokio::sync::OnceCell;
use tracing::warn;

use crate::names::KUBE_SYSTEM;

/// What the operator must be allowed to do to know its cluster.
pub const PERMISSIONS: &[Permission] =
    &[Permission::new("", &["namespaces"], &["get"]).named(&[KUBE_SYSTEM])];

/// The UID of the cluster; `None` if the namespace does not exist.
pub(crate) async fn read_uid(client: &Client) -> Result<Option<String>, ApiError> {
    let namespaces: Api<Metadata<Namespace>> = Api::all(reading(client, &IDENTITY_ALONE));
    // Boxed, because it is rarely read, and would enlarge the future of each reconcile.
    let found = Box::pin(api_call::get_opt(&namespaces, KUBE_SYSTEM)).await?;
    Ok(found.and_then(|found| found.meta().uid.clone()))
}

/// The UID of the cluster, which is read once.
pub(crate) struct Cluster {
    client: Client,
    uid: OnceCell<String>,
}

impl Cluster {
    pub(crate) fn new(client: &Client) -> Self {
        Self { client: client.clone(), uid: OnceCell::new() }
    }

    /// The UID, if it may be read. A failure is logged, and the next call tries again.
    pub(crate) async fn uid(&self) -> Option<&str> {
        let read = async || {
            let found = read_uid(&self.client).await.inspect_err(|error| {
                warn!(
                    %error,
                    "the UID of the namespace {KUBE_SYSTEM} is not known: until it is, the sweep cannot prove that a VM is this \
                     cluster's, and no VM with the tag caa-cluster-uid is deleted"
                );
            });
            found.ok().flatten().ok_or(())
        };
        self.uid.get_or_try_init(read).await.ok().map(String::as_str)
    }
}
