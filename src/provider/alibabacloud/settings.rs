//! The settings of Alibaba Cloud ECS.

use crate::{
    provider::shared_keys::{DISABLE_CVM, TAGS, USE_PUBLIC_IP},
    settings::Key,
};

pub(super) const KEYS: &[Key] = &[
    Key::secret(
        "ALIBABACLOUD_ACCESS_KEY_ID",
        "Identifier of the access key. Required, together with ALIBABACLOUD_ACCESS_KEY_SECRET, unless a \
         role is assumed (ALIBABA_CLOUD_ROLE_ARN).",
    ),
    Key::secret("ALIBABACLOUD_ACCESS_KEY_SECRET", "Access key."),
    Key::secret("ALIBABACLOUD_SECURITY_TOKEN", "Session token of a temporary access key."),
    Key::text(
        "ALIBABA_CLOUD_ROLE_ARN",
        "Role to assume with a token of the ServiceAccount (RRSA), instead of an access key.",
    ),
    Key::text(
        "ALIBABA_CLOUD_OIDC_PROVIDER_ARN",
        "The cluster's identity provider, for ALIBABA_CLOUD_ROLE_ARN.",
    ),
    Key::text("ALIBABA_CLOUD_OIDC_TOKEN_FILE", "File with the token for ALIBABA_CLOUD_ROLE_ARN."),
    Key::text("VSWITCH_ID", "Switch that pod VMs are attached to.").required(),
    Key::text("IMAGEID", "Image of pod VMs."),
    Key::text("SECURITY_GROUP_IDS", "Security groups of the pod VMs, separated by commas."),
    Key::text("REGION", "Region of the pod VMs.").default("cn-beijing"),
    Key::text("INSTANCE_TYPE", "Instance type of a pod VM; it overrules PODVM_INSTANCE_TYPE."),
    Key::text("PODVM_INSTANCE_TYPE", "Instance type of a pod VM.").default("ecs.g8i.xlarge"),
    Key::text("KEYNAME", "Key pair for logging in to pod VMs."),
    Key::text("SYSTEM_DISK_SIZE", "Size of the system disk in GiB.").default("40"),
    USE_PUBLIC_IP,
    DISABLE_CVM,
    TAGS,
];
