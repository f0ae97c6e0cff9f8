use super::*;
use crate::provider::{PowerState, http::xml::Node};

const DISK: &str = "[ds] podvm-web-1a2b3c4d/podvm-web-1a2b3c4d.vmdk";

#[test]
fn an_identifier_is_a_uuid_in_one_spelling() {
    let canonical = "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11";
    for raw in [canonical, "0DD2F0C5-6A3D-44A7-9B5E-2F7A6C2F9A11"] {
        assert_eq!(uuid(raw), Ok(ParsedId::unscoped(canonical)));
    }
    for raw in ["", "vm-12", "podvm-web-1a2b3c4d", "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11</uuid>"] {
        assert!(uuid(raw).is_err(), "{raw}");
    }
}

fn vm() -> Ref {
    Ref::of(&Node::parse(r#"<obj type="VirtualMachine">vm-1</obj>"#).unwrap()).unwrap()
}

fn set(name: &str, value: &str) -> String {
    format!("<propSet><name>{name}</name><val>{value}</val></propSet>")
}

/// A VM with disks of these files, and other properties and objects.
fn machine(files: &[&str], properties: &str, objects: &str) -> Result<Option<Machine>, Error> {
    let disk = |file: &&str| {
        format!(
            r#"<VirtualDevice x:type="VirtualDisk"><backing><fileName>{file}</fileName></backing></VirtualDevice>"#
        )
    };
    let devices: String = files.iter().map(disk).collect();
    let all = [
        set("config.files.vmPathName", "[ds] podvm-web-1a2b3c4d/podvm-web-1a2b3c4d.vmx"),
        set("config.hardware.device", &format!(r#"<VirtualDevice x:type="VirtualKeyboard"/>{devices}"#)),
        set("config.template", "false"),
        set("name", "podvm-web-1a2b3c4d"),
        set("runtime.powerState", "poweredOff"),
        properties.to_owned(),
    ];
    let text =
        format!("<returnval><objects>{}{}</objects>{objects}</returnval>", vm().element("obj"), all.concat());
    Machine::read(vm(), &Node::parse(&text).unwrap())
}

fn next(files: &[&str], properties: &str) -> Result<Step, ErrorClass> {
    machine(files, properties, "").unwrap().unwrap().next().map_err(|error| error.class)
}

#[test]
fn only_a_vm_whose_disks_are_all_its_own_is_deleted() {
    let delta = "[ds] podvm-web-1a2b3c4d/podvm-web-1a2b3c4d-000001.vmdk";
    assert_eq!(next(&[DISK, delta], ""), Ok(Step::Destroy));
    assert_eq!(next(&[], &set("runtime.powerState", "poweredOn")), Ok(Step::PowerOff));
    assert_eq!(next(&[DISK], &set("runtime.powerState", "suspended")), Ok(Step::Destroy));
    for file in [
        "[ds] data/podvm-web-1a2b3c4d.vmdk",
        "[ds] podvm-web-1a2b3c4d.vmdk",
        "[other] podvm-web-1a2b3c4d/podvm-web-1a2b3c4d.vmdk",
        "[ds] podvm-web-1a2b3c4d/data/a.vmdk",
        "[ds] podvm-web-1a2b3c4d-2/a.vmdk",
        "",
    ] {
        assert_eq!(next(&[DISK, file], ""), Err(ErrorClass::Refused), "{file}");
    }
    let first_class = format!(
        r#"<VirtualDevice x:type="VirtualDisk"><backing><fileName>{DISK}</fileName></backing><vDiskId><id>1</id></vDiskId></VirtualDevice>"#
    );
    assert_eq!(next(&[], &set("config.hardware.device", &first_class)), Err(ErrorClass::Refused));
    let memory = r#"<VirtualDevice x:type="VirtualNVDIMM"><backing><fileName>[PMemDS] x/a.vmdk</fileName></backing></VirtualDevice>"#;
    assert_eq!(next(&[], &set("config.hardware.device", memory)), Err(ErrorClass::Refused));
    let image = r#"<VirtualDevice x:type="VirtualCdrom"><backing><fileName>[ds] images/a.iso</fileName></backing></VirtualDevice>"#;
    assert_eq!(
        next(&[], &set("config.hardware.device", image)),
        Ok(Step::Destroy),
        "vCenter deletes no image"
    );
    let snapshot =
        r#"<ManagedObjectReference type="VirtualMachineSnapshot">snapshot-1</ManagedObjectReference>"#;
    assert_eq!(next(&[DISK], &set("rootSnapshot", snapshot)), Err(ErrorClass::Refused));
    assert_eq!(next(&[DISK], &set("rootSnapshot", "")), Ok(Step::Destroy));
    assert_eq!(next(&[DISK], &set("config.template", "true")), Err(ErrorClass::Refused));
    for unknown in ["", "vm.vmx"] {
        assert_eq!(next(&[DISK], &set("config.files.vmPathName", unknown)), Err(ErrorClass::Transient));
    }
}

#[test]
fn properties_that_vcenter_withholds_are_an_error() {
    let missing = |fault: &str| {
        let fault = format!(r#"<fault><fault x:type="{fault}"/></fault>"#);
        let properties = format!("<missingSet><path>config</path>{fault}</missingSet>");
        machine(&[DISK], &properties, "").map(|_| ()).unwrap_err().class
    };
    assert_eq!(
        [missing("NoPermission"), missing("x:SystemError")],
        [ErrorClass::Unauthorized, ErrorClass::Transient]
    );
    let other =
        Node::parse(r#"<returnval><objects><obj type="VirtualMachine">vm-2</obj></objects></returnval>"#);
    assert!(Machine::read(vm(), &other.unwrap()).unwrap().is_none());
}

#[test]
fn the_tasks_of_a_vm_tell_what_became_of_its_deletion() {
    let task = |id: &str, step: &str, state: &str, minute: u8, error: &str| {
        let queued = format!("2026-11-23T06:{minute:02}:00.1Z");
        let sets =
            [set("info.descriptionId", step), set("info.state", state), set("info.queueTime", &queued)];
        format!(r#"<objects><obj type="Task">{id}</obj>{}{error}</objects>"#, sets.concat())
    };
    let error = r#"<propSet><name>info.error</name><val><fault x:type="FileLocked"/><localizedMessage>locked</localizedMessage></val></propSet>"#;
    let failed = task("task-1", "VirtualMachine.destroy", "error", 1, error);
    let read = |tasks: &[&str]| machine(&[DISK], "", &tasks.concat()).unwrap().unwrap();
    let after =
        |tasks: &[&str]| read(tasks).failure(Step::Destroy).map(|error| error.message.for_log().to_owned());
    assert!(
        after(&[&failed]).unwrap().contains("(FileLocked)") && after(&[&failed]).unwrap().ends_with("locked")
    );
    assert_eq!(after(&[&failed, &task("task-2", "VirtualMachine.destroy", "success", 2, "")]), None);
    assert!(after(&[&failed, &task("task-2", "VirtualMachine.destroy", "success", 0, "")]).is_some());
    assert_eq!(after(&[&task("task-2", "VirtualMachine.powerOff", "error", 2, error)]), None);
    for (state, leaves) in [("queued", true), ("running", true), ("success", false), ("error", false)] {
        let machine = read(&[&failed, &task("task-3", "VirtualMachine.destroy", state, 3, "")]);
        assert_eq!(machine.is_at(Step::Destroy), leaves, "{state}");
        assert!(!machine.is_at(Step::PowerOff));
    }
}

#[test]
fn a_list_says_which_vms_run() {
    for (power, expected) in [
        ("poweredOn", PowerState::Running),
        ("poweredOff", PowerState::Stopped),
        ("suspended", PowerState::Stopped),
        ("", PowerState::Unknown),
    ] {
        let vm = r#"<obj type="VirtualMachine">vm-42</obj>"#;
        let entry = format!("<objects>{vm}{}</objects>", set("runtime.powerState", power));
        let listed = machine::entry(&Node::parse(&entry).unwrap()).unwrap();
        assert_eq!(listed.state, expected, "{power}");
        assert_eq!(listed.id, "vm-42", "its UUID is not known");
    }
}

#[test]
fn a_list_has_a_folder_only_if_vcenter_shows_one_of_its_properties() {
    let folder = Node::parse(r#"<obj type="Folder">group-v3</obj>"#).unwrap();
    let folder = Ref::of(&folder).unwrap();
    let object = |kind: &str, id: &str, inside: &str| {
        let object = format!(r#"<objects><obj type="{kind}">{id}</obj>{inside}</objects>"#);
        let object = Node::parse(&object).unwrap();
        (machine::is_folder(&object), machine::shows(&object, &folder))
    };
    let name = set("name", "peerpods");
    assert_eq!(object("Folder", "group-v3", &name), (true, true));
    assert_eq!(object("Folder", "group-v4", &name), (true, false));
    assert_eq!(object("VirtualMachine", "group-v3", &name), (false, false));
    let missing = "<missingSet><path>name</path></missingSet>";
    for hidden in ["", missing] {
        assert_eq!(object("Folder", "group-v3", hidden), (true, false));
    }
}

#[test]
fn the_documented_privileges_are_those_that_are_tested() {
    let page = include_str!("../../../docs/src/providers/vsphere.md");
    for privilege in PRIVILEGES {
        assert!(page.contains(&format!("| `{privilege}` |")), "the page lacks {privilege}");
    }
}
