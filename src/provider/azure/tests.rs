use std::collections::HashSet;

use serde_json::json;

use super::*;

const GROUP: &str = "/subscriptions/0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11/resourcegroups/pods";

/// What a list says of a resource of this type and name.
fn of_list(kind: &str, name: &str) -> Option<Listed> {
    let resource = json!({ "id": format!("{GROUP}/providers/{kind}/{name}"), "name": name, "type": kind });
    listed(serde_json::from_value(resource).unwrap())
}

#[test]
fn the_disk_is_in_the_group_of_the_vm_and_has_its_name() {
    let id = InstanceId::of(&CLOUD, &format!("{GROUP}/providers/{VM}/podvm-web-1a2b3c4d")).unwrap();
    assert_eq!(disk(&id), format!("{GROUP}/providers/microsoft.compute/disks/podvm-web-1a2b3c4d-disk"));
}

#[test]
fn a_resource_belongs_to_exactly_one_vm_with_any_ending_of_the_name() {
    let mut seen = HashSet::new();
    for end in ["", "-net", "-disk", "-net-disk", "-disk-net", "-net-0123abcd"] {
        let vm = format!("podvm-web-1a2b3c4d{end}");
        for (kind, name, resource) in [
            (DISK, format!("{vm}-disk"), Resource::Disk),
            (INTERFACE, format!("{vm}-net"), Resource::Interface),
            (INTERFACE, format!("{vm}-net-6d8bb6ea"), Resource::Interface),
            (ADDRESS, format!("{vm}-net-6d8bb6ea"), Resource::Address),
        ] {
            let listed = of_list(kind, &name).unwrap();
            assert_eq!((listed.kind, listed.vm), (resource, Some(VmRef::Name(vm.clone()))), "{name}");
            assert!(seen.insert((kind, name)), "it comes with another VM, too: {vm}");
        }
    }
}

#[test]
fn a_resource_of_another_name_or_type_belongs_to_no_vm() {
    for (kind, name) in [
        (INTERFACE, "podvm-web-1a2b3c4d"),
        (INTERFACE, "podvm-web-1a2b3c4d-disk"),
        (INTERFACE, "podvm-web-1a2b3c4d-net2"),
        (INTERFACE, "podvm-web-1a2b3c4d-net-6d8bb6e"),
        (INTERFACE, "podvm-web-1a2b3c4d-net-6d8bb6eg"),
        (INTERFACE, "podvm-web-1a2b3c4d-6d8bb6ea"),
        (DISK, "podvm-web-1a2b3c4d-net"),
        (ADDRESS, "podvm-web-1a2b3c4d-disk"),
        ("microsoft.network/networksecuritygroups", "podvm-web-1a2b3c4d-net"),
    ] {
        assert_eq!(of_list(kind, name), None, "{kind} {name}");
    }
}
