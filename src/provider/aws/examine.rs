//! What can be found out of EC2 before an instance is to be terminated there.

use futures::future::join_all;

use super::{
    Aws, Instances,
    api::{Done, Failure, Service},
};
use crate::provider::{
    Error, Finding, POD_VM,
    http::Pace::{Read, Write},
};

/// What the operator does in EC2, beside looking VMs up: what it is for, the action, its parameter, and one that names nothing.
const NEEDED: [(&str, &str, &str, &str); 7] = [
    ("delete machines", "TerminateInstances", "InstanceId.1", "i-00000000000000000"),
    ("look up tags", "DescribeTags", "MaxResults", "5"),
    ("look up addresses", "DescribeAddresses", "Filter.1.Name", "allocation-id"),
    ("look up interfaces", "DescribeNetworkInterfaces", "Filter.1.Name", "network-interface-id"),
    ("disassociate addresses", "DisassociateAddress", "AssociationId", "eipassoc-00000000000000000"),
    ("release addresses", "ReleaseAddress", "AllocationId", "eipalloc-00000000000000000"),
    ("delete interfaces", "DeleteNetworkInterface", "NetworkInterfaceId", "eni-00000000000000000"),
];

impl Aws {
    /// Reads what deletions read, and asks EC2 whether it would do the rest (`DryRun`).
    pub(super) async fn examination(&self) -> Result<Vec<Finding>, Error> {
        let region = self.0.region().await?.to_owned();
        let account = match self.0.account().await {
            Err(error) if error.class == crate::provider::ErrorClass::Transient => return Err(error),
            account => account
                .map(|account| format!("account {account}, region {region}, by {}", self.0.source.as_str())),
        };
        let known = account.is_ok();
        let mut findings = vec![Finding::tried("account", account)];
        if !known {
            findings.push(Finding::untried("rights", "check cannot ask for rights without an account"));
            return Ok(findings);
        }
        let (machines, listed) = self.machines().await;
        findings.push(Finding::tried("look up machines", listed));
        let rights = NEEDED.map(|(subject, action, parameter, nothing)| {
            let value =
                machines.as_deref().filter(|_| action == "TerminateInstances").unwrap_or(nothing).to_owned();
            async move { Finding::tried(subject, self.would(action, parameter, &value).await) }
        });
        findings.extend(join_all(rights).await);
        Ok(findings)
    }

    /// One pod VM, and how many are on the first page.
    async fn machines(&self) -> (Option<String>, Result<String, Error>) {
        let pod_vms = format!("{POD_VM}*");
        let parameters =
            [("Filter.1.Name", "tag:Name"), ("Filter.1.Value.1", &*pod_vms), ("MaxResults", "100")];
        let doing = "listing the instances";
        match self.0.call::<Instances>(Service::Ec2, doing, Read, "DescribeInstances", &parameters).await {
            Err(failure) => (None, Err(failure.into())),
            Ok(page) => {
                let more = page.next_token.as_ref().is_some_and(|token| !token.is_empty());
                let all: Vec<_> = page.all().map(|instance| instance.id).collect();
                let (count, plural) = (all.len(), if all.len() == 1 { "" } else { "s" });
                let text = format!(
                    "EC2 shows {count}{} instance{plural} named {POD_VM}…",
                    if more { " or more" } else { "" }
                );
                (all.into_iter().next(), Ok(text))
            }
        }
    }

    /// Whether EC2 would do this.
    async fn would(&self, action: &str, parameter: &str, value: &str) -> Result<String, Error> {
        let parameters = [(parameter, value), ("DryRun", "true")];
        match self.0.call::<Done>(Service::Ec2, "asking for a right", Write, action, &parameters).await {
            Err(Failure { code, .. }) if code == "DryRunOperation" || code.ends_with(".NotFound") => {
                Ok(format!("EC2 would do {action}"))
            }
            Err(failure) => {
                let error = Error::from(failure);
                Err(Error { message: error.message.map(|text| format!("{text} ({action})")), ..error })
            }
            Ok(Done {}) => Ok(format!("EC2 did {action}")),
        }
    }
}
