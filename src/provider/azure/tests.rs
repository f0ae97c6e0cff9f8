use std::collections::HashSet;

use serde_json::json;

use super::*;

const GROUP: &str = "/subscriptions/0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11/resourcegroups/pods";

/// The identifiers of what comes with the VM of this name.
fn belongings(vm: &str) -> Vec<String> {
    let id = InstanceId::of(&CLOUD, &format!("{GROUP}/providers/{VM}/{vm}")).unwrap();
    BELONGINGS.iter().map(|of| of.id(&id)).collect()
}

#[test]
fn belongings_are_in_the_group_of_the_vm_and_have_its_name() {
    let expected = [
        "microsoft.network/networkinterfaces/podvm-web-1a2b3c4d-net",
        "microsoft.compute/disks/podvm-web-1a2b3c4d-disk",
        "microsoft.network/publicipaddresses/podvm-web-1a2b3c4d-net",
    ];
    assert_eq!(belongings("podvm-web-1a2b3c4d"), expected.map(|it| format!("{GROUP}/providers/{it}")));
}

#[test]
fn a_resource_belongs_to_exactly_one_vm_with_any_ending_of_the_name() {
    let ends = ["", "-net", "-disk", "-net-disk", "-disk-net"];
    let vms = ends.map(|end| format!("podvm-web-1a2b3c4d{end}"));
    let mut seen = HashSet::new();
    for vm in &vms {
        for (of, id) in BELONGINGS.iter().zip(belongings(vm)) {
            let resource = json!({ "id": id, "name": id::name(&id), "type": of.kind });
            let listed = listed(serde_json::from_value(resource).unwrap()).unwrap();
            assert_eq!((listed.kind, listed.vm), (of.resource, Some(VmRef::Name(vm.clone()))), "{id}");
            assert!(seen.insert(id), "it comes with another VM, too: {vm}");
        }
    }
}

#[test]
fn a_resource_of_another_name_or_type_belongs_to_no_vm() {
    for (kind, name) in [
        (INTERFACE, "podvm-web-1a2b3c4d"),
        (INTERFACE, "podvm-web-1a2b3c4d-disk"),
        (INTERFACE, "podvm-web-1a2b3c4d-net2"),
        (DISK, "podvm-web-1a2b3c4d-net"),
        (ADDRESS, "podvm-web-1a2b3c4d-disk"),
        ("microsoft.network/networksecuritygroups", "podvm-web-1a2b3c4d-net"),
    ] {
        let resource = json!({ "id": "/x", "name": name, "type": kind });
        assert_eq!(listed(serde_json::from_value(resource).unwrap()), None, "{kind} {name}");
    }
}
