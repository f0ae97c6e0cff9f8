//! Observes one PeerPod *(client required)*. It only reads, and only what the decision needs.

use std::{sync::Arc, time::Instant};

use futures::future::join;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Api, Client, ResourceExt,
    runtime::reflector::{ObjectRef, Store},
};
use operator_kit::{
    Message,
    api_call::{self, ApiError},
};

use super::{
    decide::{Facts, InSandbox, Owner, Sibling, VmState, is_superseded, wait_for_pod},
    grace_periods::GracePeriods,
    index::{Claimants, Index, MOST_PODS, Newer, Siblings, key},
    object::{created, has_finalizer, has_unread_finalizers, is_abandoned, owner},
    parking::Turn,
    pod::{PodState, PodView, state_of},
    relations::{Claim, claim, is_namesake, is_sibling},
};
use crate::{
    api::v1alpha1::PeerPod,
    provider::{self, Cloud, Clouds, Error, ErrorClass, IdProblem, InstanceId, NAME_LIMIT, Provider},
    sweep::{PeerPodFinding, PeerPodFindings},
};

/// The sources of the facts.
pub(super) struct Observer {
    pub(super) client: Client,
    pub(super) clouds: Clouds,
    pub(super) index: Arc<Index>,
    pub(super) store: Store<PeerPod>,
    pub(super) grace_periods: GracePeriods,
    /// What the sweep found out.
    pub(super) findings: PeerPodFindings,
}

impl Observer {
    /// Everything that the decision on `peerpod` depends on. `None`: it is parked, as its cloud has no free slot. Fails only when
    /// the API server fails.
    pub(super) async fn observe(
        &self,
        peerpod: &PeerPod,
        provider: &Result<Arc<dyn Provider>, Error>,
        turn: &Turn<'_>,
    ) -> Result<Option<Facts>, ApiError> {
        let pod = owner(peerpod);
        let deleted = peerpod.metadata.deletion_timestamp.as_ref().map(|time| time.0);
        let instance = InstanceId::parse(peerpod.cloud_provider(), peerpod.instance_id());
        let siblings = self.index.siblings(peerpod);
        let finding = self.findings.of(peerpod.metadata.uid.as_deref());
        let lost = match finding {
            Some(PeerPodFinding::Lost(state)) => Some(state),
            Some(PeerPodFinding::NoVm) | None => None,
        };
        let mut facts = Facts {
            deleted,
            finalizer: has_finalizer(peerpod),
            unread_finalizers: has_unread_finalizers(peerpod),
            abandoned: is_abandoned(peerpod),
            recorded: siblings.recorded,
            pod: pod.map(|pod| pod.name.clone()),
            name_limit: Cloud::named(peerpod.cloud_provider()).map_or(NAME_LIMIT, |cloud| cloud.name_limit),
            owner: Owner::Gone,
            in_sandbox: InSandbox::Unknown,
            instance,
            has_younger: siblings.has_younger,
            siblings: Vec::new(),
            claimed_by: None,
            vm: VmState::NotAsked,
            lost,
            developer_mode: self.clouds.developer_mode(peerpod.cloud_provider()),
            deletion_accepted: false,
        };
        let has_slot = || provider.is_err() || turn.enter();
        if facts.unread_finalizers || deleted.is_some() && (!facts.finalizer || facts.abandoned) {
            return Ok(Some(facts));
        }
        if !facts.finalizer {
            if facts.has_younger && facts.instance.is_ok() {
                if !has_slot() {
                    return Ok(None);
                }
                self.observe_released(peerpod, siblings, provider, &mut facts).await?;
            }
            return Ok(Some(facts));
        }
        if let Some(pod) = pod {
            if deleted.is_none() && siblings.newest.is_empty() {
                return Ok(Some(facts));
            }
            let state = self.pod_state(peerpod, pod).await?;
            facts.owner = state.owner;
            facts.in_sandbox = self.in_sandbox(peerpod, &state);
            if deleted.is_none() || wait_for_pod(&facts).is_some() {
                if !siblings.newest.is_empty() && !has_slot() {
                    return Ok(None);
                }
                self.ask(peerpod, siblings, provider, &mut facts).await;
                if deleted.is_none() || wait_for_pod(&facts).is_some() {
                    return Ok(Some(facts));
                }
            }
        }
        if deleted.is_some() {
            if facts.instance == Err(IdProblem::Empty) && finding == Some(PeerPodFinding::NoVm) {
                facts.vm = VmState::Absent;
            } else if facts.vm == VmState::NotAsked {
                if facts.instance.is_ok() && !has_slot() {
                    return Ok(None);
                }
                facts.vm = vm_state_of(peerpod, facts.recorded, provider).await;
            }
            if facts.instance.is_ok() {
                facts.claimed_by = self.claimant(peerpod).await?;
            }
        }
        Ok(Some(facts))
    }

    /// Everything that the decision on a PeerPod without the finalizer depends on. If its VM is absent, that is little.
    async fn observe_released(
        &self,
        peerpod: &PeerPod,
        siblings: Siblings,
        provider: &Result<Arc<dyn Provider>, Error>,
        facts: &mut Facts,
    ) -> Result<(), ApiError> {
        facts.vm = vm_state_of(peerpod, facts.recorded, provider).await;
        if let (VmState::Present(_), Some(pod)) = (&facts.vm, owner(peerpod)) {
            let state = self.pod_state(peerpod, pod).await?;
            facts.owner = state.owner;
            facts.in_sandbox = self.in_sandbox(peerpod, &state);
            self.ask(peerpod, siblings, provider, facts).await;
            facts.claimed_by = self.claimant(peerpod).await?;
        }
        Ok(())
    }

    fn in_sandbox(&self, peerpod: &PeerPod, state: &PodState) -> InSandbox {
        match state.in_sandbox {
            _ if self.index.is_doubted(peerpod) => InSandbox::Doubted,
            Some(time) => InSandbox::By(time),
            None => InSandbox::Unknown,
        }
    }

    /// Asks the cloud for the VMs of the PeerPod and of its newer siblings, the newest first, until a sibling supersedes it.
    async fn ask(
        &self,
        peerpod: &PeerPod,
        siblings: Siblings,
        provider: &Result<Arc<dyn Provider>, Error>,
        facts: &mut Facts,
    ) {
        let mut newest = siblings.newest.into_iter();
        let Some(first) = newest.next() else { return };
        let own = async {
            match &facts.vm {
                VmState::NotAsked => vm_state_of(peerpod, facts.recorded, provider).await,
                known => known.clone(),
            }
        };
        let (own, first) = join(own, self.sibling(peerpod, &first, provider)).await;
        facts.vm = own;
        facts.siblings.push(first);
        for sibling in newest {
            if is_superseded(facts) {
                return;
            }
            facts.siblings.push(self.sibling(peerpod, &sibling, provider).await);
        }
        facts.siblings.extend(siblings.next.map(|recorded| Sibling { recorded, vm: VmState::NotAsked }));
    }

    async fn sibling(
        &self,
        peerpod: &PeerPod,
        sibling: &Newer,
        provider: &Result<Arc<dyn Provider>, Error>,
    ) -> Sibling {
        let known =
            self.store.get(&sibling.key).filter(|other| !sibling.contested && is_sibling(other, peerpod));
        let vm = match known {
            Some(other) => vm_state_of(&other, sibling.recorded, provider).await,
            None => VmState::NotAsked,
        };
        Sibling { recorded: sibling.recorded, vm }
    }

    async fn pod_state(&self, peerpod: &PeerPod, pod: &OwnerReference) -> Result<PodState, ApiError> {
        let namespace = peerpod.namespace().unwrap_or_default();
        let api: Api<PodView> = Api::namespaced(self.client.clone(), &namespace);
        let found = api_call::get_opt(&api, &pod.name).await?;
        let key = key(peerpod);
        let known_for = |grace| self.grace_periods.known_for(&key, &pod.uid, grace, Instant::now());
        let state = state_of(found, &pod.uid, known_for);
        // No later event clears the entry of a PeerPod that was removed meanwhile.
        if !matches!(state.owner, Owner::Terminating { .. }) || !self.index.contains(&key) {
            self.grace_periods.forget(&key);
        }
        Ok(state)
    }

    /// Another PeerPod, in any namespace, that names the same VM and needs it: one that is not being deleted, or one of another
    /// Pod that may still run.
    async fn claimant(&self, peerpod: &PeerPod) -> Result<Option<Message>, ApiError> {
        let Claimants { living, going } = self.index.claimants(peerpod, MOST_PODS + 1);
        if let Some(claimant) = living.as_ref().or(going.get(MOST_PODS)) {
            return Ok(Some(named_to(peerpod, claimant)));
        }
        let Ok(id) = InstanceId::parse(peerpod.cloud_provider(), peerpod.instance_id()) else {
            return Ok(None);
        };
        for key in &going {
            let other = self.store.get(key).filter(|other| is_namesake(other, peerpod, &id));
            let Some(other) = other else { continue };
            let needed = match claim(&other, peerpod) {
                Claim::Stands => true,
                Claim::WhileRuns(pod) => self.pod_state(&other, pod).await?.owner.may_run().is_some(),
                Claim::Void => false,
            };
            if needed {
                return Ok(Some(named_to(peerpod, key)));
            }
        }
        Ok(None)
    }
}

/// The name of the PeerPod `other` in the status of `reader`. Readers of that status must not learn names of another namespace.
fn named_to(reader: &PeerPod, other: &ObjectRef<PeerPod>) -> Message {
    let full = format!("the PeerPod {}/{}", other.namespace.as_deref().unwrap_or_default(), other.name);
    if other.namespace == reader.metadata.namespace {
        Message::public(full)
    } else {
        Message::new("a PeerPod of another namespace", full)
    }
}

/// What the cloud answers about a PeerPod's VM.
pub(super) async fn vm_state_of(
    peerpod: &PeerPod,
    recorded: Timestamp,
    provider: &Result<Arc<dyn Provider>, Error>,
) -> VmState {
    let Ok(id) = InstanceId::parse(peerpod.cloud_provider(), peerpod.instance_id()) else {
        return VmState::NotAsked;
    };
    let described = match provider {
        Ok(provider) => {
            let pod = owner(peerpod).map(|pod| pod.name.clone());
            let deleted = peerpod.metadata.deletion_timestamp.as_ref().map(|time| time.0);
            let claim = provider::Claim { pod, recorded, created: created(peerpod), deleted };
            provider.describe(&id, &claim).await
        }
        Err(unavailable) => Err(unavailable.clone()),
    };
    match described {
        Ok(vm) => VmState::Present(vm),
        Err(error) if error.class == ErrorClass::NotFound => VmState::Absent,
        Err(error) => VmState::Unanswered(error),
    }
}

#[cfg(test)]
pub(super) mod tests {
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

        async fn examine(&self) -> Result<Vec<Finding>, Error> {
            Ok(Vec::new())
        }
    }

    /// Failing clouds, each with the class of its error: once from its calls, once from opening it.
    pub(in crate::peerpod) fn failing() -> impl Iterator<Item = (ErrorClass, Result<Arc<dyn Provider>, Error>)>
    {
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
            assert_eq!(vm_state_of(&recorded, Timestamp::default(), &provider).await, expected);
            for unreadable in ["", "17", "web/1"].map(|id| peerpod(&json!({}), id)) {
                let state = vm_state_of(&unreadable, Timestamp::default(), &provider).await;
                assert_eq!(state, VmState::NotAsked);
            }
        }
    }

    #[test]
    fn a_peerpod_of_another_namespace_is_named_in_the_log_alone() {
        let here = peerpod(&json!({ "name": "web", "namespace": "shop" }), "");
        let [near, far] = [("db", "shop"), ("payroll", "bank")]
            .map(|(name, namespace)| ObjectRef::new(name).within(namespace));
        assert_eq!(named_to(&here, &near), Message::public("the PeerPod shop/db"));
        let message = named_to(&here, &far);
        assert_eq!(message, Message::new("a PeerPod of another namespace", "the PeerPod bank/payroll"));
    }
}
