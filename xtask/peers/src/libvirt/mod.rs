//! libvirt: the real daemon, for one test.
//!
//! [`Libvirtd`] serves libvirt's own test driver, whose domains start instantly and cost nothing, for tests and benchmarks with many
//! VMs. [`QemuLibvirtd`] serves the QEMU driver, whose domains are real processes with real disks. Each runs in a mount namespace of
//! its own, in which libvirt's folders (`/run/libvirt`, `/etc/libvirt`, `/var/lib/libvirt`, …) are folders of the caller's. So the
//! machine's own libvirt, if any, is neither used nor touched, and any number run side by side. A daemon's files stay in its folder for
//! inspection.
//!
//! Both have a [`Host`], which makes pod VMs in cloud-api-adaptor's shape.

mod daemon;
mod host;
mod listener;
mod qemu;
mod relay;
mod test_driver;
mod virsh;

pub use host::{Host, PodVm};
pub use listener::{Listener, TcpAuth, stranger};
pub use qemu::QemuLibvirtd;
pub use relay::Relay;
pub use test_driver::Libvirtd;
pub use virsh::Virsh;

/// The description that cloud-api-adaptor gives a pod VM's domain. It identifies pod VMs.
pub const POD_VM_DESCRIPTION: &str = "This Virtual Machine is the peer-pod VM";
/// The pool that cloud-api-adaptor uses unless told otherwise (`LIBVIRT_POOL`).
pub const POOL: &str = "default";
/// The volume that every pod VM's root disk is based on unless told otherwise (`LIBVIRT_VOL_NAME`).
pub const BASE_VOLUME: &str = "podvm-base.qcow2";
