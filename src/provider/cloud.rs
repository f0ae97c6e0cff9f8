//! What the rest of the operator asks about a cloud.
//!
//! A cloud is plain data and a few functions, declared once in its folder. A caller asks the [`Cloud`] and never compares names.

use std::{fmt, sync::Arc};

use kube::Client;
use operator_kit::Permission;
use tokio::sync::Notify;

use super::{CLOUDS, Error, IdProblem, ParsedId, Provider, Shared};
use crate::settings::{Catalogue, Check, Endpoint, Key, Malformed, Schema, Values};

/// The settings of [`CLOUDS`].
pub const CATALOGUE: Catalogue = Catalogue::new(&SCHEMAS);

static SCHEMAS: [&Schema; CLOUDS.len()] = {
    let mut schemas = [&CLOUDS[0].schema; CLOUDS.len()];
    let mut index = 1;
    while index < schemas.len() {
        schemas[index] = &CLOUDS[index].schema;
        index += 1;
    }
    schemas
};

/// The longest name that cloud-api-adaptor gives to a VM on most clouds, in bytes.
pub const NAME_LIMIT: usize = 63;

/// The Secret with the key for ssh, where cloud-api-adaptor looks for it.
pub(super) const SSH_KEY: AdaptorVolume =
    AdaptorVolume { name: "ssh", path: "/root/.ssh", source: VolumeSource::Secret(AdaptorSecret::SshKey) };

/// One cloud. Two are equal if their names are.
#[derive(Clone, Copy, Debug)]
pub struct Cloud {
    /// Its name and its settings.
    pub schema: Schema,
    /// Its name in the chart of cloud-api-adaptor, if that is another one.
    pub chart_alias: Option<&'static str>,
    /// What users must know before they install for it.
    pub caveat: Option<&'static str>,
    /// The longest name that cloud-api-adaptor gives to a VM there, in bytes.
    pub name_limit: usize,
    /// Brings a recorded identifier, which is not empty, into the cloud's canonical form.
    pub parse_id: fn(&str) -> Result<ParsedId, IdProblem>,
    /// Whether the cloud may deny for a while that a VM exists which it has just made. One answer then does not prove the absence
    /// of a young VM.
    pub settles_late: bool,
    /// Whether a list may lack a VM however old it is, or show it under another name. Then no list proves that a Pod has no VM.
    pub may_hide_vms: bool,
    /// Whether the cloud gives the identifier of a VM to another Pod's VM later. cloud-api-adaptor records a VM a moment after it
    /// got it. In that moment an earlier or forged record of the identifier looks like that of this VM.
    pub reuses_ids: bool,
    /// The setting of which cloud-api-adaptor makes a further tag of VMs there, and the key of that tag.
    pub own_tag: Option<(&'static str, &'static str)>,
    /// The setting that `spec.instanceType` of a PeerPodConfig becomes.
    pub instance_type: Option<InstanceTypeKey>,
    /// What the Pods of cloud-api-adaptor mount there beside what they mount on all clouds.
    pub volumes: &'static [AdaptorVolume],
    /// Further permissions that the operator needs for this cloud in its own namespace.
    pub permissions: &'static [Permission],
    /// Further permissions that the operator needs for this cloud in the whole cluster.
    pub cluster_permissions: &'static [Permission],
    /// Further permissions that cloud-api-adaptor needs for this cloud in its namespace, which is the operator's.
    pub adaptor_permissions: &'static [Permission],
    /// Where VMs are, if the settings say that although deletion cannot use them. `None` for a cloud where the account is a part of that,
    /// which unusable settings do not tell.
    pub place: Option<ReadPlace>,
    /// Opens a provider.
    pub open: Open,
}

/// Opens a provider by a cloud's settings. It connects when it is first used.
pub type Open = fn(&Values, &Opening<'_>) -> Result<Box<dyn Provider>, Error>;

/// Reads where VMs are, whatever else is wrong with these values.
pub type ReadPlace = fn(&Values) -> Option<Endpoint>;

/// What a provider is opened for.
#[derive(Clone, Debug)]
pub struct Opening<'a> {
    /// The number of calls at once. As many again may hang. Further calls may have to wait.
    pub calls: usize,
    /// The cluster, for a cloud whose state is an object there. [`Openers`](super::Openers) fill it in.
    pub cluster: Option<ClusterAccess>,
    /// The place. `None`: the one that the settings name, whichever identity answers there.
    pub recorded: Option<RecordedPlace<'a>>,
    /// What it shares with other providers. [`Openers`](super::Openers) fill it in.
    pub shared: Shared,
}

/// Access to the operator's own cluster.
#[derive(Clone)]
pub struct ClusterAccess {
    /// A client under the operator's rights.
    pub client: Client,
    /// The operator's namespace, which is cloud-api-adaptor's, too.
    pub namespace: String,
}

impl fmt::Debug for ClusterAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterAccess").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

/// A place that these or earlier settings named. The operator reaches it with the credentials of these settings.
#[derive(Clone, Debug)]
pub struct RecordedPlace<'a> {
    /// Its [`Endpoint::address`].
    pub address: &'a str,
    /// The [`Provider::identity`] that must answer there. `None`: none is recorded.
    pub identity: Option<&'a str>,
    /// Which settings named it.
    pub named_by: NamedBy,
}

/// Which settings named a recorded place.
#[derive(Clone, Debug)]
pub enum NamedBy {
    /// Those with which it is opened.
    Current {
        /// Notified if another identity answers there than the recorded one.
        identity_changed: Arc<Notify>,
    },
    /// Earlier ones.
    Former,
}

/// The setting that an instance type becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceTypeKey {
    /// Its name.
    pub name: &'static str,
    /// The setting that overrules it, if it is set.
    pub overruled_by: Option<&'static str>,
}

/// What a Pod of cloud-api-adaptor mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptorVolume {
    /// The volume's name.
    pub name: &'static str,
    /// The path in the Pod.
    pub path: &'static str,
    /// What is there.
    pub source: VolumeSource,
}

/// What a volume is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeSource {
    /// A Secret, which may be missing.
    Secret(AdaptorSecret),
    /// What the node has at the same path. It may be missing.
    HostPath,
    /// A token of the Pod's `ServiceAccount`.
    Token {
        /// Who trusts it.
        audience: &'static str,
        /// The file's name.
        file: &'static str,
    },
}

/// A Secret that a Pod of cloud-api-adaptor mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdaptorSecret {
    /// The one with the key for ssh, whose name users choose.
    SshKey,
    /// The one with the trusted host keys, whose name users choose.
    HostKeys,
    /// One of this name.
    Named(&'static str),
}

impl Opening<'_> {
    /// For this many calls at once, at the endpoint that the settings name.
    pub fn new(calls: usize) -> Self {
        Self { calls, cluster: None, recorded: None, shared: Shared::default() }
    }

    /// The recorded address, or else that of the settings. Fails if the check found settings that cannot be used.
    pub(super) fn address(&self, checked: Result<Endpoint, Vec<Malformed>>) -> Result<String, Error> {
        let current = checked.map_err(|malformed| Error::unusable(&malformed))?.address;
        Ok(self.recorded.as_ref().map_or(current, |recorded| recorded.address.to_owned()))
    }

    /// The place at this [address](Self::address). Fails if `read` finds no `what`, such as a workspace, there.
    pub(super) fn place<P>(
        &self,
        checked: Result<Endpoint, Vec<Malformed>>,
        what: &str,
        read: impl FnOnce(&str) -> Option<P>,
    ) -> Result<P, Error> {
        read(&self.address(checked)?).ok_or_else(|| Error::unreadable_place(what))
    }
}

impl<'a> RecordedPlace<'a> {
    /// The place that the settings name.
    pub fn current(address: &'a str, identity: Option<&'a str>, identity_changed: Arc<Notify>) -> Self {
        Self { address, identity, named_by: NamedBy::Current { identity_changed } }
    }

    /// A place that earlier settings named.
    pub fn former(address: &'a str, identity: Option<&'a str>) -> Self {
        Self { address, identity, named_by: NamedBy::Former }
    }

    /// Whether earlier settings named it.
    pub fn is_former(&self) -> bool {
        matches!(self.named_by, NamedBy::Former)
    }

    /// To be notified if another identity answers there. `None` for a former place: the operator records no other identity of it.
    pub fn identity_changed(&self) -> Option<Arc<Notify>> {
        match &self.named_by {
            NamedBy::Current { identity_changed } => Some(Arc::clone(identity_changed)),
            NamedBy::Former => None,
        }
    }
}

impl InstanceTypeKey {
    /// A setting that nothing overrules.
    pub const fn new(name: &'static str) -> Self {
        Self { name, overruled_by: None }
    }
}

impl Cloud {
    /// A cloud with this name and these settings, and with what most clouds have in common: it settles late, its lists hide no VM
    /// for good, its identifiers stay with one VM, and nothing else is special about it.
    pub const fn new(
        cloud: &'static str,
        keys: &'static [Key],
        check: Check,
        parse_id: fn(&str) -> Result<ParsedId, IdProblem>,
        open: Open,
    ) -> Self {
        Self {
            schema: Schema { cloud, keys, check },
            chart_alias: None,
            caveat: None,
            name_limit: NAME_LIMIT,
            parse_id,
            settles_late: true,
            may_hide_vms: false,
            reuses_ids: false,
            own_tag: None,
            instance_type: None,
            volumes: &[],
            permissions: &[],
            cluster_permissions: &[],
            adaptor_permissions: &[],
            place: None,
            open,
        }
    }

    /// The cloud of this name in [`CLOUDS`].
    pub fn named(name: &str) -> Option<&'static Self> {
        CLOUDS.into_iter().find(|cloud| cloud.name() == name)
    }

    /// The name as in `CLOUD_PROVIDER` and in `spec.cloudProvider` of a `PeerPod`.
    pub const fn name(&self) -> &'static str {
        self.schema.cloud
    }

    /// Every setting beside those that all clouds have ([`Common::KEYS`](crate::settings::Common::KEYS)), in the order in which
    /// people fill them in.
    pub const fn keys(&self) -> &'static [Key] {
        self.schema.keys
    }

    /// Whether the Pods of cloud-api-adaptor mount this Secret there.
    pub fn mounts(&self, secret: AdaptorSecret) -> bool {
        self.volumes.iter().any(|volume| volume.source == VolumeSource::Secret(secret))
    }
}

impl PartialEq for Cloud {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Cloud {}

impl fmt::Display for Cloud {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests;
