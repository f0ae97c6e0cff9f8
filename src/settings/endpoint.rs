//! Where settings point.

/// Where a cloud keeps VMs. At any other endpoint the same VM does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The setting that names it.
    pub setting: &'static str,
    /// Where that is, in the cloud's own spelling, such as a URL, a region, a workspace with its zone, or the name of an object. It has no
    /// user and no credentials, tells the endpoint from others, and is enough to open a provider there again. If it leaves the region to
    /// the nodes, the identity of the place has the region.
    pub address: String,
}
