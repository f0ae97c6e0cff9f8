//! The examination of ECS, before an instance must be deleted there.

use super::Alibaba;
use crate::provider::{
    Error, Finding, POD_VM,
    finding::{DELETE, LOOK_UP, counted},
    http::{Parameters, examine_account, probe},
};

/// The identifier of no instance.
const NONE: &str = "i-00000000000000000000";

/// The changes of a deletion beside the instance's own: the purpose, the action, and parameters that name nothing.
const CHANGES: [(&str, &str, Parameters<'_>); 4] = [
    ("delete interfaces", "DeleteNetworkInterface", &[("NetworkInterfaceId", "eni-00000000000000000000")]),
    (
        "name addresses",
        "ModifyEipAddressAttribute",
        &[("AllocationId", "eip-00000000000000000000"), ("Name", "peerpod-eip-none")],
    ),
    ("free addresses", "UnassociateEipAddress", &[("AllocationId", "eip-00000000000000000000")]),
    ("release addresses", "ReleaseEipAddress", &[("AllocationId", "eip-00000000000000000000")]),
];

impl Alibaba {
    /// Reads what deletions read, and asks for changes to what does not exist.
    pub(super) async fn examination(&self) -> Result<Vec<Finding>, Error> {
        let region = &self.0.api.place.region;
        examine_account(&self.0, region, async || Ok(self.examined_rights().await)).await
    }

    async fn examined_rights(&self) -> Vec<Finding> {
        let vms = self.pod_vms().await;
        let vm = vms.as_ref().ok().and_then(|vms| vms.first()).map(|vm| vm.id.clone());
        let vm = vm.as_deref().unwrap_or(NONE);
        let interfaces = self.interfaces(("NetworkInterfaceName", "peerpod-nic-none")).await;
        let addresses = self.addresses(&[("EipName", "peerpod-eip-none")]).await;
        let shown = |count| format!("ECS shows {} named {POD_VM}…", counted(count, "instance"));
        let read = "the list was read";
        let mut findings = vec![
            Finding::tried(LOOK_UP, vms.map(|vms| shown(vms.len()))),
            Finding::tried("look up interfaces", interfaces.map(|_| read.to_owned())),
            Finding::tried("look up addresses", addresses.map(|_| read.to_owned())),
        ];
        // Another cloud with the same API may ignore `DryRun`, and delete what it is asked about.
        let honours_dry_run = self.0.api.place.endpoint.is_none();
        let to_delete = if honours_dry_run { vm } else { NONE };
        let deletion = [("DryRun", "true"), ("Force", "true"), ("InstanceId", to_delete)];
        let itself = [("InstanceId", vm)];
        findings.push(probe(&self.0, "read a VM", "DescribeInstanceAttribute", &itself).await);
        findings.push(probe(&self.0, DELETE, "DeleteInstance", &deletion).await);
        for (subject, action, parameters) in CHANGES {
            let parameters = [&[self.region()], parameters].concat();
            findings.push(probe(&self.0, subject, action, &parameters).await);
        }
        findings
    }
}
