//! What libvirt manages, as the protocol names it.

use std::ops::BitOr;

use uuid::Uuid;

use crate::xdr::{Decode, Decoder, Encode, XdrError};

/// A virtual machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Domain {
    /// Unique on the host at any one time.
    pub name: String,
    /// Identifies it for good. libvirt looks a domain up by this.
    pub uuid: Uuid,
    /// A number while it runs, -1 while it does not.
    pub id: i32,
}

impl Encode for &Domain {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), XdrError> {
        (self.name.as_str(), self.uuid, self.id).encode(out)
    }
}

impl Decode for Domain {
    const MIN_SIZE: usize = <(String, Uuid, i32)>::MIN_SIZE;

    fn decode(input: &mut Decoder<'_>) -> Result<Self, XdrError> {
        let (name, uuid, id) = Decode::decode(input)?;
        Ok(Self { name, uuid, id })
    }
}

/// A place that holds volumes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pool {
    /// Unique on the host at any one time.
    pub name: String,
    /// What identifies it for good.
    pub uuid: Uuid,
}

impl Encode for &Pool {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), XdrError> {
        (self.name.as_str(), self.uuid).encode(out)
    }
}

impl Decode for Pool {
    const MIN_SIZE: usize = <(String, Uuid)>::MIN_SIZE;

    fn decode(input: &mut Decoder<'_>) -> Result<Self, XdrError> {
        let (name, uuid) = Decode::decode(input)?;
        Ok(Self { name, uuid })
    }
}

/// A disk in a pool.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Volume {
    /// The pool's name.
    pub pool: String,
    /// Unique in its pool.
    pub name: String,
    /// Unique on the host. For a file it is the path.
    pub key: String,
}

impl Encode for &Volume {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), XdrError> {
        (self.pool.as_str(), self.name.as_str(), self.key.as_str()).encode(out)
    }
}

impl Decode for Volume {
    const MIN_SIZE: usize = <(String, String, String)>::MIN_SIZE;

    fn decode(input: &mut Decoder<'_>) -> Result<Self, XdrError> {
        let (pool, name, key) = Decode::decode(input)?;
        Ok(Self { pool, name, key })
    }
}

/// What a domain is doing: a `virDomainState`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DomainState {
    /// The driver does not know.
    NoState,
    /// It runs.
    Running,
    /// It waits for a resource.
    Blocked,
    /// It was paused, and holds its resources.
    Paused,
    /// It is shutting down.
    ShuttingDown,
    /// It is off.
    ShutOff,
    /// It crashed, and is off.
    Crashed,
    /// Its guest suspended it.
    Suspended,
    /// A state that this client has no name for.
    Other(i32),
}

impl From<i32> for DomainState {
    fn from(number: i32) -> Self {
        match number {
            0 => Self::NoState,
            1 => Self::Running,
            2 => Self::Blocked,
            3 => Self::Paused,
            4 => Self::ShuttingDown,
            5 => Self::ShutOff,
            6 => Self::Crashed,
            7 => Self::Suspended,
            other => Self::Other(other),
        }
    }
}

/// What libvirt deletes with a domain's definition: `virDomainUndefineFlagsValues`. Combined with `|`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UndefineFlags(pub(crate) u32);

impl UndefineFlags {
    /// Its saved memory.
    pub const MANAGED_SAVE: Self = Self(1);
    /// What libvirt knows of its snapshots.
    pub const SNAPSHOTS_METADATA: Self = Self(2);
    /// Its UEFI variables. Without this, a domain that has them is not undefined.
    pub const NVRAM: Self = Self(4);
    /// What libvirt knows of its checkpoints.
    pub const CHECKPOINTS_METADATA: Self = Self(16);
}

impl BitOr for UndefineFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
