//! The operator and its clouds: reaching them, their VMs, and the places where VMs may be.

mod azure;
mod contract;
mod far_host;
mod places;
mod qemu;
mod several;
