use async_trait::async_trait;
use serde_json::{Value, json};

use super::*;
use crate::provider::{Accepted, Finding, OwnVm, Pages, Vm};

/// A cloud that gives each call a fixed answer.
struct Answers {
    delete: Result<Accepted, Error>,
    describe: Result<Vm, Error>,
}

/// Such a cloud.
pub(in crate::peerpod) fn answers(
    delete: Result<Accepted, Error>,
    describe: Result<Vm, Error>,
) -> Arc<dyn Provider> {
    Arc::new(Answers { delete, describe })
}

#[async_trait]
impl Provider for Answers {
    async fn describe(&self, _: &InstanceId, _: &provider::Claim) -> Result<Vm, Error> {
        self.describe.clone()
    }

    async fn delete(&self, _: &OwnVm) -> Result<Accepted, Error> {
        self.delete.clone()
    }

    async fn list(&self, _: Pages<'_>) -> Result<(), Error> {
        Ok(())
    }

    async fn identity(&self) -> Result<Option<String>, Error> {
        Ok(None)
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        Ok(Vec::new())
    }
}

/// Failing clouds, each with the class of its error: once from its calls, once from opening it.
pub(in crate::peerpod) fn failing() -> impl Iterator<Item = (ErrorClass, Result<Arc<dyn Provider>, Error>)> {
    ErrorClass::ALL.into_iter().flat_map(|class| {
        let error = Error::new(class, "fixed answer");
        [(class, Ok(answers(Err(error.clone()), Err(error.clone())))), (class, Err(error))]
    })
}

fn peerpod(metadata: &Value, instance: &str) -> PeerPod {
    serde_json::from_value(json!({
        "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPod", "metadata": metadata,
        "spec": { "cloudProvider": "libvirt", "instanceID": instance },
    }))
    .unwrap()
}

#[tokio::test]
async fn a_vm_is_absent_only_if_its_cloud_says_so() {
    let recorded = peerpod(&json!({}), "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11");
    for (class, provider) in failing() {
        let expected = match class {
            ErrorClass::NotFound => VmState::Absent,
            class => VmState::Unanswered(Error::new(class, "fixed answer")),
        };
        assert_eq!(vm_state_of(&recorded, Timestamp::default(), false, &provider).await, expected);
        for unreadable in ["", "17", "web/1"].map(|id| peerpod(&json!({}), id)) {
            let state = vm_state_of(&unreadable, Timestamp::default(), false, &provider).await;
            assert_eq!(state, VmState::NotAsked);
        }
    }
}
