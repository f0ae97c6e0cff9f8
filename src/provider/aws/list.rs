//! What a region has of pod VMs.

use super::{
    Aws, INTERFACE, NAMES, PAGE,
    answer::{Instance, Reservation, Tag},
    instance,
};
use crate::provider::{Error, Listed, POD_VM, Pages, Resource, VmRef, http::Query};

impl Aws {
    /// Pages of instances, then a page of addresses and interfaces, whether or not their instances exist. EC2 still shows a
    /// terminated instance for an hour; the list leaves it out.
    pub(super) async fn list_all(&self, pages: Pages<'_>) -> Result<(), Error> {
        self.instances(&mut *pages).await?;
        let tags = self.tagged("i-*").await?;
        pages(tags.into_iter().map(side_resource).collect());
        Ok(())
    }

    /// Pages of the instances that are named like pod VMs and are not terminated.
    pub(super) async fn instances(&self, pages: Pages<'_>) -> Result<(), Error> {
        let pod_vms = format!("{POD_VM}*");
        let parameters = [
            ("Filter.1.Name", "tag:Name"),
            ("Filter.1.Value.1", &*pod_vms),
            ("Filter.2.Name", "instance-state-name"),
            ("Filter.2.Value.1", "pending"),
            ("Filter.2.Value.2", "running"),
            ("Filter.2.Value.3", "stopping"),
            ("Filter.2.Value.4", "stopped"),
            ("Filter.2.Value.5", "shutting-down"),
            ("MaxResults", PAGE),
        ];
        let take = |page: Vec<Reservation>| {
            pages(page.into_iter().flat_map(|made| made.instances_set).map(vm).collect());
        };
        let query = Query::new("listing the instances", "DescribeInstances", &parameters);
        Ok(self.0.pages(query, take).await?)
    }
}

fn vm(instance: Instance) -> Listed {
    let (name, created, state) = (instance.name(), instance.created(), instance.power());
    let tags = instance.tag_set.into_iter().map(|Tag { key, value, .. }| (key, value)).collect();
    Listed { created, state, tags, ..Listed::new(Resource::Vm, instance.id, name) }
}

/// What a tag `Name` is on that names an instance by its identifier.
fn side_resource(Tag { key, value, resource_id: id }: Tag) -> Listed {
    let kind = if id.starts_with(INTERFACE) { Resource::Interface } else { Resource::Address };
    let of = NAMES.iter().find_map(|name| value.strip_prefix(name));
    let vm = of.and_then(|id| instance(id).ok()).map(|id| VmRef::Id(id.canonical));
    Listed { vm, tags: vec![(key, value.clone())], ..Listed::new(kind, id, value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_of_the_instance_that_its_name_names() {
        let vm = |id: &str, name: &str| {
            let (key, value, resource_id) = ("Name".to_owned(), name.to_owned(), id.to_owned());
            let listed = side_resource(Tag { key, value, resource_id });
            (listed.kind, listed.vm)
        };
        let instance = || Some(VmRef::Id("i-0123456789abcdef0".to_owned()));
        assert_eq!(vm("eipalloc-1", "eip-i-0123456789abcdef0"), (Resource::Address, instance()));
        assert_eq!(vm("eni-1", "nic-i-0123456789abcdef0"), (Resource::Interface, instance()));
        for name in ["eip-i-", "eip-i-mine", "eip-podvm-a", "i-0123456789abcdef0"] {
            assert_eq!(vm("eipalloc-1", name).1, None, "{name}");
        }
    }
}
