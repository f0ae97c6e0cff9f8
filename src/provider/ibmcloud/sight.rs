//! Whether the credentials can see pod VMs *(no client)*. To other credentials, VPC answers as if there were none.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::answer::Instance;
use crate::provider::POD_VM;

/// How long a pod VM that the credentials have shown counts. An administrator may take rights from them at any time.
const COUNTS: Duration = Duration::from_secs(5 * 60);

/// What the credentials have shown.
pub(super) struct Sight {
    /// The resource group in which pod VMs are made. `None` for any: the settings do not name it. Rights hold for one group only.
    group: Option<String>,
    /// When they showed a pod VM last.
    last: Mutex<Option<Instant>>,
}

impl Sight {
    pub(super) fn new(group: Option<String>) -> Self {
        Self { group, last: Mutex::default() }
    }

    /// Where the operator looks for pod VMs, as a part of a sentence.
    pub(super) fn place(&self) -> &'static str {
        if self.group.is_some() { " in IBMCLOUD_RESOURCE_GROUP_ID" } else { "" }
    }

    /// Notes what VPC has shown. Returns whether that is a pod VM in the group where pod VMs are made.
    pub(super) fn note(&self, instance: &Instance) -> bool {
        let is_there = self.group.as_deref().is_none_or(|group| instance.group() == Some(group));
        let is_pod_vm = is_there && instance.name.starts_with(POD_VM);
        if is_pod_vm {
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
        is_pod_vm
    }

    /// Whether the credentials have shown a pod VM of late.
    pub(super) fn is_proven(&self) -> bool {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_some_and(|last| last.elapsed() < COUNTS)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::time::advance;

    use super::*;

    fn instance(name: &str, group: &str) -> Instance {
        let instance =
            json!({ "id": "0717_1", "name": name, "status": "running", "resource_group": { "id": group } });
        serde_json::from_value(instance).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_vm_proves_sight_for_a_while() {
        let sight = Sight::new(None);
        assert!(!sight.note(&instance("database", "a")) && !sight.is_proven());
        assert!(sight.note(&instance("podvm-web-1a2b3c4d", "a")) && sight.is_proven());
        advance(COUNTS).await;
        assert!(!sight.is_proven(), "the rights may have been taken since");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_vm_of_another_resource_group_proves_nothing() {
        let sight = Sight::new(Some("a".to_owned()));
        assert!(!sight.note(&instance("podvm-web-1a2b3c4d", "b")) && !sight.is_proven());
        let unknown = json!({ "id": "0717_1", "name": "podvm-web-1a2b3c4d", "status": "running" });
        assert!(!sight.note(&serde_json::from_value(unknown).unwrap()) && !sight.is_proven());
        assert!(sight.note(&instance("podvm-web-1a2b3c4d", "a")) && sight.is_proven());
    }
}
