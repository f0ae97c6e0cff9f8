//! Where settings point.

/// Where a cloud keeps VMs. At any other endpoint the same VM does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The setting that names it.
    pub setting: &'static str,
    /// Its address, without user and credentials: enough to tell it from others and to connect to it again.
    pub address: String,
}
