//! What a project has of pod VMs.

use std::collections::{HashMap, HashSet};

use super::{ALL, Gcp, answer::Page, pod_vms};
use crate::provider::{Error, Listed, Pages, Resource};

impl Gcp {
    /// One page of all VMs, as only the last page of Compute Engine shows which names are in several zones.
    pub(super) async fn list_all(&self, pages: Pages<'_>) -> Result<(), Error> {
        let mut found = Vec::new();
        let take = |page: Page| {
            found.extend(page.into_instances().map(|(zone, vm)| {
                let (created, state) = (vm.creation_timestamp.parse().ok(), vm.power());
                let tags = vm.labels.into_iter().collect();
                (zone, Listed { created, state, tags, ..Listed::new(Resource::Vm, vm.name.clone(), vm.name) })
            }));
        };
        self.pages("listing the VMs", &pod_vms(), ALL, take).await?;
        let several = in_several_zones(&found);
        let identified = found.into_iter().map(|(zone, vm)| {
            let id = if several.contains(&vm.name) { self.path(&zone, &vm.name) } else { vm.id };
            Listed { id, ..vm }
        });
        pages(identified.collect());
        Ok(())
    }
}

/// The names of several VMs. A VM's name is its identifier, as cloud-api-adaptor records nothing else. A deletion by a name in
/// several zones could delete a VM in any of them, so such a VM is listed by its path. It is deleted in its own zone or not at
/// all.
fn in_several_zones(found: &[(String, Listed)]) -> HashSet<String> {
    let (mut zones, mut several) = (HashMap::new(), HashSet::new());
    for (zone, vm) in found {
        if *zones.entry(&vm.name).or_insert(zone) != zone {
            several.insert(vm.name.clone());
        }
    }
    several
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_on_two_pages_of_one_zone_is_one_vm() {
        let found =
            [("zones/a", "x"), ("zones/a", "y"), ("zones/a", "x"), ("zones/b", "y"), ("zones/b", "z")];
        let found = found.map(|(zone, name)| (zone.to_owned(), Listed::new(Resource::Vm, name, name)));
        assert_eq!(in_several_zones(&found), HashSet::from(["y".to_owned()]));
    }
}
