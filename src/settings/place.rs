//! Where settings point.

/// Where a cloud keeps machines: one who asks in another place hears that they do not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The setting that names it.
    pub setting: &'static str,
    /// Where it is, to tell it from others and to go there; without user and credentials.
    pub address: String,
}
