//! What is known about one PeerPod *(client required)*. Reads only, and only what the decision needs.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::{join, join_all};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::Pod,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time},
};
use kube::{Api, Client, Resource, ResourceExt, runtime::reflector::Store};
use serde::Deserialize;

use super::{
    decide::{Facts, Machine, Owner, Sibling, hold},
    endings::Endings,
    index::{Index, key},
    object::{created, has_finalizer, is_abandoned, owner},
    progress::{Pass, Step},
    relations::{Claim, are_of_one_pod, claim, is_namesake, is_sibling},
};
use crate::{
    api::{metadata, v1alpha1::PeerPod},
    provider::{Clouds, Error, ErrorClass, InstanceId, Provider},
    runtime::{
        Message,
        api_call::{self, ApiError},
    },
};

/// A Pod has one PeerPod, or a few after restarts of cloud-api-adaptor. Beyond this their machines are not asked for:
/// each look at one would cost as many calls.
const MOST_SIBLINGS: usize = 32;

/// A machine has one PeerPod. Where more others than these name it, each counts as a claim unseen.
const MOST_NAMESAKES: usize = 15;

/// Where facts come from.
pub(super) struct Observer {
    pub(super) client: Client,
    pub(super) clouds: Clouds,
    pub(super) index: Arc<Index>,
    pub(super) store: Store<PeerPod>,
    pub(super) endings: Endings,
}

/// The condition by which a kubelet says since when a Pod's sandbox is ready.
const SANDBOX_READY: &str = "PodReadyToStartContainers";

/// As much of a Pod as is read.
#[derive(Clone, Debug, Resource, Deserialize)]
#[resource(inherit = Pod)]
struct PodView {
    #[serde(with = "metadata::Stored")]
    metadata: ObjectMeta,
    status: Option<StatusView>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct StatusView {
    phase: String,
    conditions: Vec<ConditionView>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConditionView {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    #[serde(default, deserialize_with = "metadata::time")]
    last_transition_time: Option<Time>,
}

/// What became of a Pod.
struct PodState {
    owner: Owner,
    sandbox_ready: Option<Timestamp>,
}

impl Observer {
    /// Everything that the decision on `peerpod` depends on. Fails only where the API server does.
    pub(super) async fn observe(
        &self,
        peerpod: &PeerPod,
        provider: &Result<Arc<dyn Provider>, Error>,
        pass: &Pass,
    ) -> Result<Facts, ApiError> {
        let pod = owner(peerpod);
        let deleted = peerpod.metadata.deletion_timestamp.as_ref().map(|time| time.0);
        let instance = InstanceId::parse(peerpod.cloud_provider(), peerpod.instance_id());
        let mut facts = Facts {
            deleted,
            finalizer: has_finalizer(peerpod),
            abandoned: is_abandoned(peerpod),
            recorded: self.recorded(peerpod),
            pod: pod.map(|pod| pod.name.clone()),
            owner: Owner::Gone,
            sandbox_ready: None,
            instance,
            siblings: Vec::new(),
            claimed_by: None,
            machine: Machine::NotAsked,
            developer_mode: self.clouds.developer_mode(),
            deletion_accepted: false,
        };
        if !facts.finalizer || (deleted.is_some() && facts.abandoned) {
            return Ok(facts);
        }
        if let Some(pod) = pod {
            let siblings = self.siblings(peerpod, &pod.uid);
            if deleted.is_some() || !siblings.is_empty() {
                pass.at(Step::Owner);
                let state = self.pod_state(peerpod, pod).await?;
                (facts.owner, facts.sandbox_ready) = (state.owner, state.sandbox_ready);
            }
            if siblings.is_empty() && (deleted.is_none() || hold(&facts).is_some()) {
                return Ok(facts);
            }
            pass.at(Step::Describe);
            let crowded = siblings.len() > MOST_SIBLINGS;
            let asked = join_all(siblings.iter().map(|sibling| async {
                let unclear = crowded || self.is_named_for_another_pod(sibling);
                let machine = if unclear { Machine::NotAsked } else { machine_of(sibling, provider).await };
                Sibling { recorded: self.recorded(sibling), machine }
            }));
            (facts.machine, facts.siblings) = join(machine_of(peerpod, provider), asked).await;
        } else if deleted.is_some() {
            pass.at(Step::Describe);
            facts.machine = machine_of(peerpod, provider).await;
        }
        if deleted.is_some() && facts.instance.is_ok() {
            pass.at(Step::Claims);
            facts.claimed_by = self.claimant(peerpod).await?;
        }
        Ok(facts)
    }

    async fn pod_state(&self, peerpod: &PeerPod, pod: &OwnerReference) -> Result<PodState, ApiError> {
        let namespace = peerpod.namespace().unwrap_or_default();
        let api: Api<PodView> = Api::namespaced(self.client.clone(), &namespace);
        let found = api_call::bounded(api.get_opt(&pod.name)).await?;
        let key = key(peerpod);
        let known_for = |grace| self.endings.known_for(&key, &pod.uid, grace, Instant::now());
        let state = state_of(found, &pod.uid, known_for);
        // One that went meanwhile nobody else would forget.
        if !matches!(state.owner, Owner::Ending { .. }) || !self.index.contains(&key) {
            self.endings.forget(&key);
        }
        Ok(state)
    }

    /// The other PeerPods of the same Pod that count.
    fn siblings(&self, peerpod: &PeerPod, pod_uid: &str) -> Vec<Arc<PeerPod>> {
        let mut siblings: Vec<_> =
            self.index.owned_by(pod_uid).iter().filter_map(|key| self.store.get(key)).collect();
        siblings.retain(|other| is_sibling(other, peerpod));
        siblings
    }

    /// The other PeerPods, in any namespace, that name the same machine.
    fn namesakes(&self, peerpod: &PeerPod) -> Vec<Arc<PeerPod>> {
        let cloud = peerpod.cloud_provider();
        let Ok(id) = InstanceId::parse(cloud, peerpod.instance_id()) else { return Vec::new() };
        let mut namesakes: Vec<_> =
            self.index.naming(cloud, &id).iter().filter_map(|key| self.store.get(key)).collect();
        namesakes.retain(|other| is_namesake(other, peerpod, &id));
        namesakes
    }

    /// When a PeerPod's machine was first recorded for its Pod: whoever names it once more makes it no younger.
    fn recorded(&self, peerpod: &PeerPod) -> Timestamp {
        let namesakes = self.namesakes(peerpod);
        let of_its_pod = namesakes.iter().filter(|other| are_of_one_pod(other, peerpod));
        of_its_pod.map(|other| created(other)).fold(created(peerpod), Timestamp::min)
    }

    /// Whether a PeerPod of another Pod names the same machine. Two Pods of one name have machines that look alike, and
    /// whoever may write a PeerPod could have one of them take the other's place.
    fn is_named_for_another_pod(&self, peerpod: &PeerPod) -> bool {
        self.namesakes(peerpod).iter().any(|other| !are_of_one_pod(other, peerpod))
    }

    /// Another PeerPod, in any namespace, that names the same machine and needs it: one that stays, or one of another
    /// Pod that may still run.
    async fn claimant(&self, peerpod: &PeerPod) -> Result<Option<Message>, ApiError> {
        let others = self.namesakes(peerpod);
        let crowded = others.len() > MOST_NAMESAKES;
        for other in &others {
            let needed = match claim(other, peerpod) {
                Claim::Stands => true,
                _ if crowded => true,
                Claim::WhileRuns(pod) => self.pod_state(other, pod).await?.owner.may_run().is_some(),
                Claim::Void => false,
            };
            if needed {
                return Ok(Some(named_to(peerpod, other)));
            }
        }
        Ok(None)
    }
}

/// What the PeerPod `other` is called in the status of `reader`, whose readers may know nothing of another namespace.
fn named_to(reader: &PeerPod, other: &PeerPod) -> Message {
    let full = format!("the PeerPod {}/{}", other.namespace().unwrap_or_default(), other.name_any());
    if other.namespace() == reader.namespace() {
        Message::public(full)
    } else {
        Message::new("a PeerPod of another namespace", full)
    }
}

/// How long Pods have to end where nobody says otherwise. An API server always says it of one that is being deleted.
const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// What became of the Pod of this uid, by the Pod that has its name. `known_for`: for how long it is known to end with this
/// grace period, if it does.
fn state_of(found: Option<PodView>, uid: &str, known_for: impl FnOnce(Duration) -> Duration) -> PodState {
    let Some(PodView { metadata, status }) = found.filter(|it| it.metadata.uid.as_deref() == Some(uid))
    else {
        return PodState { owner: Owner::Gone, sandbox_ready: None };
    };
    let StatusView { phase, conditions } = status.unwrap_or_default();
    let owner = match (phase.as_str(), metadata.deletion_timestamp) {
        ("Succeeded" | "Failed", _) => Owner::Finished,
        (_, Some(_)) => {
            let seconds = metadata.deletion_grace_period_seconds.and_then(|it| u64::try_from(it).ok());
            let grace = seconds.map_or(DEFAULT_GRACE, Duration::from_secs);
            Owner::Ending { grace, known_for: known_for(grace) }
        }
        (_, None) => Owner::Running,
    };
    let ready = conditions.into_iter().find(|it| it.type_ == SANDBOX_READY && it.status == "True");
    let sandbox_ready = ready.and_then(|it| it.last_transition_time).map(|Time(since)| since);
    PodState { owner, sandbox_ready }
}

/// What the cloud says about a PeerPod's machine.
pub(super) async fn machine_of(peerpod: &PeerPod, provider: &Result<Arc<dyn Provider>, Error>) -> Machine {
    let Ok(id) = InstanceId::parse(peerpod.cloud_provider(), peerpod.instance_id()) else {
        return Machine::NotAsked;
    };
    let described = match provider {
        Ok(provider) => provider.describe(&id).await,
        Err(unavailable) => Err(unavailable.clone()),
    };
    match described {
        Ok(vm) => Machine::Present(vm),
        Err(error) if error.class == ErrorClass::NotFound => Machine::Absent,
        Err(error) => Machine::Unanswered(error),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use async_trait::async_trait;
    use serde_json::{Value, json};

    use super::{super::decide::Wait, *};
    use crate::provider::{Finding, OwnVm, Vm};

    /// A cloud that answers every call as it was told.
    struct Answers {
        delete: Result<(), Error>,
        describe: Result<Vm, Error>,
    }

    /// Such a cloud.
    pub(in crate::peerpod) fn answers(
        delete: Result<(), Error>,
        describe: Result<Vm, Error>,
    ) -> Arc<dyn Provider> {
        Arc::new(Answers { delete, describe })
    }

    #[async_trait]
    impl Provider for Answers {
        async fn describe(&self, _: &InstanceId) -> Result<Vm, Error> {
            self.describe.clone()
        }

        async fn delete(&self, _: &OwnVm) -> Result<(), Error> {
            self.delete.clone()
        }

        async fn examine(&self) -> Result<Vec<Finding>, Error> {
            Ok(Vec::new())
        }
    }

    /// Clouds that fail, by what their calls or the attempt to reach them end with.
    pub(in crate::peerpod) fn failing() -> impl Iterator<Item = (ErrorClass, Result<Arc<dyn Provider>, Error>)>
    {
        ErrorClass::ALL.into_iter().flat_map(|class| {
            let error = Error::new(class, "as told");
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
    async fn a_machine_is_absent_only_if_its_cloud_says_so() {
        let recorded = peerpod(&json!({}), "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11");
        for (class, provider) in failing() {
            let expected = match class {
                ErrorClass::NotFound => Machine::Absent,
                class => Machine::Unanswered(Error::new(class, "as told")),
            };
            assert_eq!(machine_of(&recorded, &provider).await, expected);
            for unreadable in ["", "17", "web/1"] {
                assert_eq!(machine_of(&peerpod(&json!({}), unreadable), &provider).await, Machine::NotAsked);
            }
        }
    }

    #[test]
    fn a_peerpod_of_another_namespace_is_named_in_the_log_alone() {
        let here = peerpod(&json!({ "name": "web", "namespace": "shop" }), "");
        let near = peerpod(&json!({ "name": "db", "namespace": "shop" }), "");
        let far = peerpod(&json!({ "name": "payroll", "namespace": "bank" }), "");
        assert_eq!(named_to(&here, &near), Message::public("the PeerPod shop/db"));
        let message = named_to(&here, &far);
        assert_eq!(message, Message::new("a PeerPod of another namespace", "the PeerPod bank/payroll"));
    }

    #[test]
    fn a_pod_may_run_until_it_says_that_it_is_through_or_is_another_one() {
        let ending = Owner::Ending { grace: Duration::from_secs(7), known_for: Duration::from_secs(14) };
        let state = |phase: Option<&str>, deleted: bool, uid: &str| {
            // When that was, or will be, by the API server's clock, does not matter.
            let until = Timestamp::from_second(1000).unwrap();
            let metadata = json!({
                "uid": "own", "deletionTimestamp": deleted.then_some(until),
                "deletionGracePeriodSeconds": deleted.then_some(7),
            });
            let status = phase.map(|phase| json!({ "phase": phase }));
            let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}, "status": status });
            state_of(Some(serde_json::from_value(pod).unwrap()), uid, |grace| 2 * grace).owner
        };
        for phase in [None, Some(""), Some("Pending"), Some("Running"), Some("Unknown")] {
            assert_eq!(state(phase, false, "own"), Owner::Running, "{phase:?}");
            assert_eq!(state(phase, true, "own"), ending, "{phase:?}");
            assert_eq!(state(phase, false, "another"), Owner::Gone, "{phase:?}");
        }
        let left = Duration::from_secs(7 + 30 - 14);
        assert_eq!(state(None, true, "own").may_run(), Some(Wait::PodEnds(left)), "long past by the clock");
        for phase in ["Succeeded", "Failed"] {
            assert_eq!([false, true].map(|deleted| state(Some(phase), deleted, "own")), [Owner::Finished; 2]);
        }
        assert_eq!(state_of(None, "own", |_| Duration::ZERO).owner, Owner::Gone);
    }

    #[test]
    fn a_sandbox_is_ready_since_its_own_pods_kubelet_says_so() {
        let since = Timestamp::from_second(1000).unwrap();
        let ready = |type_: &str, status: &str, uid: &str| {
            let pod = json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": { "uid": "own" }, "spec": {},
                "status": { "phase": "Running", "conditions": [
                    { "type": "PodScheduled", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z" },
                    { "type": type_, "status": status, "lastTransitionTime": since },
                ] },
            });
            state_of(Some(serde_json::from_value(pod).unwrap()), uid, |_| Duration::ZERO).sandbox_ready
        };
        assert_eq!(ready("PodReadyToStartContainers", "True", "own"), Some(since));
        assert_eq!(ready("PodReadyToStartContainers", "False", "own"), None);
        assert_eq!(ready("PodReadyToStartContainers", "True", "another"), None);
        assert_eq!(ready("Ready", "True", "own"), None);
    }
}
