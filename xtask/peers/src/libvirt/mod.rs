//! libvirt: the real daemon, private to whoever starts it.
//!
//! [`Libvirtd`] serves libvirt's own test driver, whose domains are instant and cost nothing: what a test or a
//! measurement of many VMs needs. [`QemuLibvirtd`] serves the QEMU driver, whose domains are real processes with real
//! disks. Either runs in a mount namespace of its own, in which libvirt's folders (`/run/libvirt`, `/etc/libvirt`,
//! `/var/lib/libvirt`, …) are folders of the caller's: the machine's own libvirt, if it has one, is neither used nor
//! touched, and any number run side by side. What a daemon writes stays in its folder for inspection.
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

/// The description that cloud-api-adaptor gives a pod VM's domain, and by which one is recognised.
pub const POD_VM_DESCRIPTION: &str = "This Virtual Machine is the peer-pod VM";
/// The pool that cloud-api-adaptor uses unless told otherwise (`LIBVIRT_POOL`).
pub const POOL: &str = "default";
/// The volume that every pod VM's root disk is based on unless told otherwise (`LIBVIRT_VOL_NAME`).
pub const BASE_VOLUME: &str = "podvm-base.qcow2";
