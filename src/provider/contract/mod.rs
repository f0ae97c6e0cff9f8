//! The scenarios that every cloud passes, written once.
//!
//! ```text
//! Peer         a cloud to try it on, real or not: makes VMs, breaks things, tells what is left
//! scenarios.rs what must hold, by the contract of `Provider` alone
//! trial.rs     what scenarios do to a peer
//! memory.rs    a cloud in memory, every fault of which can be scripted
//! ```
//!
//! `cargo xtask contract [PROVIDER…]` runs them. A new cloud adds a [`Peer`]. A peer says what it cannot show, and why
//! ([`Cannot::Here`]), and the report repeats it: nothing is left out silently.

pub mod memory;
mod scenarios;
mod trial;

use std::{error, fmt};

use async_trait::async_trait;

use self::trial::Trial;
use super::{Cloud, Error, Provider};

/// A cloud that the scenarios run on.
#[async_trait]
pub trait Peer: Send + Sync {
    /// What the operator knows of it.
    fn cloud(&self) -> &Cloud;

    /// A provider for it, as the operator opens one.
    fn open(&self) -> Result<Box<dyn Provider>, Error>;

    /// Makes a VM as cloud-api-adaptor makes it for a Pod of this name, or something like it.
    async fn make(&self, kind: Kind, pod: &str) -> Result<Example, Cannot>;

    /// What is left of it, found out in another way than the provider does.
    async fn left(&self, example: &Example) -> Result<Left, Cannot>;

    /// Removes it with all that is its own, behind the provider's back.
    async fn remove(&self, example: &Example) -> Result<(), Cannot>;

    /// From now on the cloud behaves like this, at least to `example`.
    async fn behave(&self, behavior: Behavior, example: &Example) -> Result<(), Cannot>;
}

/// What a [`Peer`] makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A pod VM that runs.
    Running,
    /// A pod VM that is off.
    Stopped,
    /// A VM that cloud-api-adaptor did not make, under a name of its own.
    Foreign,
    /// A pod VM with data of a user attached to it.
    WithUserData,
    /// What is left of a pod VM that is gone.
    Remains,
    /// A pod VM that is not where the settings point, and whose identifier says where.
    InAnotherScope,
}

/// How a cloud behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behavior {
    /// As it should.
    Well,
    /// It refuses the credentials.
    Unauthorized,
    /// It asks for fewer calls.
    Throttled,
    /// It does not answer.
    Hangs,
    /// It accepts deletions, and still shows the VM.
    DeletesLater,
    /// It refuses to delete what belongs to the VM.
    HoldsBelongings,
    /// It does not show the VM, which exists, but may show what belongs to it.
    NotYetShown,
    /// It ends lists with an error.
    CutsListsOff,
}

/// What a [`Peer`] made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    /// Its identifier, as cloud-api-adaptor records it.
    pub id: String,
    /// Its name.
    pub name: String,
}

/// What is left of an [`Example`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Whether the VM is there.
    pub vm: bool,
    /// How many things of its own are there.
    pub belongings: usize,
    /// Whether a user's data is there.
    pub user_data: bool,
}

/// Why a scenario did not show what it is for.
#[derive(Debug)]
pub enum Cannot {
    /// This cloud has no such thing; the reason.
    Here(&'static str),
    /// Something failed.
    Failed(Box<dyn error::Error + Send + Sync>),
}

impl<E: Into<Box<dyn error::Error + Send + Sync>>> From<E> for Cannot {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl fmt::Display for Cannot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here(reason) => write!(f, "not on this cloud: {reason}"),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

/// How the scenarios ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many passed.
    pub passed: usize,
    /// How many failed.
    pub failed: usize,
    /// How many do not apply to the cloud.
    pub inapplicable: usize,
}

/// Runs all scenarios, one after another, and tells each one's name and result.
pub async fn run(peer: &dyn Peer, mut tell: impl FnMut(&'static str, &Result<(), Cannot>)) -> Tally {
    let mut tally = Tally::default();
    for (name, scenario) in scenarios::ALL {
        let outcome = match Trial::new(peer) {
            Ok(trial) => scenario(&trial).await,
            Err(error) => Err(error.into()),
        };
        let count = match &outcome {
            Ok(()) => &mut tally.passed,
            Err(Cannot::Here(_)) => &mut tally.inapplicable,
            Err(Cannot::Failed(_)) => &mut tally.failed,
        };
        *count += 1;
        tell(name, &outcome);
    }
    tally
}
