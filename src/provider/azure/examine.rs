//! The examination of a resource group, before a VM must be deleted there.

use hyper::Method;

use super::{
    Azure, VM,
    answer::{ArmResource, Page, Permission, accepted},
};
use crate::provider::{
    Error, Finding, POD_VM,
    finding::{DELETE, LOOK_UP, counted, ensure_answered, ensure_rights, examine},
};

/// The version of the API for permissions.
const AUTHORIZATION: &str = "2022-04-01";

/// What the question takes.
const ASK: &str = "Microsoft.Authorization/permissions/read";

/// What deletions need, and the list of the sweep.
const NEEDED: [&str; 9] = [
    "Microsoft.Compute/virtualMachines/read",
    "Microsoft.Compute/virtualMachines/delete",
    "Microsoft.Compute/disks/read",
    "Microsoft.Compute/disks/delete",
    "Microsoft.Network/networkInterfaces/read",
    "Microsoft.Network/networkInterfaces/delete",
    "Microsoft.Network/publicIPAddresses/read",
    "Microsoft.Network/publicIPAddresses/delete",
    "Microsoft.Resources/subscriptions/resourceGroups/resources/read",
];

impl Azure {
    /// Gets a token, lists the group as the sweep does, and asks for the rights in the group.
    pub(super) async fn examination(&self) -> Result<Vec<Finding>, Error> {
        let origin = self.api.origin().await;
        let token = origin.map(|origin| format!("Azure gave an access token for {origin}"));
        let without = (&[LOOK_UP, DELETE][..], "check has no access token");
        examine("credentials", token, without, async || {
            Ok(vec![
                Finding::tried(LOOK_UP, ensure_answered(self.count_vms().await)?),
                match self.roles().await {
                    Ok(roles) => Finding::tried(DELETE, judged(&roles)),
                    Err(unknown) => {
                        Finding::untried(DELETE, format!("check asks for the rights by {ASK}: {unknown}"))
                    }
                },
                Finding::untried("locks", "Azure tells only at a deletion that a lock forbids it"),
            ])
        })
        .await
    }

    async fn count_vms(&self) -> Result<String, Error> {
        let mut count = 0;
        let take = |resources: Vec<ArmResource>| {
            count += resources.iter().filter(|it| it.kind.eq_ignore_ascii_case(VM)).count();
        };
        self.resources(take).await?;
        Ok(format!("the resource group has {} named {POD_VM}…", counted(count, "VM")))
    }

    /// Asks what the credentials may do in the group of the settings.
    async fn roles(&self) -> Result<Vec<Permission>, Error> {
        let id = format!("{}/providers/microsoft.authorization/permissions", self.group()?);
        let reply = self.call("asking for the rights", Method::GET, &id, AUTHORIZATION).await?;
        Ok(accepted(reply)?.json::<Page<Permission>>()?.value)
    }
}

/// Whether these roles together allow what is needed.
fn judged(roles: &[Permission]) -> Result<String, Error> {
    ensure_rights(&NEEDED, |needed| roles.iter().any(|role| role.allows(needed)))?;
    Ok(format!("the credentials have the {} rights that deletions and the sweep need", NEEDED.len()))
}
