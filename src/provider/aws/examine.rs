//! The examination of EC2, before an instance must be terminated there.

use futures::future::join_all;

use super::{Aws, Instances, api::Done};
use crate::provider::{
    Error, ErrorClass, Finding, POD_VM,
    http::{
        Failure,
        Pace::{Read, Write},
    },
};

/// The names and values of an action's parameters.
type Parameters<'a> = &'a [(&'a str, &'a str)];

const TERMINATE: &str = "TerminateInstances";

/// The operator's actions in EC2, beside looking VMs up: the purpose, the action, and parameters that name nothing.
const NEEDED: [(&str, &str, Parameters<'_>); 6] = [
    ("delete machines", TERMINATE, &[("InstanceId.1", "i-00000000000000000")]),
    ("look up tags", "DescribeTags", &[("MaxResults", "5")]),
    ("look up addresses", "DescribeAddresses", &[]),
    ("look up interfaces", "DescribeNetworkInterfaces", &[("MaxResults", "5")]),
    ("release addresses", "ReleaseAddress", &[("AllocationId", "eipalloc-00000000000000000")]),
    ("delete interfaces", "DeleteNetworkInterface", &[("NetworkInterfaceId", "eni-00000000000000000")]),
];

impl Aws {
    /// Reads what deletions read, and asks EC2 whether it would do the rest (`DryRun`).
    pub(super) async fn examination(&self) -> Result<Vec<Finding>, Error> {
        let region = self.0.region().await?.to_owned();
        let account = match self.0.account().await {
            Err(error) if error.class == ErrorClass::Transient => return Err(error),
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
        let rights = NEEDED.map(|(subject, action, nothing)| {
            let machine =
                machines.as_deref().filter(|_| action == TERMINATE).map(|id| [("InstanceId.1", id)]);
            let parameters = machine.as_ref().map_or(nothing, |machine| &machine[..]).to_owned();
            async move { self.would(subject, action, parameters).await }
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
        match self.0.call::<Instances>(doing, Read, "DescribeInstances", &parameters).await {
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
    async fn would(&self, subject: &'static str, action: &str, mut parameters: Vec<(&str, &str)>) -> Finding {
        parameters.push(("DryRun", "true"));
        let answer = self.0.call::<Done>("asking for a right", Write, action, &parameters).await;
        Finding::tried(
            subject,
            match answer {
                Err(Failure { code, .. }) if code == "DryRunOperation" => {
                    Ok(format!("EC2 would do {action}"))
                }
                Err(Failure { code, .. }) if code.ends_with(".NotFound") => {
                    let why = format!(
                        "EC2 looked for what {action} is for, and did not say whether it may be done"
                    );
                    return Finding::untried(subject, why);
                }
                Err(failure) => {
                    let error = Error::from(failure);
                    Err(Error { message: error.message.map(|text| format!("{text} ({action})")), ..error })
                }
                Ok(Done {}) => Ok(format!("EC2 did {action}")),
            },
        )
    }
}
