//! Of which cluster cloud-api-adaptor's VMs are, by its settings. Pure *(no client)*.
//!
//! The sweep of a cluster takes VMs with that cluster's tag, or all VMs of a place that the settings give to it alone, for its own.
//! Settings that were copied to another cluster say the same of the other cluster's VMs. The first cluster has no PeerPod of these, so
//! its sweep deletes them, although Pods run on them: its operator cannot tell. So the other cluster must not use such settings.

use super::cluster_proof::is_uid_tag;

/// What is wrong with settings that tag VMs as those of another cluster.
const FOREIGN_UID: &str = "by TAGS, the VMs of cloud-api-adaptor are another cluster's, whose sweep deletes them: give the tag \
                           caa-cluster-uid there the UID of this cluster's namespace kube-system";

/// What is wrong with settings that give VMs the tag of another cluster, as those declare it.
const FOREIGN_TAG: &str = "by SWEEP_TAG and SWEEP_CLUSTER, the VMs of cloud-api-adaptor are another cluster's, whose sweep deletes them: \
                           give them another tag, and set SWEEP_CLUSTER to the UID of this cluster's namespace kube-system";

/// What is wrong with settings that give the place to another cluster alone.
const FOREIGN_PLACE: &str = "by SWEEP_EXCLUSIVE and SWEEP_CLUSTER, this place is another cluster's alone, whose sweep deletes all VMs but \
                             its own: use another place, and only then set SWEEP_CLUSTER to the UID of this cluster's namespace \
                             kube-system";

/// The settings that say it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tagging<'a> {
    /// `TAGS`.
    pub(crate) tags: &'a str,
    /// A further tag that cloud-api-adaptor makes of a setting: see [`Cloud::own_tag`](super::Cloud::own_tag).
    pub(crate) own_tag: Option<(&'a str, &'a str)>,
    /// `SWEEP_TAG`.
    pub(crate) sweep_tag: &'a str,
    /// `SWEEP_EXCLUSIVE`.
    pub(crate) sweep_exclusive: bool,
    /// `SWEEP_CLUSTER`.
    pub(crate) sweep_cluster: &'a str,
}

impl Tagging<'_> {
    /// Whether they name a cluster.
    pub(crate) fn names_cluster(self) -> bool {
        // No cluster has this UID, and no tag this value.
        self.problem("\0").is_some()
    }

    /// What is wrong with them in the cluster with this UID.
    pub(crate) fn problem(self, uid: &str) -> Option<&'static str> {
        let mut uids = self.pairs().filter(|(key, _)| is_uid_tag(key)).map(|(_, uid)| uid).peekable();
        // The tag with the UID outweighs a declared tag.
        let is_tagged = uids.peek().is_some();
        if uids.any(|tagged| tagged != uid) {
            return Some(FOREIGN_UID);
        }
        if self.sweep_cluster.is_empty() || self.sweep_cluster == uid {
            return None;
        }
        if self.sweep_exclusive {
            return Some(FOREIGN_PLACE);
        }
        (self.has_declared_tag() && !is_tagged).then_some(FOREIGN_TAG)
    }

    /// Whether VMs get the tag of `SWEEP_TAG`. Some clouds ignore case.
    fn has_declared_tag(&self) -> bool {
        let is_declared = |(key, value): (&str, &str)| {
            pair(self.sweep_tag)
                .is_some_and(|(k, v)| key.eq_ignore_ascii_case(k) && value.eq_ignore_ascii_case(v))
        };
        self.pairs().chain(self.own_tag).any(is_declared)
    }

    fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.tags.split(',').filter_map(pair)
    }
}

/// Key and value of a tag. On ibmcloud a colon separates them.
fn pair(tag: &str) -> Option<(&str, &str)> {
    let (key, value) = tag.split_once('=').or_else(|| tag.split_once(':'))?;
    Some((key.trim(), value.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_another_cluster_are_refused() {
        const TAG: (&str, bool) = ("cluster=a", false);
        const EXCLUSIVE: (&str, bool) = ("", true);
        const NONE: (&str, bool) = ("", false);
        for (tags, (sweep_tag, sweep_exclusive), sweep_cluster, problem) in [
            ("", NONE, "", None),
            ("team=a", NONE, "", None),
            ("caa-cluster-uid=uid-1", NONE, "", None),
            ("team=a, CAA-Cluster-Uid = uid-1", NONE, "", None),
            ("caa-cluster-uid=uid-2", NONE, "", Some(FOREIGN_UID)),
            ("team=a,CAA-CLUSTER-UID=uid-2", NONE, "", Some(FOREIGN_UID)),
            ("caa-cluster-uid:uid-2", NONE, "", Some(FOREIGN_UID)),
            ("caa-cluster-uid=", NONE, "", Some(FOREIGN_UID)),
            ("caa-cluster-uid=uid-1,caa-cluster-uid=uid-2", NONE, "", Some(FOREIGN_UID)),
            ("cluster=a", TAG, "uid-1", None),
            ("team=a,cluster=a", TAG, "uid-2", Some(FOREIGN_TAG)),
            ("cluster:a", TAG, "uid-2", Some(FOREIGN_TAG)),
            ("Cluster=A", TAG, "uid-2", Some(FOREIGN_TAG)),
            ("", EXCLUSIVE, "uid-1", None),
            ("", EXCLUSIVE, "uid-2", Some(FOREIGN_PLACE)),
            // The sweep of the other cluster does not take them for its own.
            ("cluster=b", TAG, "uid-2", None),
            ("cluster=a,caa-cluster-uid=uid-1", TAG, "uid-2", None),
            ("cluster=a", TAG, "", None),
            ("cluster=a", NONE, "uid-2", None),
            ("", EXCLUSIVE, "", None),
        ] {
            let tagging = Tagging { tags, own_tag: None, sweep_tag, sweep_exclusive, sweep_cluster };
            assert_eq!(tagging.problem("uid-1"), problem, "{tagging:?}");
            assert!(problem.is_none() || tagging.names_cluster(), "the UID of this cluster is asked for");
        }
        let with_own = Tagging {
            tags: "",
            own_tag: Some(("of", "one")),
            sweep_tag: "of=one",
            sweep_exclusive: false,
            sweep_cluster: "uid-2",
        };
        assert_eq!(with_own.problem("uid-1"), Some(FOREIGN_TAG));
        assert_eq!(Tagging { own_tag: Some(("of", "two")), ..with_own }.problem("uid-1"), None);
    }
}
