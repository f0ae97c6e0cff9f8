//! The examination of a project, before a VM must be deleted there.

use hyper::Method;
use serde_json::{Value, json};

use super::{Gcp, IN_PART, LISTING, answer::accepted};
use crate::provider::{
    Error, Finding, POD_VM,
    finding::{DELETE, LOOK_UP, counted, ensure_answered, ensure_rights},
};

/// What deletions need. `compute.instances.list` is tried by a list.
const NEEDED: [&str; 2] = ["compute.instances.get", "compute.instances.delete"];

impl Gcp {
    /// Gets a token, lists what deletions list, and asks Compute Engine for the rights on one VM.
    pub(super) async fn examination(&self) -> Result<Vec<Finding>, Error> {
        let origin = ensure_answered(self.api.origin().await)?;
        let token = origin.map(|origin| format!("Google gave an access token for {origin}"));
        let listed = ensure_answered(self.pod_vms().await)?;
        let sample = match &listed {
            // Any VM of the project will do.
            Ok(vms) if vms.is_empty() => {
                self.page(LISTING, IN_PART, "").await?.into_instances(&self.project).next()
            }
            Ok(vms) => vms.first().cloned(),
            Err(_) => None,
        };
        let rights = match &sample {
            Some(vm) => Finding::tried(DELETE, self.rights(&vm.path).await),
            None => Finding::untried(
                DELETE,
                "Compute Engine shows permissions for a VM only, and it shows no VM in the project",
            ),
        };
        let shown =
            |count| format!("the project {} has {} named {POD_VM}…", self.project, counted(count, "VM"));
        let listed = listed.map(|vms| shown(vms.len()));
        Ok(vec![Finding::tried("credentials", token), Finding::tried(LOOK_UP, listed), rights])
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
