//! What can be found out of a region before a VM is to be deleted there.

use super::{ACTIONS, IbmCloud, Instance};
use crate::provider::{
    Error, ErrorClass, Finding, POD_VM,
    ibm_iam::{DELETE, LOOK_UP},
};

impl IbmCloud {
    /// Gets a token, and lists what deletions may list.
    pub(super) async fn examination(&self) -> Result<Vec<Finding>, Error> {
        self.iam.examine(async || self.examined_instances().await).await
    }

    async fn examined_instances(&self) -> Result<[Finding; 2], Error> {
        let (mut all, mut pod_vms) = (0, 0);
        let count = |instances: Vec<Instance>| {
            all += instances.len();
            pod_vms += instances.iter().filter(|instance| instance.name.starts_with(POD_VM)).count();
            false
        };
        let look_up = match self.pages("listing the instances", count).await {
            Err(error) if error.class == ErrorClass::Transient => return Err(error),
            Err(error) => Finding::tried(LOOK_UP, Err(error)),
            Ok(()) if pod_vms > 0 => {
                Finding::tried(LOOK_UP, Ok(format!("VPC shows {pod_vms} instances named {POD_VM}…")))
            }
            Ok(()) => {
                let text = format!(
                    "VPC shows {all} instances, and none named {POD_VM}…: it hides what the credentials may not see, so they may \
                     lack {} or {}",
                    ACTIONS[0], ACTIONS[1]
                );
                Finding::untried(LOOK_UP, text)
            }
        };
        let why = format!("VPC tells only at a deletion whether the credentials have {}", ACTIONS[2]);
        Ok([look_up, Finding::untried(DELETE, why)])
    }
}
