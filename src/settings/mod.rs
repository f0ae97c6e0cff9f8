//! Mounted folders become typed settings, one provider per pair of folders, reloaded while running.
//!
//! ```text
//! folder.rs    two folders      -> Raw         (IO; whole, or an error that names the file)
//! snapshot.rs  Raw              -> Snapshot    (pure; typed, with warnings and conflicts)
//! inspect.rs   Raw              -> Inspection  (key by key, for people)
//! tls.rs       two of the values -> TlsOptions (which versions and ciphers servers accept)
//! watch.rs     changes on disk  -> State       (the last good snapshot stays in force)
//! ```
//!
//! A setting's name is cloud-api-adaptor's environment variable, so that one `ConfigMap` and one `Secret` serve it and
//! this operator alike. Every setting is a [`Key`], from which packaging and documents are printed: a setting is described in
//! one place.
//!
//! This module knows no cloud by name. It is given a [`Catalogue`]: for each cloud its name, its keys, and a function that judges
//! the values that deletion needs ([`Schema`]). A [`Snapshot`] holds the schema of its cloud and the values. The cloud's own
//! folder in [`provider`](crate::provider) reads them into a type when it opens a provider.
//!
//! What only the making of a VM needs is read but never judged: a stale image name must not keep a VM from being
//! deleted.

mod catalogue;
mod common;
mod endpoint;
mod error;
mod folder;
mod go_duration;
mod inspect;
pub(crate) mod key;
mod snapshot;
pub mod tls;
mod values;
mod watch;

pub use catalogue::{Catalogue, Check, Schema};
pub use common::Common;
pub use endpoint::Endpoint;
pub use error::{FolderRole, SettingsError};
pub(crate) use folder::FileText;
pub use folder::{Folders, Raw};
pub use inspect::{Entry, Inspection, Remark, Shown, Verdict};
pub use key::{Key, Kind};
pub use snapshot::{Conflict, Malformed, Snapshot, Source, Warning};
pub use values::Values;
pub use watch::{State, watch};
