//! Mounted folders become typed settings, one provider per pair of folders, reloaded while running.
//!
//! ```text
//! folder.rs    two folders      -> Raw         (IO; whole, or an error that names the file)
//! snapshot.rs  Raw              -> Snapshot    (pure; typed, with warnings and conflicts)
//! inspect.rs   Raw              -> Inspection  (key by key, for people)
//! watch.rs     changes on disk  -> State       (the last good snapshot stays in force)
//! ```
//!
//! A setting's name is cloud-api-adaptor's environment variable, so that one `ConfigMap` and one `Secret` serve it and
//! this operator alike. Every setting is a documented field of one struct per provider ([`Common`], [`Libvirt`]); the
//! same declaration makes the table ([`Common::KEYS`], [`Libvirt::KEYS`]) from which packaging and documents are
//! printed, so a setting is described in one place.
//!
//! What only the making of a VM needs is read but never judged: a stale image name must not keep a VM from being
//! deleted.

mod catalogue;
mod common;
mod endpoint;
mod error;
mod folder;
mod inspect;
mod key;
mod libvirt;
mod snapshot;
mod watch;

pub use catalogue::CloudProvider;
pub use common::Common;
pub use endpoint::Endpoint;
pub use error::SettingsError;
pub use folder::{Folders, Raw};
pub use inspect::{Entry, Inspection, Remark, Shown, Verdict};
pub use key::{Key, Kind};
pub use libvirt::Libvirt;
pub use snapshot::{Conflict, Malformed, ProviderSettings, Snapshot, Source, Warning};
pub use watch::{State, watch};
