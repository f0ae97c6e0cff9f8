//! Of which cluster cloud-api-adaptor's VMs are, by its settings. Pure *(no client)*.
//!
//! The sweep of a cluster takes VMs with that cluster's tag, or all VMs of a place that the settings give to it alone, for its own.
//! Settings that were copied to another cluster say the same of the other cluster's VMs. The first cluster has no PeerPod of these, so
//! its sweep deletes them, although Pods run on them: its operator cannot tell. So the other cluster must not use such settings.

use super::cluster_proof::is_uid_tag;

/// What is wrong with settings that tag VMs as those of another cluster.
const FOREIGN_UID: &str = "by TAGS, the VMs of cloud-api-adaptor are another cluster's, whose sweep deletes them: give the tag \
                           caa-cluster-uid there the UID of this cluster's namespace kube-system";

/// What is wrong with settings in which `SWEEP_CLUSTER` is another cluster.
const FOREIGN_CLUSTER: &str = "by SWEEP_CLUSTER, the VMs of cloud-api-adaptor are another cluster's, whose sweep deletes them: give \
                               them another tag or, with SWEEP_EXCLUSIVE, another place, and set SWEEP_CLUSTER to the UID of this \
                               cluster's namespace kube-system";

/// The settings that say it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tagging<'a> {
    /// `TAGS`.
    pub(crate) tags: &'a str,
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
        self.uids().next().is_some() || self.declares_cluster()
    }

    /// What is wrong with them in the cluster with this UID.
    pub(crate) fn problem(self, uid: &str) -> Option<&'static str> {
        if self.uids().any(|tagged| tagged != uid) {
            return Some(FOREIGN_UID);
        }
        (self.declares_cluster() && self.sweep_cluster != uid).then_some(FOREIGN_CLUSTER)
    }

    /// The UIDs of clusters in the tags of VMs.
    fn uids(&self) -> impl Iterator<Item = &str> {
        self.pairs().filter(|(key, _)| is_uid_tag(key)).map(|(_, uid)| uid)
    }

    /// Whether the sweep of `SWEEP_CLUSTER` takes the VMs for its own.
    fn declares_cluster(self) -> bool {
        let is_declared =
            || pair(self.sweep_tag).is_some_and(|declared| self.pairs().any(|tag| tag == declared));
        !self.sweep_cluster.is_empty() && (self.sweep_exclusive || is_declared())
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
            ("team=a,cluster=a", TAG, "uid-2", Some(FOREIGN_CLUSTER)),
            ("cluster:a", TAG, "uid-2", Some(FOREIGN_CLUSTER)),
            ("cluster=a,caa-cluster-uid=uid-1", TAG, "uid-2", Some(FOREIGN_CLUSTER)),
            ("", EXCLUSIVE, "uid-1", None),
            ("", EXCLUSIVE, "uid-2", Some(FOREIGN_CLUSTER)),
            // The sweep of the other cluster does not take them for its own.
            ("cluster=b", TAG, "uid-2", None),
            ("cluster=a", TAG, "", None),
            ("cluster=a", NONE, "uid-2", None),
            ("", EXCLUSIVE, "", None),
        ] {
            let tagging = Tagging { tags, sweep_tag, sweep_exclusive, sweep_cluster };
            assert_eq!(tagging.problem("uid-1"), problem, "{tagging:?}");
            assert!(problem.is_none() || tagging.names_cluster(), "the UID of this cluster is asked for");
        }
    }
}
