//! How the provider for a cloud is opened.

use std::{collections::BTreeMap, sync::Arc};

use kube::Client;
use operator_kit::Message;

use super::{Cloud, Error, ErrorClass, Opening, Provider, Shared, cloud::ClusterAccess};
use crate::settings::{Snapshot, Values};

/// Opens providers, by the [`Cloud`] or by a function of the program that embeds this library. Cheap to clone.
///
/// An embedding program may bring its own provider for one of the [`CLOUDS`](super::CLOUDS). It cannot add a cloud: PeerPods of any other
/// one are not supported.
#[derive(Clone, Default)]
pub struct Openers {
    own: BTreeMap<&'static str, Opener>,
    cluster: Option<ClusterAccess>,
    shared: Shared,
}

type Opener = Arc<dyn Fn(&Values, &Opening<'_>) -> Result<Box<dyn Provider>, Error> + Send + Sync>;

impl Openers {
    /// The same, but the providers for the cloud of this name, which is one of the [`CLOUDS`](super::CLOUDS), are opened by `open`.
    #[must_use]
    pub fn with<F>(mut self, cloud: &'static str, open: F) -> Self
    where
        F: Fn(&Values, &Opening<'_>) -> Result<Box<dyn Provider>, Error> + Send + Sync + 'static,
    {
        self.own.insert(cloud, Arc::new(open));
        self
    }

    /// The same for an operator with access to its cluster, where some clouds keep their state. `namespace` is the operator's.
    #[must_use]
    pub fn in_cluster(mut self, client: Client, namespace: &str) -> Self {
        self.cluster = Some(ClusterAccess { client, namespace: namespace.to_owned() });
        self
    }

    /// The provider that these settings describe, without limits and metrics.
    pub fn open(&self, snapshot: &Snapshot, opening: Opening<'_>) -> Result<Box<dyn Provider>, Error> {
        let cluster = opening.cluster.or_else(|| self.cluster.clone());
        let opening = Opening { cluster, shared: self.shared.clone(), ..opening };
        snapshot.endpoint().map_err(|obstacle| Error::new(ErrorClass::Invalid, obstacle))?;
        let cloud = snapshot.cloud();
        if let Some(open) = self.own.get(cloud) {
            return open(&snapshot.values, &opening);
        }
        let known = Cloud::named(cloud).ok_or_else(|| {
            let message = format!("this version of the operator does not delete VMs on {cloud}");
            Error::new(ErrorClass::NotSupported, Message::public(message))
        })?;
        (known.open)(&snapshot.values, &opening)
    }
}
