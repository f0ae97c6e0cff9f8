//! The settings of Amazon EC2.

use super::{
    super::Key,
    shared::{DISABLE_CVM, TAGS, USE_PUBLIC_IP},
};

pub(super) const KEYS: &[Key] = &[
    Key::secret(
        "AWS_ACCESS_KEY_ID",
        "Identifier of the access key. Required, together with AWS_SECRET_ACCESS_KEY, where no role is assumed \
         (AWS_ROLE_ARN).",
    ),
    Key::secret("AWS_SECRET_ACCESS_KEY", "The access key itself."),
    Key::secret("AWS_SESSION_TOKEN", "Token that goes with a temporary access key."),
    Key::text(
        "AWS_ROLE_ARN",
        "Role to assume with a token of the ServiceAccount, in the place of an access key. EKS sets it by itself where the \
         ServiceAccount names a role.",
    ),
    Key::text("AWS_WEB_IDENTITY_TOKEN_FILE", "File with the token that AWS_ROLE_ARN is assumed with."),
    Key::text("AWS_REGION", "Region of the pod VMs. Empty asks the node's instance metadata."),
    Key::text("AWS_ENDPOINT_URL", "Endpoint of the API, where it is not Amazon's own."),
    Key::text("PODVM_AMI_ID", "Machine image that pod VMs start from.").required(),
    Key::text("PODVM_INSTANCE_TYPE", "Instance type of a pod VM that asks for no size.").default("m6a.large"),
    Key::text(
        "PODVM_INSTANCE_TYPES",
        "Instance types, separated by commas, of which the smallest that fits a Pod's request is taken.",
    ),
    Key::text("AWS_SUBNET_ID", "Subnet of the pod VMs. Empty takes the node's."),
    Key::text("AWS_SG_IDS", "Security groups of the pod VMs, separated by commas. Empty takes the node's."),
    Key::text("SSH_KP_NAME", "Key pair for logging in to pod VMs. Empty takes the node's."),
    Key::switch("USE_PODVM_LAUNCHTEMPLATE", "Whether pod VMs are made from a launch template.")
        .default("false"),
    Key::text("PODVM_LAUNCHTEMPLATE_NAME", "Name of the launch template.").default("kata"),
    USE_PUBLIC_IP,
    Key::text("ROOT_VOLUME_SIZE", "Size of the root volume in GiB.").default("30"),
    DISABLE_CVM,
    TAGS,
];
