//! The settings of IBM Cloud: virtual servers for VPC.

use crate::{provider::shared_keys::DISABLE_CVM, settings::Key};

pub(super) const KEYS: &[Key] = &[
    Key::secret(
        "IBMCLOUD_API_KEY",
        "API key of the user or service. Required unless a trusted profile is used.",
    ),
    Key::secret(
        "IBMCLOUD_IAM_PROFILE_ID",
        "Trusted profile of the node or the ServiceAccount, instead of a key.",
    ),
    Key::text("IBMCLOUD_PODVM_IMAGE_ID", "Images of pod VMs, separated by commas.").required(),
    Key::text(
        "IBMCLOUD_PODVM_INSTANCE_PROFILE_NAME",
        "Profile of a pod VM whose Pod asks for no size. Required if there is no list of profiles.",
    ),
    Key::text(
        "IBMCLOUD_PODVM_INSTANCE_PROFILE_LIST",
        "Profiles, separated by commas. A Pod gets the smallest one that fits its request.",
    ),
    Key::text("IBMCLOUD_ZONE", "Zone of the pod VMs. If empty, the node's."),
    Key::text(
        "IBMCLOUD_CLUSTER_ID",
        "Identifier of this cluster, which tags its pod VMs. If empty, from the ConfigMap \
         kube-system/cluster-info.",
    ),
    Key::text(
        "IBMCLOUD_VPC_ENDPOINT",
        "Endpoint of the VPC API, which ends in /v1. If empty, that of the node's region.",
    ),
    Key::text("IBMCLOUD_RESOURCE_GROUP_ID", "Resource group of the pod VMs. If empty, the node's."),
    Key::text("IBMCLOUD_VPC_ID", "Virtual private cloud of the pod VMs. If empty, the node's."),
    Key::text("IBMCLOUD_VPC_SUBNET_ID", "Subnet of the pod VMs. If empty, the node's."),
    Key::text("IBMCLOUD_SSH_KEY_ID", "Key for logging in to pod VMs."),
    Key::text(
        "IBMCLOUD_SECURITY_GROUP_IDS",
        "Additional security groups of the pod VMs, separated by commas.",
    ),
    Key::text(
        "IBMCLOUD_DEDICATED_HOST_IDS",
        "Dedicated hosts for pod VMs, separated by commas: one for each zone.",
    ),
    Key::text(
        "IBMCLOUD_DEDICATED_HOST_GROUP_IDS",
        "Groups of dedicated hosts for pod VMs, separated by commas: one for each zone.",
    ),
    Key::text("IBMCLOUD_IAM_ENDPOINT", "Endpoint for tokens.")
        .default("https://iam.cloud.ibm.com/identity/token"),
    DISABLE_CVM.default("true"),
    Key::text("TAGS", "Additional tags of pod VMs, separated by commas."),
];
