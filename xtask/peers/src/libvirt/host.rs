//! Pod VMs on a libvirt host, as cloud-api-adaptor makes them.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use libvirt_client::{Client, ConnectUri, Domain, Pool, Volume};

use super::virsh::Virsh;
use super::{BASE_VOLUME, POD_VM_DESCRIPTION, POOL};

/// How many domains are made at the same time. The client queues calls that libvirtd cannot handle yet.
const CONCURRENCY: usize = 20;

/// Which hypervisor runs the domains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hypervisor {
    Test,
    /// QEMU without KVM, with UEFI firmware from this file.
    Qemu {
        firmware: String,
    },
}

/// A libvirt host, with functions to make and observe domains and volumes.
#[derive(Clone, Debug)]
pub struct Host {
    client: Client,
    hypervisor: Hypervisor,
    pool: Pool,
    pool_path: String,
}

/// A pod VM: a domain and its own volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodVm {
    /// The domain as it was just after its start.
    pub domain: Domain,
    /// `NAME-root.qcow2`, based on the base volume.
    pub root: Volume,
    /// `NAME-cloudinit.iso`.
    pub cloudinit: Volume,
}

impl Host {
    /// Makes the pool at `pool_path`, and the base volume in it.
    pub(super) async fn new(client: Client, hypervisor: Hypervisor, pool_path: String) -> Result<Self> {
        let xml =
            format!("<pool type='dir'><name>{POOL}</name><target><path>{pool_path}</path></target></pool>");
        let pool = client.pool_create(&xml).await.context("making the storage pool")?;
        let host = Self { client, hypervisor, pool, pool_path };
        host.volume(BASE_VOLUME, "qcow2", "").await?;
        Ok(host)
    }

    /// The value of `LIBVIRT_URI`.
    pub fn uri(&self) -> &ConnectUri {
        self.client.uri()
    }

    /// A client of this host.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The pool with the volumes of pod VMs.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The same host as libvirt's own client sees it.
    pub fn virsh(&self) -> Virsh {
        Virsh::new(self.uri())
    }

    /// Makes and starts a pod VM: two volumes and a domain.
    pub async fn start_pod_vm(&self, name: &str) -> Result<PodVm> {
        self.start_pod_vm_with(name, &[]).await
    }

    /// The same with further volumes attached, such as a user's data.
    pub async fn start_pod_vm_with(&self, name: &str, further: &[&Volume]) -> Result<PodVm> {
        let based = format!(
            "<backingStore><path>{}/{BASE_VOLUME}</path><format type='qcow2'/></backingStore>",
            self.pool_path
        );
        let root = self.volume(&format!("{name}-root.qcow2"), "qcow2", &based).await?;
        let cloudinit = self.volume(&format!("{name}-cloudinit.iso"), "raw", "").await?;
        let volumes = [&[&root, &cloudinit], further].concat();
        let domain = self.start_domain(name, POD_VM_DESCRIPTION, &volumes).await?;
        Ok(PodVm { domain, root, cloudinit })
    }

    /// Makes and starts many pod VMs at the same time, in any order. Returns them in the order of `names`.
    pub async fn start_pod_vms(&self, names: &[String]) -> Result<Vec<PodVm>> {
        let vms = stream::iter(names).map(|name| self.start_pod_vm(name));
        vms.buffered(CONCURRENCY).try_collect().await
    }

    /// Makes and starts a domain with this description and these volumes. It need not be a pod VM.
    pub async fn start_domain(&self, name: &str, description: &str, volumes: &[&Volume]) -> Result<Domain> {
        let xml = self.domain_xml(name, description, volumes);
        let domain =
            self.client.domain_define(&xml).await.with_context(|| format!("defining the domain {name}"))?;
        self.client.domain_create(&domain).await.with_context(|| format!("starting the domain {name}"))?;
        // A domain gets its id only when it starts.
        Ok(self.client.domain_lookup_by_uuid(domain.uuid).await?)
    }

    /// Makes a volume in the pool: 1 MiB, in `format`, with `extra` elements.
    pub async fn volume(&self, name: &str, format: &str, extra: &str) -> Result<Volume> {
        // This version of qcow2 can store the bitmaps of backups.
        let compat = if format == "qcow2" { "<compat>1.1</compat>" } else { "" };
        let xml = format!(
            "<volume><name>{name}</name><capacity unit='MiB'>1</capacity>\
             <target><format type='{format}'/>{compat}</target>{extra}</volume>"
        );
        self.client.volume_create(&self.pool, &xml).await.with_context(|| format!("making the volume {name}"))
    }

    fn domain_xml(&self, name: &str, description: &str, volumes: &[&Volume]) -> String {
        let (kind, os) = match &self.hypervisor {
            Hypervisor::Test => ("test", "<os><type>hvm</type></os>".to_owned()),
            Hypervisor::Qemu { firmware } => (
                "qemu",
                format!(
                    "<os><type arch='x86_64' machine='q35'>hvm</type>\
                     <loader readonly='yes' type='pflash'>{firmware}</loader>\
                     <nvram template='/usr/share/OVMF/OVMF_VARS_4M.fd'/></os><features><acpi/></features>"
                ),
            ),
        };
        let mut disks = String::new();
        for (volume, letter) in volumes.iter().zip('a'..='z') {
            let (device, format, target) = if volume.name.strip_suffix(".iso").is_some() {
                ("cdrom", "raw", format!("<target dev='sd{letter}' bus='sata'/><readonly/>"))
            } else {
                ("disk", "qcow2", format!("<target dev='vd{letter}' bus='virtio'/>"))
            };
            // Writing to a String cannot fail.
            let _ = write!(
                disks,
                "<disk type='file' device='{device}'><driver name='qemu' type='{format}'/>\
                 <source file='{}'/>{target}</disk>",
                volume.key
            );
        }
        format!(
            "<domain type='{kind}'><name>{name}</name><description>{description}</description>\
             <memory unit='MiB'>128</memory><vcpu>1</vcpu>{os}<devices>{disks}</devices></domain>"
        )
    }
}
