//! The operator and its clouds: reaching them, their VMs, and the places where VMs may be.

mod aws;
mod azure;
mod check;
mod contract;
mod far_host;
mod gcp;
mod places;
mod qemu;
mod several;
