//! The settings of vSphere.

use crate::settings::Key;

pub(super) const KEYS: &[Key] = &[
    Key::secret("GOVC_USERNAME", "User of vCenter.").required(),
    Key::secret("GOVC_PASSWORD", "The user's password.").required(),
    Key::secret("GOVC_THUMBPRINT", "Thumbprint of vCenter's certificate, if no known authority signed it."),
    Key::text("GOVC_URL", "Address of vCenter, such as https://vcenter.example.com/sdk.").required(),
    Key::text("GOVC_DATACENTER", "Data centre of the pod VMs.").required(),
    Key::text("GOVC_TEMPLATE", "Template that pod VMs are cloned from.").default("podvm-template"),
    Key::switch("GOVC_DRS", "Whether the cluster decides which host runs a pod VM.").default("false"),
    Key::text("GOVC_VCLUSTER", "Cluster of hosts that run pod VMs."),
    Key::text("GOVC_HOST", "Host that runs pod VMs."),
    Key::text("GOVC_DATASTORE", "Datastore of the pod VMs."),
    Key::text("GOVC_FOLDER", "Folder of the pod VMs, below the data centre's folder for VMs."),
];
