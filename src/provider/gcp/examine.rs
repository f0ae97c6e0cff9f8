//! The examination of a project, before a VM must be deleted there.

use hyper::Method;
use serde_json::json;

use super::{
    ALL, Gcp,
    answer::{Page, Permissions, accepted},
    pod_vms,
};
use crate::provider::{Error, ErrorClass, Finding, POD_VM, finding::ensure_rights};

/// What deletions need. `compute.instances.list` is tried by a list.
const NEEDED: [&str; 2] = ["compute.instances.get", "compute.instances.delete"];

impl Gcp {
    /// Gets a token, lists what deletions list, and asks Compute Engine for the rights on one VM.
    pub(super) async fn examination(&self) -> Result<Vec<Finding>, Error> {
        let credentials = match self.credentials.token().await {
            Err(error) if error.class == ErrorClass::Transient => return Err(error),
            token => token.map(|_| format!("Google gave an access token for {}", self.credentials.origin())),
        };
        let credentials = Finding::tried("credentials", credentials);
        let (doing, mut count, mut sample) = ("listing the VMs", 0, None);
        let take = |page: Page| {
            for (zone, vm) in page.into_instances() {
                count += 1;
                sample = Some((zone, vm.name));
            }
        };
        let listed = match self.pages(doing, &pod_vms(), ALL, take).await {
            Err(error) if error.class == ErrorClass::Transient => return Err(error),
            listed => {
                listed.map(|()| format!("the project {} has {count} VMs named {POD_VM}…", self.project))
            }
        };
        if sample.is_none() && listed.is_ok() {
            // Any VM of the project will do.
            let page = self.page(doing, "", ALL, None).await?;
            sample = page.into_instances().next().map(|(zone, vm)| (zone, vm.name));
        }
        let rights = match &sample {
            Some((zone, name)) => Finding::tried("delete machines", self.rights(zone, name).await),
            None => Finding::untried(
                "delete machines",
                "Compute Engine tells the rights on a VM alone, and the project shows none",
            ),
        };
        Ok(vec![credentials, Finding::tried("look up machines", listed), rights])
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
