//! What cloud-api-adaptor may do. Its Pods make VMs for Pods of any namespace.

use operator_kit::Permission;

use super::{Component, Rights};
use crate::peerpodconfig::resources::SERVICE_ACCOUNT;

/// cloud-api-adaptor's rights.
pub const RIGHTS: Rights = Rights {
    name: SERVICE_ACCOUNT,
    component: Component::Adaptor,
    cluster: &[
        // The Pods that get a VM, and those of its node, which its probe lists.
        Permission::new("", &["pods"], &["get", "list"]),
        // The Secrets with which images are pulled: a Pod, or its ServiceAccount, names them.
        Permission::new("", &["secrets", "serviceaccounts"], &["get"]),
        // A PeerPod blocks its owner's deletion. Clusters with OwnerReferencesPermissionEnforcement require this right for that.
        Permission::new("", &["pods/finalizers"], &["update"]),
        Permission::new("confidentialcontainers.org", &["peerpods"], &["create", "patch", "update"]),
        // Labels of its node contain the region. Annotations of it show which program advertises the extended resource. No right to
        // patch it: the operator advertises the resource, and with that right one node could taint all others.
        Permission::new("", &["nodes"], &["get"]),
    ],
    namespaces: &[
        (
            None,
            // No right to create Secrets: with a Secret of the type `kubernetes.io/service-account-token`, one node would get the
            // operator's rights. And none to create ConfigMaps, by which one node could have the operator send credentials to its host.
            // This one is the pool of the provider byom, which adds the right to create it.
            &[Permission::new("", &["configmaps"], &["get", "watch", "update", "patch", "delete"])
                .named(&["byom-ip-pool-state"])],
        ),
        // The provider ibmcloud reads the cluster's id here if the settings do not name it.
        (Some("kube-system"), &[Permission::new("", &["configmaps"], &["get"]).named(&["cluster-info"])]),
    ],
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        install::{Options, cloud_rights},
        provider::byom,
    };

    #[test]
    fn it_writes_nothing_but_peerpods_in_the_whole_cluster() {
        let writes = |it: &&Permission| it.verbs.iter().any(|verb| !["get", "list"].contains(verb));
        let written: Vec<_> =
            RIGHTS.cluster.iter().filter(writes).flat_map(|it| it.resources.iter().copied()).collect();
        assert_eq!(written, ["pods/finalizers", "peerpods"]);
    }

    #[test]
    fn it_creates_nothing_but_peerpods() {
        let all = RIGHTS.namespaces.iter().flat_map(|(_, permissions)| *permissions).chain(RIGHTS.cluster);
        let created: Vec<_> = all.filter(|it| it.verbs.contains(&"create")).map(|it| it.resources).collect();
        assert_eq!(created, [["peerpods"]]);
        let further = cloud_rights(&byom::CLOUD, &Options::default()).unwrap();
        let role = further.iter().find(|it| it["metadata"]["name"] == "cloud-api-adaptor-byom").unwrap();
        assert_eq!(role["rules"][0]["verbs"][0], "create", "the pool");
    }
}
