//! The settings of IBM Power Virtual Servers.

use crate::{provider::shared_keys::USE_PUBLIC_IP, settings::Key};

pub(super) const KEYS: &[Key] = &[
    Key::secret("IBMCLOUD_API_KEY", "API key of the user or service.").required(),
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
