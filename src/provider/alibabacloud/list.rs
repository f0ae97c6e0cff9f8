//! What a region has of pod VMs.

use super::{
    ADDRESS_NAME, Alibaba, INTERFACE_NAME,
    answer::{Address, Instance, Interface, tags},
    instance,
};
use crate::provider::{Error, Listed, Pages, PowerState, Resource, Stage, VmRef};

impl Alibaba {
    /// A page of instances, one of interfaces and one of addresses that nothing uses.
    pub(super) async fn list_all(&self, pages: Pages<'_>) -> Result<(), Error> {
        pages(self.pod_vms().await?.into_iter().map(vm).collect());
        let free = ("Status", "Available");
        let mut interfaces = self.interfaces(free).await?;
        interfaces.retain(|interface| interface.name.starts_with(INTERFACE_NAME));
        pages(interfaces.into_iter().map(interface).collect());
        pages(self.addresses(&[free]).await?.into_iter().map(address).collect());
        Ok(())
    }
}

pub(super) fn vm(instance: Instance) -> Listed {
    Listed {
        created: instance.created(),
        state: power(&instance),
        tags: tags(&instance.tags),
        ..Listed::new(Resource::Vm, instance.id, instance.name)
    }
}

fn interface(Interface { id, name, creation_time, tags: all }: Interface) -> Listed {
    let (created, vm) = (creation_time.parse().ok(), named(&name, INTERFACE_NAME));
    Listed { created, vm, tags: tags(&all), ..Listed::new(Resource::Interface, id, name) }
}

/// An address names its instance only if the operator has begun to delete the instance.
fn address(address: Address) -> Listed {
    Listed {
        created: address.allocation_time.parse().ok(),
        vm: named(&address.name, ADDRESS_NAME),
        tags: tags(&address.tags),
        ..Listed::new(Resource::Address, address.id, address.name)
    }
}

/// The instance whose identifier follows in this name.
fn named(name: &str, begin: &str) -> Option<VmRef> {
    let id = instance(name.strip_prefix(begin)?).ok()?;
    Some(VmRef::Id(id.canonical))
}

fn power(instance: &Instance) -> PowerState {
    match (instance.stage(), &*instance.status) {
        (Stage::Leaving, _) => PowerState::Leaving,
        (_, "Pending" | "Starting" | "Running") => PowerState::Running,
        (_, "Stopped") => PowerState::Stopped,
        _ => PowerState::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_status_says_whether_an_instance_runs_as_long_as_it_is_known() {
        for (statuses, expected) in [
            (&["Pending", "Starting", "Running"][..], PowerState::Running),
            (&["Stopped"], PowerState::Stopped),
            (&["Stopping"], PowerState::Leaving),
            (&["", "Something"], PowerState::Unknown),
        ] {
            for status in statuses {
                let instance = json!({ "InstanceId": "i-1", "InstanceName": "a", "Status": status });
                assert_eq!(power(&serde_json::from_value(instance).unwrap()), expected, "{status}");
            }
        }
    }

    #[test]
    fn a_name_is_of_an_instance_only_by_its_whole_identifier() {
        let id = "i-2zebgzk74po3gx1dwvuo";
        assert_eq!(named(&format!("{ADDRESS_NAME}{id}"), ADDRESS_NAME), Some(VmRef::Id(id.to_owned())));
        for name in [ADDRESS_NAME, "peerpod-eip-mine", id, "peerpod-nic-i-2zebgzk74po3gx1dwvuo"] {
            assert_eq!(named(name, ADDRESS_NAME), None, "{name}");
        }
    }
}
