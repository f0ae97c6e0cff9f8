//! What a libvirt host has of pod VMs.

use std::collections::HashSet;

use futures::future::try_join;

use super::{
    Libvirt,
    definition::{own_volume_of, split},
};
use crate::provider::{Error, Listed, POD_VM, Pages, Resource};

impl Libvirt {
    /// One page of domains, and one of volumes in the pool whose domain is gone. libvirt gives either list whole.
    pub(super) async fn list_all(&self, pages: Pages<'_>) -> Result<(), Error> {
        let domains = async {
            let listed = self.client.domains().await;
            listed.map_err(|error| self.explain("listing the domains", &error))
        };
        let volumes = async {
            let explain = |error| self.explain("listing the volumes of the pool (LIBVIRT_POOL)", &error);
            let pool = self.client.pool_lookup_by_name(&self.pool).await.map_err(explain)?;
            self.client.pool_volumes(&pool).await.map_err(explain)
        };
        let (mut domains, volumes) = try_join(domains, volumes).await?;
        domains.retain(|domain| domain.name.starts_with(POD_VM));
        let names: HashSet<_> = domains.iter().map(|domain| domain.name.as_str()).collect();
        let left = volumes.into_iter().filter(|volume| {
            let of = own_volume_of(split(&volume.key).1);
            of.is_some_and(|domain| domain.starts_with(POD_VM) && !names.contains(domain))
        });
        let left = left.map(|volume| Listed {
            kind: Resource::Disk,
            name: split(&volume.key).1.to_owned(),
            id: volume.key,
            created: None,
        });
        let left: Vec<_> = left.collect();
        let vms = domains.into_iter().map(|domain| Listed {
            kind: Resource::Vm,
            id: domain.uuid.hyphenated().to_string(),
            name: domain.name,
            created: None,
        });
        pages(vms.collect());
        pages(left);
        Ok(())
    }
}
