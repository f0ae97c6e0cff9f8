//! The settings of the libvirt provider.

use libvirt_client::ConnectUri;

use crate::settings::{Endpoint, Malformed, Values, key::settings};

/// The setting with the address of the daemon.
const URI: &str = "LIBVIRT_URI";

settings! {
    /// Where pod VMs on libvirt are made, of what, and where they are found again.
    pub struct Settings {
        /// Connection URI of the libvirt daemon that runs the pod VMs.
        uri: String = LIBVIRT_URI
            .default("qemu+ssh://root@192.168.122.1/system?no_verify=1")
            .required()
            .concerns_deletion(),
        /// Storage pool that holds the pod VMs' root and cloud-init volumes.
        pool: String = LIBVIRT_POOL.default("default").concerns_deletion(),
        /// Network that pod VMs are attached to.
        network: String = LIBVIRT_NET.default("default"),
        /// Base volume in the pool, of which every root volume is a copy-on-write layer.
        base_volume: String = LIBVIRT_VOL_NAME.default("podvm-base.qcow2"),
        /// Firmware file of pod VMs on the libvirt host.
        efi_firmware: String = LIBVIRT_EFI_FIRMWARE.default("/usr/share/OVMF/OVMF_CODE_4M.fd"),
        /// Kind of confidential VM. If empty, cloud-api-adaptor detects what the host supports.
        launch_security: Option<String> = LIBVIRT_LAUNCH_SECURITY,
        /// Number of virtual CPUs of a pod VM.
        cpus: String = LIBVIRT_CPU.default("2"),
        /// Memory of a pod VM in MiB.
        memory: String = LIBVIRT_MEMORY.default("8192"),
        /// CPUs of the host that pod VMs may use, such as `0-3,8`. If empty, all.
        cpuset: Option<String> = LIBVIRT_CPUSET,
        /// Size of the root volume in GiB. Versions of cloud-api-adaptor before v0.22.0 ignore it.
        root_disk_size: String = LIBVIRT_ROOT_DISK_SIZE.default("10"),
        /// Whether pod VMs are ordinary ones, without confidential computing.
        disable_cvm: bool = DISABLECVM.default("true"),
    }
}

/// Where these settings look for VMs.
pub(super) fn check(values: &Values) -> Result<Endpoint, Vec<Malformed>> {
    match Settings::read(values).uri.parse::<ConnectUri>() {
        Ok(uri) => Ok(Endpoint { setting: URI, address: uri.address() }),
        Err(problem) => Err(vec![Malformed { key: URI, problem: problem.to_string() }]),
    }
}
