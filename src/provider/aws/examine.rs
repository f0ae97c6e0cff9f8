//! The examination of EC2, before an instance must be terminated there.

use futures::future::join_all;

use super::Aws;
use crate::provider::{
    Error, Finding, POD_VM,
    finding::{DELETE, LOOK_UP, counted},
    http::{Parameters, examine_account, probe},
};

impl Aws {
    /// Reads what deletions read, and asks EC2 whether it would do the rest (`DryRun`).
    pub(super) async fn examination(&self) -> Result<Vec<Finding>, Error> {
        let region = self.0.api.region().await?;
        examine_account(&self.0, region, async || Ok(self.examined_rights().await)).await
    }

    async fn examined_rights(&self) -> Vec<Finding> {
        let mut ids = Vec::new();
        let listed = self.instances(&mut |page| ids.extend(page.into_iter().map(|vm| vm.id))).await;
        let shown = counted(ids.len(), "instance");
        let listed = listed.map(|()| format!("EC2 shows {shown} named {POD_VM}…"));
        // Another cloud with the same API may ignore `DryRun`, and terminate what it is asked about.
        let id = ids.first().filter(|_| self.0.api.place.endpoint.is_none());
        let id = id.map_or("i-00000000000000000", String::as_str);
        // The purpose, the action, and parameters that otherwise name nothing.
        let needed: [(_, _, Parameters<'_>); 6] = [
            (DELETE, "TerminateInstances", &[("InstanceId.1", id)]),
            ("look up tags", "DescribeTags", &[("MaxResults", "5")]),
            ("look up addresses", "DescribeAddresses", &[]),
            ("look up interfaces", "DescribeNetworkInterfaces", &[("MaxResults", "5")]),
            ("release addresses", "ReleaseAddress", &[("AllocationId", "eipalloc-00000000000000000")]),
            (
                "delete interfaces",
                "DeleteNetworkInterface",
                &[("NetworkInterfaceId", "eni-00000000000000000")],
            ),
        ];
        let rights = needed.map(|(subject, action, parameters)| self.would(subject, action, parameters));
        let listed = Finding::tried(LOOK_UP, listed);
        [listed].into_iter().chain(join_all(rights).await).collect()
    }

    /// Whether EC2 would do this.
    async fn would(&self, subject: &'static str, action: &'static str, on: Parameters<'_>) -> Finding {
        let parameters = [on, &[("DryRun", "true")]].concat();
        probe(&self.0, subject, action, &parameters).await
    }
}
