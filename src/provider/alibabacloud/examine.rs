//! The examination of ECS, before an instance must be deleted there.

use super::Alibaba;
use crate::provider::{
    Error, ErrorClass, Finding, POD_VM,
    finding::{DELETE, LOOK_UP, counted, dry_run, examine},
    http::Query,
};

/// The names and values of an action's parameters.
type Parameters<'a> = &'a [(&'a str, &'a str)];

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
        let (region, origin) = (&self.0.place.region, self.0.origin());
        let account = self.0.account().await;
        let account = account.map(|account| format!("account {account}, region {region}, by {origin}"));
        let without = (&["rights"][..], "check cannot ask for rights without an account");
        examine("account", account, without, async || Ok(self.examined_rights().await)).await
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
        let honours_dry_run = self.0.place.endpoint.is_none();
        let to_delete = if honours_dry_run { vm } else { NONE };
        let deletion = [("DryRun", "true"), ("Force", "true"), ("InstanceId", to_delete)];
        findings.push(self.may("read a machine", "DescribeInstanceAttribute", &[("InstanceId", vm)]).await);
        findings.push(self.may(DELETE, "DeleteInstance", &deletion).await);
        for (subject, action, parameters) in CHANGES {
            findings.push(self.may(subject, action, &[&[self.region()], parameters].concat()).await);
        }
        findings
    }

    /// Whether the cloud refuses this for want of a right.
    async fn may(&self, subject: &'static str, action: &'static str, parameters: &[(&str, &str)]) -> Finding {
        let answer = self.0.try_call(Query::new("asking for a right", action, parameters)).await;
        if answer.as_ref().is_err_and(|failure| failure.error.class == ErrorClass::NotFound) {
            let why = format!("to {action} the cloud answered only that there is no such thing");
            return Finding::untried(subject, why);
        }
        dry_run(subject, "the cloud", action, answer)
    }
}
