//! The parts of a domain's XML definition that matter.

use std::{iter, num::NonZeroUsize};

use quick_xml::de::Deserializer;
use serde::Deserialize;

/// The description that cloud-api-adaptor gives to each domain it defines.
const DESCRIPTION: &str = "This Virtual Machine is the peer-pod VM";

/// The suffixes of the volumes that cloud-api-adaptor makes for one domain; they follow its name. The base image and a user's
/// data volumes have other names.
const OWN_VOLUMES: [&str; 2] = ["-root.qcow2", "-cloudinit.iso"];

/// How many parts of a definition may follow its first disk. The parser keeps them all, and a daemon that lies may send millions. Real
/// definitions have some hundreds.
const MOST_AFTER_A_DISK: usize = 4096;

/// A domain's definition, as far as it is needed.
#[derive(Debug, Deserialize)]
pub(super) struct Definition {
    /// The domain's runtime number, while it runs. libvirtd increases it with each start. After its own restart it continues from
    /// the largest number in use.
    #[serde(rename = "@id")]
    pub(super) start: Option<u32>,
    #[serde(default)]
    pub(super) name: String,
    #[serde(default)]
    description: String,
    #[serde(default)]
    devices: Devices,
}

#[derive(Debug, Default, Deserialize)]
struct Devices {
    #[serde(default, rename = "disk")]
    disks: Vec<Layer>,
}

/// A disk, or what lies below it: an external snapshot puts a new file above that of the disk.
#[derive(Debug, Deserialize)]
struct Layer {
    source: Option<Source>,
    #[serde(rename = "backingStore")]
    below: Option<Box<Layer>>,
}

#[derive(Debug, Deserialize)]
struct Source {
    #[serde(rename = "@file")]
    file: Option<String>,
}

impl Definition {
    /// Reads libvirt's XML.
    pub(super) fn parse(xml: &str) -> Result<Self, quick_xml::DeError> {
        let mut deserializer = Deserializer::from_str(xml);
        deserializer.event_buffer_size(NonZeroUsize::new(MOST_AFTER_A_DISK));
        Self::deserialize(&mut deserializer)
    }

    /// Whether cloud-api-adaptor says that it made this domain.
    pub(super) fn is_pod_vm(&self) -> bool {
        self.description.trim() == DESCRIPTION
    }

    /// The paths of those of its disks that were made for this domain and nothing else.
    pub(super) fn own_disks(&self) -> Vec<String> {
        let layers = |disk| iter::successors(Some(disk), |layer: &&Layer| layer.below.as_deref());
        let all = self.devices.disks.iter().flat_map(layers);
        all.filter_map(|layer| layer.source.as_ref()?.file.as_deref())
            .filter(|path| own_volume_of(split(path).1) == Some(&self.name))
            .map(str::to_owned)
            .collect()
    }
}

/// The domain that this volume was made for, if its name has the form of such a volume's.
pub(super) fn own_volume_of(name: &str) -> Option<&str> {
    OWN_VOLUMES.iter().find_map(|end| name.strip_suffix(end))
}

/// A path's folder and its last part.
pub(super) fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// The folder of a pool, from its XML, if it has one.
pub(super) fn pool_folder(xml: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Pool {
        target: Option<Target>,
    }
    #[derive(Deserialize)]
    struct Target {
        path: Option<String>,
    }
    let pool: Pool = quick_xml::de::from_str(xml).ok()?;
    Some(pool.target?.path?.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const XML: &str = r"<domain type='qemu' id='7'>
  <name>podvm-web-1a2b3c4d</name>
  <description>This Virtual Machine is the peer-pod VM</description>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <disk type='file' device='disk'><source file='/pool/podvm-web-1a2b3c4d-root.qcow2' index='1'/><target dev='vda'/></disk>
    <controller type='usb'/>
    <disk type='file' device='cdrom'><source file='/pool/podvm-web-1a2b3c4d-cloudinit.iso'/></disk>
    <disk type='file' device='disk'><source file='/pool/podvm-base.qcow2'/></disk>
    <disk type='file' device='disk'><source file='/data/customers-root.qcow2'/></disk>
    <disk type='block' device='disk'><source dev='/dev/sdb'/></disk>
    <disk type='file' device='cdrom'/>
  </devices>
</domain>";

    #[test]
    fn a_definition_of_millions_of_parts_is_refused() {
        let padded = |parts| XML.replace("<controller type='usb'/>", &"<a/>".repeat(parts));
        assert_eq!(Definition::parse(&padded(1000)).unwrap().own_disks().len(), 2);
        assert!(Definition::parse(&padded(1_000_000)).is_err());
    }

    #[test]
    fn a_disk_below_an_external_snapshot_is_the_domains_too() {
        let base =
            "<backingStore type='file'><source file='/pool/podvm-base.qcow2'/><backingStore/></backingStore>";
        let root = "<source file='/pool/podvm-web-1a2b3c4d-root.qcow2' index='1'/>";
        let snapshot = format!(
            "<source file='/pool/podvm-web-1a2b3c4d-root.snap1'/>
             <backingStore type='file'><format type='qcow2'/>{root}{base}</backingStore>"
        );
        let definition = Definition::parse(&XML.replace(root, &snapshot)).unwrap();
        assert_eq!(definition.own_disks(), Definition::parse(XML).unwrap().own_disks());
    }

    #[test]
    fn own_disks_are_the_two_named_after_the_domain() {
        let definition = Definition::parse(XML).unwrap();
        assert!(definition.is_pod_vm());
        assert_eq!(definition.start, Some(7));
        assert_eq!(Definition::parse(&XML.replace(" id='7'", "")).unwrap().start, None, "it is off");
        assert_eq!(definition.name, "podvm-web-1a2b3c4d");
        assert_eq!(
            definition.own_disks(),
            ["/pool/podvm-web-1a2b3c4d-root.qcow2", "/pool/podvm-web-1a2b3c4d-cloudinit.iso"]
        );
        let other = Definition::parse(&XML.replace("<name>podvm-web-1a2b3c4d<", "<name>podvm-web<")).unwrap();
        assert!(other.own_disks().is_empty());
    }

    #[test]
    fn a_pools_folder_is_that_of_its_volumes() {
        let pool = "<pool type='dir'><name>p</name><source/><target><path>/data/pool/</path></target></pool>";
        assert_eq!(pool_folder(pool).as_deref(), Some(split("/data/pool/vm-root.qcow2").0));
        assert_eq!(pool_folder("<pool type='iscsi'><name>p</name></pool>"), None);
    }

    #[test]
    fn a_domain_without_description_or_disks_is_no_pod_vm() {
        let definition = Definition::parse("<domain type='test'><name>test</name></domain>").unwrap();
        assert!(!definition.is_pod_vm());
        assert!(definition.own_disks().is_empty());
    }

    proptest! {
        #[test]
        fn any_text_is_answered_without_panic(xml in "\\PC*") {
            let _ = Definition::parse(&xml);
        }
    }
}
