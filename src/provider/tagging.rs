//! Of which cluster cloud-api-adaptor's VMs are, by the tags in its settings. Pure *(no client)*.
//!
//! The sweep of a cluster takes a VM with that cluster's tag for its own. Copied to another cluster, such settings give that tag to
//! the other cluster's VMs. The first cluster has no PeerPod of these, so its sweep deletes them, although Pods run on them: its
//! operator cannot tell. So the other cluster must not use such settings.

use super::cluster_proof::is_uid_tag;

/// What is wrong with settings that tag VMs as those of another cluster.
const FOREIGN: &str = "by TAGS, the VMs of cloud-api-adaptor are another cluster's, whose sweep deletes them: give the tag \
                       caa-cluster-uid there the UID of this cluster's namespace kube-system";

/// The settings that say it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tagging<'a> {
    /// `TAGS`.
    pub(crate) tags: &'a str,
    /// `SWEEP_TAG`.
    pub(crate) sweep_tag: &'a str,
    /// `SWEEP_CLUSTER`.
    pub(crate) sweep_cluster: &'a str,
}

impl<'a> Tagging<'a> {
    /// The UIDs of the clusters whose sweep takes VMs with these tags for its own.
    pub(crate) fn clusters(self) -> Vec<&'a str> {
        let Self { tags, sweep_tag, sweep_cluster } = self;
        let pairs = || tags.split(',').filter_map(pair);
        let uids: Vec<_> = pairs().filter(|(key, _)| is_uid_tag(key)).map(|(_, uid)| uid).collect();
        let is_declared = || pair(sweep_tag).is_some_and(|declared| pairs().any(|tag| tag == declared));
        // The UID of a cluster outweighs a declared tag.
        if uids.is_empty() && !sweep_cluster.is_empty() && is_declared() { vec![sweep_cluster] } else { uids }
    }

    /// What is wrong with them in the cluster with this UID.
    pub(crate) fn problem(self, uid: &str) -> Option<&'static str> {
        self.clusters().iter().any(|cluster| *cluster != uid).then_some(FOREIGN)
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
    fn tags_of_another_cluster_are_refused() {
        for (tags, sweep_tag, sweep_cluster, refused) in [
            ("", "", "", false),
            ("team=a", "", "", false),
            ("caa-cluster-uid=uid-1", "", "", false),
            ("team=a, CAA-Cluster-Uid = uid-1", "", "", false),
            ("caa-cluster-uid=uid-2", "", "", true),
            ("team=a,CAA-CLUSTER-UID=uid-2", "", "", true),
            ("caa-cluster-uid:uid-2", "", "", true),
            ("caa-cluster-uid=", "", "", true),
            ("caa-cluster-uid=uid-1,caa-cluster-uid=uid-2", "", "", true),
            ("cluster=a", "cluster=a", "uid-1", false),
            ("team=a,cluster=a", "cluster=a", "uid-2", true),
            ("cluster:a", "cluster=a", "uid-2", true),
            // The sweep of the other cluster does not take them for its own.
            ("cluster=b", "cluster=a", "uid-2", false),
            ("cluster=a", "cluster=a", "", false),
            ("cluster=a", "", "uid-2", false),
            ("cluster=a,caa-cluster-uid=uid-1", "cluster=a", "uid-2", false),
        ] {
            let tagging = Tagging { tags, sweep_tag, sweep_cluster };
            assert_eq!(tagging.problem("uid-1").is_some(), refused, "{tagging:?}");
            assert!(!refused || !tagging.clusters().is_empty(), "the UID of this cluster is asked for");
        }
    }
}
