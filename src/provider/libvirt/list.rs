//! The pod VMs of a libvirt host.

use std::collections::HashSet;

use futures::future::try_join;
use tokio::time::Instant;

use super::{
    Libvirt,
    definition::{own_volume_of, split},
};
use crate::provider::{Error, Listed, POD_VM, Pages, PowerState, Resource, VmRef};

/// The number of a domain that does not run.
const NO_RUNTIME_ID: i32 = -1;

impl Libvirt {
    /// One page of domains, and one of volumes in the pool whose domain is gone. libvirt gives each list at once.
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
        // A former host has VMs that may be another cluster's by now, and lacks those of this one.
        self.ensure_same_host(Instant::now()).await?;
        domains.retain(|domain| domain.name.starts_with(POD_VM));
        let names: HashSet<_> = domains.iter().map(|domain| domain.name.as_str()).collect();
        let left = volumes.into_iter().filter_map(|volume| {
            let name = split(&volume.key).1;
            let domain = own_volume_of(name)?;
            let is_left = domain.starts_with(POD_VM) && !names.contains(domain);
            let vm = Some(VmRef::Name(domain.to_owned()));
            is_left.then(|| Listed { vm, ..Listed::new(Resource::Disk, &*volume.key, name) })
        });
        let left: Vec<_> = left.collect();
        let vms = domains.into_iter().map(|domain| Listed {
            state: if domain.id == NO_RUNTIME_ID { PowerState::Stopped } else { PowerState::Running },
            ..Listed::new(Resource::Vm, domain.uuid.hyphenated().to_string(), domain.name)
        });
        pages(vms.collect());
        pages(left);
        Ok(())
    }
}
