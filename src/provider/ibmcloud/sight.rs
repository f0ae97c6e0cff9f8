//! Whether the credentials can see pod VMs *(no client)*. To other credentials, VPC answers as if there were none.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::answer::Instance;
use crate::provider::{
    Error, POD_VM,
    single_flight::{Latest, SingleFlight},
};

/// How long a pod VM that the credentials have shown counts. An administrator may take rights from them at any time.
const COUNTS: Duration = Duration::from_secs(5 * 60);

/// How long a list without a pod VM counts. A tenant may write thousands of PeerPods that name no VM, and each of them asks.
const NONE_COUNTS: Duration = Duration::from_secs(30);

/// How long a list that failed counts, for the same reason.
const FAILURE_COUNTS: Duration = Duration::from_secs(2);

/// What the credentials have shown.
pub(super) struct Sight {
    /// The resource group in which pod VMs are made. `None` for any: the settings do not name it. Rights hold for one group only.
    group: Option<String>,
    /// When they showed a pod VM last.
    last: Mutex<Option<Instant>>,
    /// Whether the last list had a pod VM.
    look: SingleFlight<bool>,
}

impl Sight {
    pub(super) fn new(group: Option<String>) -> Self {
        Self { group, last: Mutex::default(), look: SingleFlight::default() }
    }

    /// Where the operator looks for pod VMs, as a part of a sentence.
    pub(super) fn place(&self) -> &'static str {
        if self.group.is_some() { " in IBMCLOUD_RESOURCE_GROUP_ID" } else { "" }
    }

    /// Notes an instance that VPC has shown by itself, not in a list: the right to list is not the right to read.
    pub(super) fn note(&self, instance: &Instance) {
        if self.counts(instance) {
            *self.last.lock() = Some(Instant::now());
        }
    }

    /// Whether this is a pod VM in the group where pod VMs are made.
    pub(super) fn counts(&self, instance: &Instance) -> bool {
        let is_there = self.group.as_deref().is_none_or(|group| instance.group() == Some(group));
        is_there && instance.name.starts_with(POD_VM)
    }

    /// Whether the credentials can see a pod VM. If that is not known of late, `look` says whether VPC shows one.
    pub(super) async fn sees(
        &self,
        look: impl Future<Output = Result<bool, Error>> + Send,
    ) -> Result<bool, Error> {
        if self.is_proven() {
            return Ok(true);
        }
        let known = |last: Option<&Latest<bool>>| {
            // Another caller may have looked meanwhile.
            if self.is_proven() {
                return Some(Ok(true));
            }
            let Latest { ended, result, .. } = last?;
            let counts = if result.is_ok() { NONE_COUNTS } else { FAILURE_COUNTS };
            (ended.elapsed() < counts && *result != Ok(true)).then(|| result.clone())
        };
        self.look.get(known, look).await
    }

    /// Whether the credentials have shown a pod VM of late.
    fn is_proven(&self) -> bool {
        let last = *self.last.lock();
        last.is_some_and(|last| last.elapsed() < COUNTS)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use futures::future::join_all;
    use serde_json::json;
    use tokio::time::{advance, sleep};

    use super::*;
    use crate::provider::ErrorClass;

    fn instance(name: &str, group: &str) -> Instance {
        let instance =
            json!({ "id": "0717_1", "name": name, "status": "running", "resource_group": { "id": group } });
        serde_json::from_value(instance).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_vm_proves_sight_for_a_while() {
        let sight = Sight::new(None);
        sight.note(&instance("database", "a"));
        assert!(!sight.is_proven());
        sight.note(&instance("podvm-web-1a2b3c4d", "a"));
        assert!(sight.is_proven());
        advance(COUNTS).await;
        assert!(!sight.is_proven(), "the rights may have been taken since");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_vm_of_another_resource_group_proves_nothing() {
        let sight = Sight::new(Some("a".to_owned()));
        sight.note(&instance("podvm-web-1a2b3c4d", "b"));
        let unknown = json!({ "id": "0717_1", "name": "podvm-web-1a2b3c4d", "status": "running" });
        sight.note(&serde_json::from_value(unknown).unwrap());
        assert!(!sight.is_proven());
        sight.note(&instance("podvm-web-1a2b3c4d", "a"));
        assert!(sight.is_proven());
    }

    /// A look that takes a second.
    async fn sees_none(looks: &AtomicU32) -> Result<bool, Error> {
        looks.fetch_add(1, Relaxed);
        sleep(Duration::from_secs(1)).await;
        Ok(false)
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_without_pod_vms_serves_all_callers_for_a_while() {
        let (sight, looks) = (Sight::new(None), AtomicU32::new(0));
        let all = join_all((0..20).map(|_| sight.sees(sees_none(&looks)))).await;
        assert!(all.into_iter().all(|sees| sees == Ok(false)) && looks.load(Relaxed) == 1);
        advance(NONE_COUNTS / 2).await;
        assert_eq!((sight.sees(sees_none(&looks)).await, looks.load(Relaxed)), (Ok(false), 1));
        advance(NONE_COUNTS).await;
        assert_eq!((sight.sees(sees_none(&looks)).await, looks.load(Relaxed)), (Ok(false), 2));
        sight.note(&instance("podvm-web-1a2b3c4d", "a"));
        assert_eq!((sight.sees(sees_none(&looks)).await, looks.load(Relaxed)), (Ok(true), 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_serves_all_callers_for_a_moment() {
        let sight = Sight::new(None);
        let failed = Error::new(ErrorClass::Transient, "the list was cut off");
        assert_eq!(sight.sees(async { Err(failed.clone()) }).await, Err(failed.clone()));
        assert_eq!(sight.sees(async { Ok(true) }).await, Err(failed));
        advance(FAILURE_COUNTS).await;
        assert_eq!(sight.sees(async { Ok(true) }).await, Ok(true));
    }
}
