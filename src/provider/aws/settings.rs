//! The settings of Amazon EC2.

use crate::{
    provider::shared_keys::{DISABLE_CVM, TAGS, USE_PUBLIC_IP},
    settings::Key,
};

pub(super) const KEYS: &[Key] = &[
    Key::secret(
        "AWS_ACCESS_KEY_ID",
        "Identifier of the access key. Required, together with AWS_SECRET_ACCESS_KEY, unless a role is \
         assumed (AWS_ROLE_ARN).",
    ),
    Key::secret("AWS_SECRET_ACCESS_KEY", "Access key."),
    Key::secret("AWS_SESSION_TOKEN", "Session token of a temporary access key."),
    Key::text(
        "AWS_ROLE_ARN",
        "Role to assume with a token of the ServiceAccount, instead of an access key. EKS sets it if the \
         ServiceAccount names a role.",
    ),
    Key::text("AWS_WEB_IDENTITY_TOKEN_FILE", "File with the token for AWS_ROLE_ARN."),
    Key::text("AWS_REGION", "Region of the pod VMs. If empty, from the node's instance metadata."),
    Key::text("AWS_ENDPOINT_URL", "Endpoint of the API, if it is not Amazon's."),
    Key::text("PODVM_AMI_ID", "Image (AMI) of pod VMs.").required(),
    Key::text("PODVM_INSTANCE_TYPE", "Instance type of a pod VM whose Pod asks for no size.")
        .default("m6a.large"),
    Key::text(
        "PODVM_INSTANCE_TYPES",
        "Instance types, separated by commas. A Pod gets the smallest one that fits its request.",
    ),
    Key::text("AWS_SUBNET_ID", "Subnet of the pod VMs. If empty, the node's."),
    Key::text("AWS_SG_IDS", "Security groups of the pod VMs, separated by commas. If empty, the node's."),
    Key::text("SSH_KP_NAME", "Key pair for logging in to pod VMs. If empty, the node's."),
    Key::switch("USE_PODVM_LAUNCHTEMPLATE", "Whether pod VMs are created from a launch template.")
        .default("false"),
    Key::text("PODVM_LAUNCHTEMPLATE_NAME", "Name of the launch template.").default("kata"),
    USE_PUBLIC_IP,
    Key::text("ROOT_VOLUME_SIZE", "Size of the root volume in GiB.").default("30"),
    DISABLE_CVM,
    TAGS,
];
