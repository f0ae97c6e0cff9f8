//! The settings of Google Compute Engine.

use crate::{
    provider::shared_keys::{DISABLE_CVM, USE_PUBLIC_IP},
    settings::Key,
};

pub(super) const KEYS: &[Key] = &[
    Key::secret("GCP_CREDENTIALS", "Key of the service account: the whole JSON document.").required(),
    Key::text("GCP_PROJECT_ID", "Project of the pod VMs.").required(),
    Key::text("GCP_ZONE", "Zone of the pod VMs, such as europe-west4-a.").required(),
    Key::text("PODVM_IMAGE_NAME", "Image of pod VMs.").required(),
    Key::text("GCP_NETWORK", "Network of the pod VMs.").default("global/networks/default"),
    Key::text(
        "GCP_SUBNETWORK",
        "Subnetwork of the pod VMs. Required if the network does not create subnetworks automatically.",
    ),
    Key::text("GCP_MACHINE_TYPE", "Machine type of a pod VM whose Pod asks for no size.")
        .default("e2-medium"),
    Key::text(
        "GCP_INSTANCE_TYPES",
        "Machine types, separated by commas. A Pod gets the smallest one that fits its request.",
    ),
    Key::text("GCP_DISK_TYPE", "Type of the root disk: pd-standard, pd-balanced, pd-ssd or pd-extreme.")
        .default("pd-standard"),
    Key::text(
        "GCP_CONFIDENTIAL_TYPE",
        "Kind of confidential VM (TDX, SEV or SEV_SNP) if DISABLECVM is false; the machine type must \
         support it.",
    ),
    DISABLE_CVM,
    Key::text("ROOT_VOLUME_SIZE", "Size of the root disk in GiB.").default("10"),
    USE_PUBLIC_IP,
    Key::text("TAGS", "Resource-manager tags of pod VMs, as in a=b,c=d. They must exist in the project."),
];
