//! The examination of a project, before a VM must be deleted there.

use hyper::Method;
use serde_json::json;

use super::{
    ALL, Gcp,
    answer::{Page, Permissions, accepted},
    pod_vms,
};
use crate::provider::{
    Error, Finding, POD_VM,
    finding::{DELETE, LOOK_UP, answered, counted, ensure_rights},
};

/// What deletions need. `compute.instances.list` is tried by a list.
const NEEDED: [&str; 2] = ["compute.instances.get", "compute.instances.delete"];

impl Gcp {
    /// Gets a token, lists what deletions list, and asks Compute Engine for the rights on one VM.
    pub(super) async fn examination(&self) -> Result<Vec<Finding>, Error> {
        let origin = answered(self.api.origin().await)?;
        let token = origin.map(|origin| format!("Google gave an access token for {origin}"));
        let (doing, mut count, mut sample) = ("listing the VMs", 0, None);
        let take = |page: Page| {
            for (zone, vm) in page.into_instances() {
                count += 1;
                sample = Some((zone, vm.name));
            }
        };
        let listed = answered(self.pages(doing, &pod_vms(), ALL, take).await)?;
        if sample.is_none() && listed.is_ok() {
            // Any VM of the project will do.
            let page = self.page(doing, "", ALL, None).await?;
            sample = page.into_instances().next().map(|(zone, vm)| (zone, vm.name));
        }
        let rights = match &sample {
            Some((zone, name)) => Finding::tried(DELETE, self.rights(zone, name).await),
            None => Finding::untried(
                DELETE,
                "Compute Engine tells the rights on a VM alone, and the project shows none",
            ),
        };
        let (project, shown) = (&self.project, counted(count, "VM"));
        let listed = listed.map(|()| format!("the project {project} has {shown} named {POD_VM}…"));
        Ok(vec![Finding::tried("credentials", token), Finding::tried(LOOK_UP, listed), rights])
    }

    /// Asks whether the credentials may do on this VM what deletions do.
    async fn rights(&self, zone: &str, name: &str) -> Result<String, Error> {
        let question = json!({ "permissions": NEEDED }).to_string();
        let path = format!("{}/testIamPermissions", self.path(zone, name));
        let reply = self.call("asking for the rights on a VM", Method::POST, &path, question).await?;
        let reply = accepted(reply, None)?;
        let granted = reply.json::<Permissions>()?.permissions;
        ensure_rights(&NEEDED, |needed| granted.iter().any(|it| it == needed))?;
        Ok(format!("the credentials have {}", NEEDED.join(" and ")))
    }
}
