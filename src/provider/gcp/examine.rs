//! The examination of a project, before a VM must be deleted there.

use hyper::Method;
use serde_json::{Value, json};

use super::{Gcp, IN_PART, LISTING, answer::accepted};
use crate::provider::{
    Error, Finding, POD_VM,
    finding::{DELETE, LOOK_UP, counted, ensure_answered, ensure_rights},
    http::examine_token,
};

/// What deletions need. `compute.instances.list` is tried by a list.
const NEEDED: [&str; 2] = ["compute.instances.get", "compute.instances.delete"];

impl Gcp {
    /// Gets a token, lists what deletions list, and asks Compute Engine for the rights on one VM.
    pub(super) async fn examination(&self) -> Result<Vec<Finding>, Error> {
        examine_token(&self.api, "Google", async || {
            let vms = ensure_answered(self.pod_vms().await)?;
            let sample = match &vms {
                // Any VM of the project will do.
                Ok(vms) if vms.is_empty() => {
                    let page = self.page(LISTING, IN_PART, "").await?;
                    Ok(page.into_instances(&self.project).next())
                }
                Ok(vms) => Ok(vms.first().cloned()),
                Err(_) => Err("and the list of VMs failed"),
            };
            let rights = match sample.and_then(|vm| vm.ok_or("and it shows no VM in the project")) {
                Ok(vm) => Finding::tried(DELETE, self.rights(&vm.path).await),
                Err(why) => {
                    Finding::untried(DELETE, format!("Compute Engine shows permissions for a VM only, {why}"))
                }
            };
            let shown = |vms: Vec<_>| {
                format!("the project {} has {} named {POD_VM}…", self.project, counted(vms.len(), "VM"))
            };
            Ok(vec![Finding::tried(LOOK_UP, vms.map(shown)), rights])
        })
        .await
    }

    /// Asks whether the credentials may do on the VM at this path what deletions do.
    async fn rights(&self, path: &str) -> Result<String, Error> {
        let path = format!("{path}/testIamPermissions");
        let call = self.request("asking for the rights on a VM", Method::POST, &path)?;
        let call = call.json(&json!({ "permissions": NEEDED }));
        let answer: Value = accepted(self.api.send(call).await?, None)?.json()?;
        let granted = answer["permissions"].as_array().map(Vec::as_slice).unwrap_or_default();
        ensure_rights(&NEEDED, |needed| granted.iter().any(|it| it == needed))?;
        Ok(format!("the credentials have {}", NEEDED.join(" and ")))
    }
}
