//! The settings of Azure.

use crate::{
    provider::shared_keys::{DISABLE_CVM, TAGS, USE_PUBLIC_IP},
    settings::Key,
};

pub(super) const KEYS: &[Key] = &[
    Key::secret("AZURE_CLIENT_ID", "Identifier of the application (client) or the managed identity.")
        .required(),
    Key::secret("AZURE_CLIENT_SECRET", "The application's secret. Empty with workload identity."),
    Key::secret("AZURE_TENANT_ID", "Directory (tenant) of the application.").required(),
    Key::text("AZURE_SUBSCRIPTION_ID", "Subscription that pays for the pod VMs.").required(),
    Key::text("AZURE_RESOURCE_GROUP", "Resource group of the pod VMs, their disks and interfaces.")
        .required(),
    Key::text("AZURE_REGION", "Region of the pod VMs, such as eastus.").required(),
    Key::text("AZURE_SUBNET_ID", "Subnet of the pod VMs: its full resource identifier.").required(),
    Key::text("AZURE_IMAGE_ID", "Image of pod VMs: its full resource identifier.").required(),
    Key::text("AZURE_INSTANCE_SIZE", "Size of a pod VM whose Pod asks for no size.")
        .default("Standard_DC2as_v5"),
    Key::text(
        "AZURE_INSTANCE_SIZES",
        "Sizes, separated by commas. A Pod gets the smallest one that fits its request.",
    ),
    Key::text("AZURE_NSG_ID", "Network security group of the pod VMs: its full resource identifier."),
    Key::text("AZURE_AUTHORITY_HOST", "Endpoint for tokens, in clouds other than the public one."),
    Key::text("SSH_USERNAME", "User for logging in to pod VMs.").default("peerpod"),
    Key::switch("ENABLE_SECURE_BOOT", "Whether pod VMs start with secure boot.").default("false"),
    USE_PUBLIC_IP,
    Key::text("ROOT_VOLUME_SIZE", "Size of the root disk in GB; 0 means the image's size.").default("0"),
    DISABLE_CVM,
    TAGS,
];
