//! The settings of IBM Cloud: virtual servers for VPC, and Power Virtual Servers.

use super::{
    super::Key,
    shared::{DISABLE_CVM, USE_PUBLIC_IP},
};

const API_KEY: &str = "IBMCLOUD_API_KEY";

pub(super) const VPC_KEYS: &[Key] = &[
    Key::secret(API_KEY, "API key of the user or service. Required unless a trusted profile is used."),
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

pub(super) const POWERVS_KEYS: &[Key] = &[
    Key::secret(API_KEY, "API key of the user or service.").required(),
    Key::text("POWERVS_ZONE", "Zone of the workspace, such as us-south.").required(),
    Key::text("POWERVS_SERVICE_INSTANCE_ID", "Workspace of the pod VMs: its GUID."),
    Key::text("POWERVS_NETWORK_ID", "Network of the pod VMs."),
    Key::text("POWERVS_IMAGE_ID", "Image of pod VMs."),
    Key::text("POWERVS_SSH_KEY_NAME", "Key for logging in to pod VMs."),
    Key::text("POWERVS_PROCESSOR_TYPE", "How processors are assigned: shared, capped or dedicated.")
        .default("shared"),
    Key::text("POWERVS_SYSTEM_TYPE", "Kind of machine that hosts pod VMs.").default("s922"),
    Key::text("POWERVS_MEMORY", "Memory of a pod VM in GB.").default("2"),
    Key::text("POWERVS_PROCESSORS", "Number of processors of a pod VM; fractions are allowed.")
        .default("0.5"),
    Key::text("POWERVS_BUILD_TIMEOUT", "How long the creation of a pod VM may take, as a Go duration.")
        .default("150s"),
    USE_PUBLIC_IP,
];
