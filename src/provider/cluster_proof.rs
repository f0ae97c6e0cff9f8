//! The proof that a pod VM is this cluster's, for VMs without a Pod and a PeerPod; and whether any VM's tag says that it is another
//! cluster's.
//!
//! A VM's name is made from a Pod's name alone, and another cluster may have a Pod of the same name. So the name proves nothing by
//! itself.

use std::fmt;

use operator_kit::Message;

use super::{Error, ErrorClass, Listed, Vm};
use crate::settings::Common;

/// The tag whose value is the UID of the namespace `kube-system`, which identifies a cluster.
pub const CLUSTER_UID_TAG: &str = "caa-cluster-uid";

/// The UID of the cluster by these tags of a VM.
pub(super) fn cluster_uid<K: AsRef<str>, V>(tags: impl IntoIterator<Item = (K, V)>) -> Option<V> {
    tags.into_iter().find(|(key, _)| is_uid_tag(key.as_ref())).map(|(_, uid)| uid)
}

/// Azure ignores case in keys.
pub(super) fn is_uid_tag(key: &str) -> bool {
    key.eq_ignore_ascii_case(CLUSTER_UID_TAG)
}

/// The VM, unless it has the tag of a cluster and that is not the one with this UID. A PeerPod that came from another cluster, as by
/// a backup, names a VM there.
pub(crate) fn ensure_this_cluster(vm: Vm, uid: Option<&str>) -> Result<Vm, Error> {
    if !vm.is_of_another_cluster(uid) {
        return Ok(vm);
    }
    let (class, problem) = match uid {
        Some(_) => (
            ErrorClass::Refused,
            "is not this cluster's UID: the VM is another cluster's, or the tag in TAGS is wrong",
        ),
        None => (
            ErrorClass::Transient,
            "cannot be compared: the API server has not shown the UID of the namespace kube-system yet",
        ),
    };
    let message = Message::public(format!("the value of the VM's tag {CLUSTER_UID_TAG} {problem}"));
    Err(Error::new(class, message))
}

/// How VMs of one cloud prove that they are this cluster's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterClaims {
    tag: Option<(String, String)>,
    cluster_uid: Option<String>,
    exclusive: bool,
    /// The settings declared it of another place than the one that is listed.
    is_elsewhere: bool,
}

/// The proof that something is this cluster's. Only [`ClusterClaims::proof`] makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterProof(Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Tag(String),
    ClusterUid,
    Exclusive,
}

impl ClusterClaims {
    /// The claims of the settings, in the cluster with this UID, if that is known. Settings that were copied from another cluster
    /// claim nothing.
    pub fn new(settings: &Common, cluster_uid: Option<&str>) -> Self {
        let cluster_uid = cluster_uid.filter(|uid| !uid.is_empty()).map(str::to_owned);
        let is_for_this = cluster_uid.is_some() && settings.sweep_cluster == cluster_uid;
        let tag = settings.declared_tag().filter(|_| is_for_this);
        Self {
            tag: tag.map(|(key, value)| (key.to_owned(), value.to_owned())),
            cluster_uid,
            exclusive: settings.sweep_exclusive && is_for_this,
            is_elsewhere: false,
        }
    }

    /// The same, of a place where perhaps another host, account or pool answers than the one of which the settings declared it.
    pub(crate) fn elsewhere(self, is_elsewhere: bool) -> Self {
        Self { is_elsewhere, ..self }
    }

    /// The place has pod VMs of this cluster alone.
    #[cfg(test)]
    pub(crate) fn exclusive() -> Self {
        Self { exclusive: true, ..Self::default() }
    }

    /// Pod VMs of this cluster have this tag. `exclusive`: the place has no other pod VMs.
    #[cfg(test)]
    pub(crate) fn of_tag(key: &str, value: &str, exclusive: bool) -> Self {
        Self { tag: Some((key.to_owned(), value.to_owned())), exclusive, ..Self::default() }
    }

    /// What proves that this is the cluster's, if anything does.
    pub fn proof(&self, listed: &Listed) -> Option<ClusterProof> {
        // A tag with another cluster's UID disproves it, whatever the settings declare.
        if let Some(uid) = cluster_uid(listed.tags.iter().map(|(key, uid)| (key, uid))) {
            return (self.cluster_uid.as_ref() == Some(uid)).then_some(ClusterProof(Kind::ClusterUid));
        }
        if self.is_elsewhere {
            return None;
        }
        let bears = |key: &str, value: &str| listed.tags.iter().any(|(k, v)| k == key && v == value);
        if let Some((key, value)) = self.tag.as_ref().filter(|(key, value)| bears(key, value)) {
            return Some(ClusterProof(Kind::Tag(format!("{key}={value}"))));
        }
        self.exclusive.then_some(ClusterProof(Kind::Exclusive))
    }

    /// Whether its tags say that it is another cluster's.
    pub fn is_of_another(&self, listed: &Listed) -> bool {
        let has_other_uid = |own: &str| listed.tags.iter().any(|(key, uid)| is_uid_tag(key) && uid != own);
        let has_other = |key: &str, own: &str| listed.tags.iter().any(|(k, v)| k == key && v != own);
        self.cluster_uid.as_deref().is_some_and(has_other_uid)
            || self.tag.as_ref().is_some_and(|(key, value)| has_other(key, value))
    }
}

impl fmt::Display for ClusterProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Tag(tag) => write!(f, "it has the tag {tag} (SWEEP_TAG)"),
            Kind::ClusterUid => write!(f, "its tag {CLUSTER_UID_TAG} is this cluster's UID"),
            Kind::Exclusive => {
                f.write_str("all pod VMs that these settings show are this cluster's (SWEEP_EXCLUSIVE)")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        provider::{CATALOGUE, InstanceId, Resource},
        settings::{Raw, Snapshot},
    };

    fn listed(tags: &[(&str, &str)]) -> Listed {
        let tags = tags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Listed { tags, ..Listed::new(Resource::Vm, "i-1", "podvm-a-1a2b3c4d") }
    }

    fn claims(tag: Option<&str>, exclusive: bool) -> ClusterClaims {
        let tag =
            tag.and_then(|tag| tag.split_once('=')).map(|(key, value)| (key.to_owned(), value.to_owned()));
        ClusterClaims { tag, cluster_uid: Some("uid-1".to_owned()), exclusive, is_elsewhere: false }
    }

    #[test]
    fn a_vm_of_another_cluster_is_refused() {
        let vm = Vm::named(InstanceId::scoped("", "i-1"), "podvm-web-1a2b3c4d");
        let of = |uid: &str| Vm { cluster_uid: Some(uid.to_owned()), ..vm.clone() };
        assert_eq!(ensure_this_cluster(of("uid-1"), Some("uid-1")), Ok(of("uid-1")));
        for (uid, class, said) in [
            (Some("uid-2"), ErrorClass::Refused, "another cluster's"),
            (None, ErrorClass::Transient, "not shown the UID"),
        ] {
            let error = ensure_this_cluster(of("uid-1"), uid).unwrap_err();
            assert_eq!(error.class, class);
            assert!(error.message.for_status().contains(said), "{}", error.message.for_status());
        }
    }

    #[test]
    fn nothing_declared_proves_nothing() {
        assert_eq!(claims(None, false).proof(&listed(&[("a", "b")])), None);
        assert_eq!(ClusterClaims::default().proof(&listed(&[(CLUSTER_UID_TAG, "")])), None);
    }

    #[test]
    fn a_declared_tag_proves_by_key_and_value() {
        let claims = claims(Some("cluster=a"), false);
        assert!(claims.proof(&listed(&[("cluster", "a")])).is_some());
        for other in [&[("cluster", "b")], &[("a", "cluster")], &[("Cluster", "a")]] {
            assert_eq!(claims.proof(&listed(other)), None);
        }
    }

    #[test]
    fn the_uid_of_another_cluster_is_proof_against_this_one() {
        for exclusive in [false, true] {
            let claims = claims(None, exclusive);
            for key in [CLUSTER_UID_TAG, "CAA-Cluster-Uid"] {
                let (own, other) = (listed(&[(key, "uid-1")]), listed(&[(key, "uid-2")]));
                assert!(claims.proof(&own).is_some() && !claims.is_of_another(&own), "{key}");
                assert!(claims.proof(&other).is_none() && claims.is_of_another(&other), "{key}");
            }
        }
    }

    #[test]
    fn what_was_declared_of_another_identity_proves_nothing() {
        let claims = claims(Some("cluster=a"), true).elsewhere(true);
        assert_eq!(claims.proof(&listed(&[("cluster", "a")])), None);
        assert_eq!(claims.proof(&listed(&[])), None);
        assert!(claims.proof(&listed(&[(CLUSTER_UID_TAG, "uid-1")])).is_some(), "the VM itself says it");
        assert!(claims.is_of_another(&listed(&[("cluster", "b")])));
    }

    #[test]
    fn the_uid_of_another_cluster_outweighs_a_declared_tag() {
        let copied = listed(&[("cluster", "a"), (CLUSTER_UID_TAG, "uid-2")]);
        let claims = claims(Some("cluster=a"), true);
        assert_eq!(claims.proof(&copied), None);
        assert!(claims.is_of_another(&copied));
        assert!(claims.is_of_another(&listed(&[("cluster", "b")])));
        for own in [&[][..], &[("cluster", "a")], &[(CLUSTER_UID_TAG, "uid-1")]] {
            assert!(!claims.is_of_another(&listed(own)), "{own:?}");
        }
    }

    #[test]
    fn settings_of_another_cluster_declare_nothing() {
        let settings =
            [("CLOUD_PROVIDER", "libvirt"), ("SWEEP_TAG", "cluster=a"), ("SWEEP_EXCLUSIVE", "true")];
        let of = |cluster: Option<&str>, here: Option<&str>| {
            let named = settings.into_iter().chain(cluster.map(|uid| ("SWEEP_CLUSTER", uid)));
            let settings = named.map(|(key, value)| (key.to_owned(), value.into())).collect();
            let raw = Raw { settings, ..Raw::default() };
            ClusterClaims::new(&Snapshot::parse(&raw, CATALOGUE).unwrap().common, here)
        };
        let [own, another] = ["uid-1", "uid-2"].map(Some);
        for claims in [of(own, another), of(own, None), of(None, own), of(None, None), of(Some(""), Some(""))]
        {
            assert_eq!(claims.proof(&listed(&[("cluster", "a")])), None, "{claims:?}");
        }
        assert!(of(own, own).proof(&listed(&[])).is_some());
    }

    #[test]
    fn a_place_of_this_cluster_alone_proves() {
        let proof = claims(None, true).proof(&listed(&[])).unwrap();
        assert!(proof.to_string().contains("SWEEP_EXCLUSIVE"), "{proof}");
    }
}
