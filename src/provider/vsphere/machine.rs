//! What vCenter says of a VM *(no client)*.

use std::collections::HashMap;

use jiff::Timestamp;
use operator_kit::Message;

use super::{
    reference::{Ref, element, object_set, property_set},
    session::Method,
};
use crate::provider::{
    Error, ErrorClass, Listed, PowerState, Resource,
    http::{Pace, xml::Node},
};

/// The properties to read of a VM that must be deleted.
const OF_VM: [&str; 7] = [
    "config.createDate",
    "config.files.vmPathName",
    "config.hardware.device",
    "config.template",
    "name",
    "rootSnapshot",
    "runtime.powerState",
];

/// What is read of its tasks.
const OF_TASK: [&str; 4] = ["info.descriptionId", "info.error", "info.queueTime", "info.state"];

/// What is read of each VM of a folder.
const OF_ENTRY: [&str; 4] = ["config.createDate", "config.uuid", "name", "runtime.powerState"];

/// What is read of the folder itself, and of those in it.
const OF_FOLDER: [&str; 1] = ["name"];

/// A VM with its recent tasks.
pub(super) struct Machine {
    pub(super) reference: Ref,
    pub(super) name: String,
    pub(super) created: Option<Timestamp>,
    properties: Properties,
    tasks: Vec<Properties>,
}

/// What deletes a VM, one step after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    PowerOff,
    Destroy,
}

struct Properties(HashMap<String, Node>);

impl Step {
    pub(super) const fn method(self) -> Method {
        let (doing, name) = match self {
            Self::PowerOff => ("powering the VM off", "PowerOffVM_Task"),
            Self::Destroy => ("destroying the VM", "Destroy_Task"),
        };
        Method { doing, pace: Pace::Write, name }
    }

    /// How vCenter calls its task.
    fn task(self) -> &'static str {
        match self {
            Self::PowerOff => "VirtualMachine.powerOff",
            Self::Destroy => "VirtualMachine.destroy",
        }
    }
}

/// Asks for a VM and its recent tasks.
pub(super) fn question(vm: &Ref) -> String {
    let tasks = traversal("VirtualMachine", "recentTask", "");
    specification(&[("VirtualMachine", &OF_VM), ("Task", &OF_TASK)], vm, &tasks)
}

/// Asks for a folder, and for all VMs of it and of those in it.
pub(super) fn list(folder: &Ref) -> String {
    let deeper = "<selectSet><name>deeper</name></selectSet>";
    let children = traversal("Folder", "childEntity", deeper);
    specification(&[("VirtualMachine", &OF_ENTRY), ("Folder", &OF_FOLDER)], folder, &children)
}

/// The object of which vCenter says something.
fn subject(object: &Node) -> Option<Ref> {
    object.child("obj").and_then(Ref::of)
}

/// Whether an object of a list is a folder.
pub(super) fn is_folder(object: &Node) -> bool {
    subject(object).is_some_and(|it| it.is("Folder"))
}

/// Whether an object of a list is this folder, of which vCenter shows a property.
pub(super) fn shows(object: &Node, folder: &Ref) -> bool {
    subject(object).as_ref() == Some(folder) && object.child("propSet").is_some()
}

/// As much of vCenter's text as is quoted, on one line.
fn short(text: &str) -> String {
    text.chars().filter(|it| !it.is_control()).take(200).collect()
}

fn specification(wanted: &[(&str, &[&str])], from: &Ref, select: &str) -> String {
    let sets: String = wanted.iter().map(|(kind, paths)| property_set(kind, paths)).collect();
    format!("<specSet>{sets}{}</specSet>", object_set(from, select))
}

fn traversal(kind: &str, path: &str, deeper: &str) -> String {
    let inside = [element("name", "deeper"), element("type", kind), element("path", path)].concat();
    format!(r#"<selectSet xsi:type="TraversalSpec">{inside}<skip>false</skip>{deeper}</selectSet>"#)
}

impl Properties {
    /// What vCenter says about an object. Fails if vCenter withholds something.
    fn read(object: &Node) -> Result<Self, Error> {
        if let Some(missing) = object.child("missingSet") {
            let fault = missing.child("fault").and_then(|fault| fault.child("fault"));
            let is_right = fault.is_some_and(|fault| fault.kind == "NoPermission");
            let class = if is_right { ErrorClass::Unauthorized } else { ErrorClass::Transient };
            let message = format!("vCenter does not show {} of the VM", short(missing.text_of("path")));
            return Err(Error::new(class, Message::public(message)));
        }
        let pairs = object.all("propSet").filter_map(|set| {
            let value = set.children.iter().find(|child| child.name == "val")?;
            Some((set.text_of("name").to_owned(), value.clone()))
        });
        Ok(Self(pairs.collect()))
    }

    fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", Node::text)
    }

    fn created(&self) -> Option<Timestamp> {
        // vCenter gives the beginning of the epoch for VMs that an old version made.
        self.text("config.createDate").parse().ok().filter(|created| *created > Timestamp::UNIX_EPOCH)
    }
}

/// Reads a VM of a folder. Its identifier is no UUID if vCenter does not know its configuration at present. So no such VM is deleted, and
/// its name counts nevertheless. vCenter's tags are in another service, and only its tasks show that a VM is being destroyed: neither is
/// read here.
pub(super) fn entry(object: &Node) -> Result<Listed, Error> {
    let properties = Properties::read(object)?;
    let name = properties.text("name").to_owned();
    let id = match properties.text("config.uuid") {
        "" => subject(object).map(Ref::into_id).unwrap_or_default(),
        uuid => uuid.to_ascii_lowercase(),
    };
    let state = match properties.text("runtime.powerState") {
        "poweredOn" => PowerState::Running,
        "poweredOff" | "suspended" => PowerState::Stopped,
        _ => PowerState::Unknown,
    };
    Ok(Listed { created: properties.created(), state, ..Listed::new(Resource::Vm, id, name) })
}

impl Machine {
    /// Reads the answer to [`question`]. None: the VM is not in it.
    pub(super) fn read(reference: Ref, answer: &Node) -> Result<Option<Self>, Error> {
        let objects = || answer.all("objects").filter_map(|it| Some((subject(it)?, it)));
        let Some((_, vm)) = objects().find(|(it, _)| *it == reference) else { return Ok(None) };
        let properties = Properties::read(vm)?;
        // A task may have ended, or be another client's.
        let tasks = objects().filter(|(it, _)| it.is("Task")).filter_map(|(_, it)| Properties::read(it).ok());
        let (tasks, name, created) =
            (tasks.collect(), properties.text("name").to_owned(), properties.created());
        Ok(Some(Self { reference, name, created, properties, tasks }))
    }

    /// Whether vCenter works on this step, or is going to.
    pub(super) fn is_at(&self, step: Step) -> bool {
        self.tasks_of(step).any(|task| ["queued", "running"].contains(&task.text("info.state")))
    }

    /// The error of the last attempt at this step, if it failed.
    pub(super) fn failure(&self, step: Step) -> Option<Error> {
        let last =
            self.tasks_of(step).max_by_key(|task| task.text("info.queueTime").parse::<Timestamp>().ok())?;
        let error = last.0.get("info.error").filter(|_| last.text("info.state") == "error")?;
        let fault = short(error.child("fault").map_or("", |fault| &*fault.kind));
        let public = format!("{} failed in vCenter ({fault}); the operator tries again", step.method().doing);
        let full = format!("{public}: {}", short(error.text_of("localizedMessage")));
        Some(Error::new(ErrorClass::Refused, Message::new(public, full)))
    }

    fn tasks_of(&self, step: Step) -> impl Iterator<Item = &Properties> {
        self.tasks.iter().filter(move |task| task.text("info.descriptionId") == step.task())
    }

    /// The next step of its deletion. vCenter deletes all disks, and those of snapshots. Fails if a user's data would be deleted
    /// with the VM. Disks in the VM's own folder were made with it.
    pub(super) fn next(&self) -> Result<Step, Error> {
        let refuse = |class, public: &str, detail: &str| {
            Err(Error::new(class, Message::new(public, format!("{public}: {} {detail}", self.name))))
        };
        if self.properties.text("config.template") == "true" {
            return refuse(ErrorClass::Refused, "the VM is a template; convert it to a VM", "");
        }
        if self.properties.0.get("rootSnapshot").is_some_and(|all| !all.children.is_empty()) {
            let public = "the VM has snapshots, whose disks may be a user's; delete the snapshots";
            return refuse(ErrorClass::Refused, public, "");
        }
        let path = self.properties.text("config.files.vmPathName");
        let devices = self.properties.0.get("config.hardware.device");
        let (Some((folder, _)), Some(devices)) = (path.rsplit_once('/'), devices) else {
            let public = "vCenter does not know the VM's disks at present; see whether its host and its datastore are up";
            return refuse(ErrorClass::Transient, public, path);
        };
        let is_disk = |device: &&Node| ["VirtualDisk", "VirtualNVDIMM"].contains(&&*device.kind);
        for disk in devices.children.iter().filter(is_disk) {
            let file = disk.child("backing").map_or("", |backing| backing.text_of("fileName"));
            let is_own = file.rsplit_once('/').is_some_and(|(of_disk, _)| of_disk == folder);
            if !is_own || disk.child("vDiskId").is_some() {
                let public = "the VM has a disk that was not made with it, and vCenter would delete that, too; detach the disk";
                return refuse(ErrorClass::Refused, public, file);
            }
        }
        let is_on = self.properties.text("runtime.powerState") == "poweredOn";
        Ok(if is_on { Step::PowerOff } else { Step::Destroy })
    }
}
