//! The examination of ECS, before an instance must be deleted there.

use super::{Alibaba, api::Query};
use crate::provider::{Error, ErrorClass, Finding, POD_VM, http::Failure};

/// The names and values of an action's parameters.
type Parameters<'a> = &'a [(&'a str, &'a str)];

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
        let account = match self.0.account().await {
            Err(error) if error.class == ErrorClass::Transient => return Err(error),
            Err(error) => {
                let untried = Finding::untried("rights", "check cannot ask for rights without an account");
                return Ok(vec![Finding::tried("account", Err(error)), untried]);
            }
            Ok(account) => account,
        };
        let (region, origin) = (&self.0.place.region, self.0.origin());
        let account = format!("account {account}, region {region}, by {origin}");
        let vms = self.pod_vms().await;
        let vm = vms.as_ref().ok().and_then(|vms| vms.first()).map(|vm| vm.id.clone());
        let vm = vm.as_deref().unwrap_or("i-00000000000000000000");
        let interfaces = self.interfaces(("NetworkInterfaceName", "peerpod-nic-none")).await;
        let addresses = self.addresses(&[("EipName", "peerpod-eip-none")]).await;
        let shown = |count: usize| format!("ECS shows {count} instances named {POD_VM}…");
        let read = "the list was read";
        let mut findings = vec![
            Finding::tried("account", Ok(account)),
            Finding::tried("look up machines", vms.map(|vms| shown(vms.len()))),
            Finding::tried("look up interfaces", interfaces.map(|_| read.to_owned())),
            Finding::tried("look up addresses", addresses.map(|_| read.to_owned())),
        ];
        let deletion = [("DryRun", "true"), ("Force", "true"), ("InstanceId", vm)];
        findings.push(self.may("read a machine", "DescribeInstanceAttribute", &[("InstanceId", vm)]).await);
        findings.push(self.may("delete machines", "DeleteInstance", &deletion).await);
        for (subject, action, parameters) in CHANGES {
            findings.push(self.may(subject, action, &[&[self.region()], parameters].concat()).await);
        }
        Ok(findings)
    }

    /// Whether the cloud refuses this for want of a right.
    async fn may(&self, subject: &'static str, action: &'static str, parameters: &[(&str, &str)]) -> Finding {
        match self.0.try_call(Query { doing: "asking for a right", action, parameters }).await {
            Err(Failure { error, .. }) if error.class == ErrorClass::NotFound => {
                let why = format!("to {action} the cloud answered only that there is no such thing");
                Finding::untried(subject, why)
            }
            Err(Failure { code, .. }) if code == "DryRunOperation" => {
                Finding::tried(subject, Ok(format!("the cloud would do {action}")))
            }
            Err(Failure { error, .. }) => {
                let message = error.message.map(|text| format!("{text} ({action})"));
                Finding::tried(subject, Err(Error { message, ..error }))
            }
            Ok(_) => Finding::tried(subject, Ok(format!("the cloud did {action}"))),
        }
    }
}
