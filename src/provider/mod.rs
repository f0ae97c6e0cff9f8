//! The contract between the controllers and a cloud.
//!
//! # What a provider promises
//!
//! - [`Provider::describe`] reads; it never changes anything. It gives the VM, or what remains of it ([`Stage::Remains`]). It
//!   fails with [`ErrorClass::NotFound`] only if nothing is left. A wrong scope, missing rights and a cloud that does not answer
//!   have classes of their own. Callers release finalizers on `NotFound`, so a provider in doubt must not report it. While the
//!   absence may still be undone, it fails with [`ErrorClass::Unsettled`]. An identifier with a [scope](InstanceId::scope) is looked
//!   up in that scope, whatever the settings name. Where an address may lead elsewhere later, an answer of a kept connection proves
//!   no absence: a connection that is opened after the question must lead to the same [identity](Provider::identity).
//! - [`Provider::delete`] deletes the VM and everything in [`Vm::belongings`], and nothing else. It may return before the VM is
//!   gone, and says when to check again. A caller may repeat it at any time, also after half a success: a step that is already
//!   done is a success. `describe` finds the VM or its remains until all belongings are gone, so that a retry still finds what is
//!   left. `delete` never deletes a user's data.
//! - [`Provider::list`] reads. It gives, page by page, what may be a pod VM and what may have come with one. It fails if any page
//!   is missing: an incomplete list proves nothing, and neither does that of a host, account or pool that no longer answers there. A VM's
//!   [`Listed::id`] is the one that a PeerPod records. If several VMs share that identifier, a provider lists each by an identifier of
//!   its own, or refuses to delete by it.
//! - [`Provider::examine`] finds out whether the cloud answers and what the credentials may do there. It changes nothing: it
//!   reads, uses the cloud's dry run or its question for rights, or asks to change something that provably does not exist. It
//!   fails only if the cloud does not answer at all. Every refusal is a [`Finding`], and so is a right that only its use would
//!   show ([`Outcome::Untried`]). It does not stop at the first problem.
//! - All calls end by themselves: every wait inside has a deadline. A caller may call them for many VMs at once, and may drop
//!   them at any await point without harm to a later call.
//! - Errors say what was being done and what to do about it, and never show a credential.
//!
//! # What a provider may rely on
//!
//! - [`Provider::delete`] is only ever given an [`OwnVm`]: [`ownership::verify`] has shown that it is the VM of one Pod, or
//!   [`ownership::verify_untracked`] that it is this cluster's, and the caller that it is no Pod's. No other code can make one.
//! - [`InstanceId`]s went through [`InstanceId::parse`], so they have the cloud's canonical form.
//! - [`decorate`] adds throttling, deadlines and metrics to every provider. It also removes duplicates from lists and bounds the
//!   tags that are kept.
//! - The operator asks a cloud that [settles late](Cloud::settles_late) twice before a young VM counts as absent. For identifiers
//!   without a scope it also asks in each place that the settings named before. A provider need not know that.
//!
//! # Where a cloud is
//!
//! A cloud is one folder, and in this file its `mod` and a line in [`CLOUDS`]. Its [`Cloud`] says all that the rest of the operator asks about it: no other
//! module compares names of clouds.
//!
//! [`settings`](crate::settings) depends on nothing here. It is given the catalogue, and keeps a cloud's values as text. The cloud
//! reads them into its own type when a provider is opened, so no other module knows that type.
//!
//! What stands around every cloud:
//!
//! | file | what it does |
//! |---|---|
//! | `cloud.rs` | the type [`Cloud`]: a schema, and what else differs from cloud to cloud; the [`CATALOGUE`] of [`CLOUDS`] |
//! | `cloud_settings.rs` | the settings of one cloud, as they are in force |
//! | `openers.rs` | opens the provider of a snapshot of settings: by its [`Cloud`], or by what an embedding program brings |
//! | `registry.rs` | the provider of the settings in force, within its limits |
//! | `limits.rs`, `listing.rs` | the deadline, the pauses and the metrics of each call; lists that have each thing once |
//! | `places/` | the record of the places that the settings have named |
//! | `former_places.rs`, `sightings.rs` | when a VM counts as absent: asks in all these places, and twice if the cloud settles late |
//! | `ownership.rs` | the proof that a VM is one Pod's |
//! | `cluster_proof.rs` | the proof that a VM without a Pod and a PeerPod is this cluster's, and that a VM's tag names no other cluster |
//! | `tagging.rs` | whether VMs are another cluster's by the settings |
//! | `contract/` | the scenarios that every provider must pass, and a cloud in memory |
//!
//! What an author of a cloud uses:
//!
//! | file | what it does |
//! |---|---|
//! | `error.rs` | the classes of errors |
//! | `instance.rs` | identifiers of VMs, in the one form that can be compared |
//! | `finding.rs` | what [`Provider::examine`] returns |
//! | `http/` | the client of all clouds with an HTTP API: requests, access tokens, signatures, and the pace that a cloud allows |
//! | `account.rs` | refuses the credentials of another account |
//! | `region_place.rs` | where VMs are in a cloud of regions |
//! | `shared.rs` | what providers of one process share, such as a login |
//! | `single_flight.rs` | one call for all who ask at the same time |
//! | `ibm_iam.rs` | the access tokens of IBM Cloud, for both of its clouds |
//! | `aws/`, … | a cloud. `mod.rs`: its [`Cloud`] and its [`Provider`]; `settings.rs`: its keys and typed settings |

mod account;
pub mod alibabacloud;
pub mod aws;
pub mod azure;
pub mod byom;
pub mod cloud;
mod cloud_settings;
mod cluster_proof;
pub mod contract;
pub mod docker;
mod error;
mod finding;
mod former_places;
pub mod gcp;
mod http;
mod ibm_iam;
pub mod ibmcloud;
pub mod ibmcloud_powervs;
mod instance;
pub mod libvirt;
mod limits;
mod listing;
mod openers;
pub mod ownership;
pub mod places;
mod region_place;
mod registry;
mod shared;
mod sightings;
mod single_flight;
mod tagging;
pub mod vsphere;

pub use cloud::{CATALOGUE, Cloud, NAME_LIMIT, Opening};
pub(crate) use cloud_settings::{CloudEndpoint, named_by};
pub use cloud_settings::{CloudSettings, ServedCloud};
pub(crate) use cluster_proof::ensure_this_cluster;
pub use cluster_proof::{CLUSTER_UID_TAG, ClusterClaims, ClusterProof};
pub use error::{Error, ErrorClass};
pub use finding::{Finding, Outcome};
pub use instance::{IdProblem, InstanceId, ParsedId};
pub use limits::{Limits, decorate};
pub use openers::Openers;
pub use ownership::{OwnVm, POD_VM};
pub use registry::cloud_label;
#[cfg(test)]
pub(crate) use registry::tests::{clouds_in_memory, clouds_under, state_in_memory};
pub(crate) use registry::{Clouds, CloudsContext, Target};
pub use shared::Shared;
pub(crate) use tagging::Tagging;

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

/// The registry of clouds: all of cloud-api-adaptor.
pub const CLOUDS: [&Cloud; 10] = [
    &libvirt::CLOUD,
    &aws::CLOUD,
    &azure::CLOUD,
    &gcp::CLOUD,
    &ibmcloud::CLOUD,
    &ibmcloud_powervs::CLOUD,
    &alibabacloud::CLOUD,
    &byom::CLOUD,
    &docker::CLOUD,
    &vsphere::CLOUD,
];

/// A VM as its cloud describes it, or what remains of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vm {
    /// The identifier that [`Provider::describe`] was called with.
    pub id: InstanceId,
    /// Its name in the cloud. cloud-api-adaptor made it from the Pod's name.
    pub name: String,
    /// Whether it carries the provider's own sign of a pod VM, beside the name (libvirt: the domain's description).
    /// Always true if a provider has no such sign.
    pub marked: bool,
    /// When it was made, if the cloud says so.
    pub created: Option<Timestamp>,
    /// The number of its start, if the cloud counts starts instead (libvirt). Of two VMs that run on one
    /// host, the one with the larger number was started later. `None` for a VM that does not run.
    pub start: Option<u32>,
    /// Whether it exists, is being deleted, or has left only its belongings.
    pub stage: Stage,
    /// What was made for it alone and must be deleted with it, in the provider's own spelling (libvirt: paths of volumes). Where
    /// another VM may get the identifier later, it says which VM was described (byom: its allocation). Never a user's data.
    pub belongings: Vec<String>,
    /// The UID of the cluster whose VM it is, by the tag [`CLUSTER_UID_TAG`], if it has that tag and the cloud shows it.
    pub cluster_uid: Option<String>,
    /// Whether it was absent before, to the same claim. Then a Pod of any name may run on it. Only clouds that
    /// [reuse identifiers](Cloud::reuses_ids) say so.
    pub reappeared: bool,
}

/// How much of a VM still exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The VM, running or stopped.
    Present,
    /// The VM, which the cloud is deleting. The operator can only wait.
    Leaving,
    /// No VM, but some of its belongings.
    Remains(Bears),
}

/// What in the belongings of a deleted VM shows their owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bears {
    /// The VM's name, which is made from the Pod's.
    Name,
    /// The VM's identifier, in a name that cloud-api-adaptor alone gives (aws: `eip-ID`).
    Id,
}

/// The PeerPod that claims a VM, and since when. Some clouds give an identifier to another VM later (byom: addresses of a pool).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// The name of the Pod that owns the PeerPod, if a Pod owns it.
    pub pod: Option<String>,
    /// When the VM was first recorded for that Pod.
    pub recorded: Timestamp,
    /// The PeerPod's creationTimestamp. Another PeerPod of the Pod may have recorded the same identifier before.
    pub created: Timestamp,
    /// The PeerPod's deletionTimestamp.
    pub deleted: Option<Timestamp>,
    /// Whether another PeerPod that is not being deleted names the same VM, and its Pod's VMs have the same name but for the
    /// sandbox. One of an earlier start of the same Pod that cloud-api-adaptor has released does not count. Only clouds that [reuse identifiers](Cloud::reuses_ids) are told.
    pub contested: bool,
}

/// The cloud accepted a deletion, or refuses it because the VM is leaving.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    /// How long the cloud needs at least until the VM is gone. Zero: check at once.
    pub check_again_after: Duration,
    /// Whether the cloud refused this call, and shows a state that a VM also has while it is only stopped. Then the VM may stay.
    pub may_only_stop: bool,
}

impl Accepted {
    /// The cloud accepted it, and needs at least this long.
    pub const fn after(check_again_after: Duration) -> Self {
        Self { check_again_after, may_only_stop: false }
    }
}

/// Something in a cloud that may have to do with pod VMs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// What it is.
    pub kind: Resource,
    /// The VM's canonical identifier, or the thing's in the provider's own spelling.
    pub id: String,
    /// Its name.
    pub name: String,
    /// When it was made, if the cloud says so.
    pub created: Option<Timestamp>,
    /// Whether it runs, if it is a VM.
    pub state: PowerState,
    /// The VM that it came with, if it is not a VM itself and names one.
    pub vm: Option<VmRef>,
    /// Its tags as key and value, in clouds with tags. Every user with the right to tag it writes them, so [`decorate`] keeps the
    /// shortest alone: at most 64, of at most 512 bytes each and 8 KiB together.
    pub tags: Vec<(String, String)>,
}

/// Whether a VM runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PowerState {
    /// It runs or is starting.
    Running,
    /// It is off, and does not start by itself.
    Stopped,
    /// The cloud is deleting it.
    Leaving,
    /// The list does not say.
    Unknown,
}

/// The VM that something came with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VmRef {
    /// By its name.
    Name(String),
    /// By its canonical identifier.
    Id(String),
}

/// What a [`Listed`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    /// A VM.
    Vm,
    /// A disk without a VM.
    Disk,
    /// A public address.
    Address,
    /// A network interface.
    Interface,
}

operator_kit::labels! {
    /// The metric label.
    pub Resource {
        Vm => "vm",
        Disk => "disk",
        Address => "address",
        Interface => "interface",
    }
}

/// Takes one page of a list after another.
pub type Pages<'a> = &'a mut (dyn FnMut(Vec<Listed>) + Send);

impl Listed {
    /// A thing of which nothing else is known.
    pub fn new(kind: Resource, id: impl Into<String>, name: impl Into<String>) -> Self {
        let (id, name) = (id.into(), name.into());
        Self { kind, id, name, created: None, state: PowerState::Unknown, vm: None, tags: Vec::new() }
    }

    /// This VM as [`Provider::describe`] gives it, if it was called with this identifier.
    fn described(self, id: &InstanceId) -> Vm {
        let stage = if self.state == PowerState::Leaving { Stage::Leaving } else { Stage::Present };
        let cluster_uid = cluster_proof::cluster_uid(self.tags);
        Vm { created: self.created, stage, cluster_uid, ..Vm::named(id.clone(), self.name) }
    }
}

impl Vm {
    /// A VM that is there, with nothing of its own.
    pub fn named(id: InstanceId, name: impl Into<String>) -> Self {
        let (name, belongings) = (name.into(), Vec::new());
        Self {
            id,
            name,
            marked: true,
            created: None,
            start: None,
            stage: Stage::Present,
            belongings,
            cluster_uid: None,
            reappeared: false,
        }
    }

    /// Whether its tag says that it is not of the cluster with this UID. While that UID is not known, no tag says that it is.
    pub fn is_of_another_cluster(&self, uid: Option<&str>) -> bool {
        self.cluster_uid.is_some() && self.cluster_uid.as_deref() != uid
    }
}

/// One cloud, as far as pod VMs are concerned. See the [module](self) for the contract.
#[async_trait]
pub trait Provider: Send + Sync {
    /// The VM with this id, or what remains of it, or [`ErrorClass::NotFound`].
    async fn describe(&self, id: &InstanceId, claim: &Claim) -> Result<Vm, Error>;

    /// Deletes the VM with all its belongings. `Ok` means that the cloud accepted the deletion, unless the VM
    /// [may only stop](Accepted::may_only_stop). It does not mean that the VM is gone. [`ErrorClass::NotFound`] means that there was
    /// nothing to delete; only `describe` proves the absence.
    async fn delete(&self, vm: &OwnVm) -> Result<Accepted, Error>;

    /// Calls `pages` with every VM whose name begins like a pod VM's, and with what may have been left of VMs that are gone.
    async fn list(&self, pages: Pages<'_>) -> Result<(), Error>;

    /// Who answers here: a host, an account or a pool. An absence counts only from the same one. `None` if the cloud has no such
    /// thing, or if each of its identifiers or its place names it.
    async fn identity(&self) -> Result<Option<String>, Error>;

    /// The most VMs to work on at once. With more of them requests would wait long, as the cloud takes few a second. `None`: no limit.
    fn most_at_once(&self) -> Option<usize> {
        None
    }

    /// For how much longer the cloud wants no calls, if it named a time: [`decorate`] keeps it.
    fn paused_for(&self) -> Option<Duration> {
        None
    }

    /// Examines the cloud and the rights there before they are needed. The findings are in reading order. `Err` means that the
    /// cloud did not answer.
    async fn examine(&self) -> Result<Vec<Finding>, Error>;
}
