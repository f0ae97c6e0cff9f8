//! OCI images without a container engine.
//!
//! An [`Image`] is files in memory, and how to run the program among them. [`Image::write`] makes an archive of it (an OCI image layout
//! in a tar file) for `ctr images import`, `podman load` and `skopeo copy oci-archive:…`. The same image gives the same bytes on every
//! run: entries are sorted, and nothing has a time.
//!
//! [`operator`] is the operator's image, [`example`] that of an operator in `examples/`. [`Materials`] gives the bill of materials of a
//! program, and the licences in its image.

mod archive;
mod closure;
mod files;
mod licenses;
mod materials;
mod operator;
mod rustc;
mod sbom;
mod system;

pub use archive::{Blob, Compression, Config, Image, MANIFEST, Packed, Written};
pub use closure::closure;
pub use files::Files;
pub use materials::Materials;
pub use operator::{USER, example, operator, public_authorities};
