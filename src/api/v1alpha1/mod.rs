//! `confidentialcontainers.org/v1alpha1`: the types that users, cloud-api-adaptor and this operator share.

mod admission;
mod peerpod;
mod peerpodconfig;
mod resources;

use operator_kit::crd::Crds;

pub use admission::{Admission, AdmissionMode, EXTENDED_RESOURCE, RUNTIME_CLASS, Sizing};
pub use peerpod::{PeerPod, PeerPodSpec, PeerPodStatus};
pub use peerpodconfig::{
    Adaptor, Distribution, ImagePullPolicy, MOST_VMS, PeerPodConfig, PeerPodConfigSpec, PeerPodConfigStatus,
};
pub use resources::Resources;

/// The definitions of these kinds.
pub const CRDS: Crds =
    Crds { group: "confidentialcontainers.org", install: "kubectl apply -f manifests/crd" };

/// The finalizer that cloud-api-adaptor sets on every [`PeerPod`]. While it is there, the VM may exist.
pub const FINALIZER: &str = "peer.pod/finalizer";

/// An administrator's annotation on a [`PeerPod`]. With the value [`RELEASE_ABANDON`], the operator makes no call to the cloud: it
/// releases the finalizer of a PeerPod that is being deleted, and leaves the VM, if there is one, alone.
pub const RELEASE_ANNOTATION: &str = "peerpods.confidentialcontainers.org/release";

/// The one value of [`RELEASE_ANNOTATION`] that has an effect.
pub const RELEASE_ABANDON: &str = "abandon";

/// The right to create a [`PeerPod`] and to change its spec or its owner. It is a verb on `peerpods` that means nothing to the
/// API server itself. The guard (a validating admission policy of the installation) requires it.
pub const RECORD_VERB: &str = "record";

/// The rule for the name of an object.
const OBJECT_NAME: &str =
    "self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')";

/// The right to remove [`FINALIZER`], and to add finalizers; see [`RECORD_VERB`].
pub const RELEASE_VERB: &str = "release";

/// The right to set [`RELEASE_ABANDON`]; see [`RECORD_VERB`].
pub const ABANDON_VERB: &str = "abandon";

/// The field manager of everything this operator writes.
pub const FIELD_MANAGER: &str = "peerpod-operator";
