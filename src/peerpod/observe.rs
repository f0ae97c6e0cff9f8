//! What is known about one PeerPod *(client required)*. Reads only, and only what the decision needs.

use std::{sync::Arc, time::Instant};

use futures::future::join;
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
    decide::{Facts, InSandbox, Machine, Owner, Sibling, hold, is_superseded},
    endings::Endings,
    index::{Claimants, Index, MOST_PODS, Newer, Siblings, key},
    object::{has_finalizer, is_abandoned, owner},
    pod::{PodState, PodView, state_of},
    progress::{Pass, Step},
    relations::{Claim, claim, is_namesake, is_sibling},
};
use crate::{
    api::v1alpha1::PeerPod,
    provider::{Cloud, Clouds, Error, ErrorClass, InstanceId, NAME_LIMIT, Provider},
};

/// Where facts come from.
pub(super) struct Observer {
    pub(super) client: Client,
    pub(super) clouds: Clouds,
    pub(super) index: Arc<Index>,
    pub(super) store: Store<PeerPod>,
    pub(super) endings: Endings,
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
        let siblings = self.index.siblings(peerpod);
        let mut facts = Facts {
            deleted,
            finalizer: has_finalizer(peerpod),
            abandoned: is_abandoned(peerpod),
            recorded: siblings.recorded,
            pod: pod.map(|pod| pod.name.clone()),
            name_limit: Cloud::named(peerpod.cloud_provider()).map_or(NAME_LIMIT, |cloud| cloud.name_limit),
            owner: Owner::Gone,
            in_sandbox: InSandbox::Unknown,
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
            if deleted.is_none() && siblings.newest.is_empty() {
                return Ok(facts);
            }
            pass.at(Step::Owner);
            let state = self.pod_state(peerpod, pod).await?;
            facts.owner = state.owner;
            facts.in_sandbox = match state.in_sandbox {
                _ if self.index.is_doubted(peerpod) => InSandbox::Doubted,
                Some(time) => InSandbox::By(time),
                None => InSandbox::Unknown,
            };
            if deleted.is_none() || hold(&facts).is_some() {
                pass.at(Step::Describe);
                self.ask(peerpod, siblings, provider, &mut facts).await;
                if deleted.is_none() || hold(&facts).is_some() {
                    return Ok(facts);
                }
            }
        }
        if deleted.is_some() {
            pass.at(Step::Describe);
            if facts.machine == Machine::NotAsked {
                facts.machine = machine_of(peerpod, provider).await;
            }
            if facts.instance.is_ok() {
                pass.at(Step::Claims);
                facts.claimed_by = self.claimant(peerpod).await?;
            }
        }
        Ok(facts)
    }

    /// Asks for the machines of the PeerPod and of its newer siblings, the newest first, until one is found that superseded it.
    async fn ask(
        &self,
        peerpod: &PeerPod,
        siblings: Siblings,
        provider: &Result<Arc<dyn Provider>, Error>,
        facts: &mut Facts,
    ) {
        let mut newest = siblings.newest.into_iter();
        let Some(first) = newest.next() else { return };
        let (own, first) = join(machine_of(peerpod, provider), self.sibling(peerpod, &first, provider)).await;
        facts.machine = own;
        facts.siblings.push(first);
        for sibling in newest {
            if is_superseded(facts) {
                return;
            }
            facts.siblings.push(self.sibling(peerpod, &sibling, provider).await);
        }
        facts.siblings.extend(siblings.next.map(|recorded| Sibling { recorded, machine: Machine::NotAsked }));
    }

    async fn sibling(
        &self,
        peerpod: &PeerPod,
        sibling: &Newer,
        provider: &Result<Arc<dyn Provider>, Error>,
    ) -> Sibling {
        let known =
            self.store.get(&sibling.key).filter(|other| !sibling.contested && is_sibling(other, peerpod));
        let machine = match known {
            Some(other) => machine_of(&other, provider).await,
            None => Machine::NotAsked,
        };
        Sibling { recorded: sibling.recorded, machine }
    }

    async fn pod_state(&self, peerpod: &PeerPod, pod: &OwnerReference) -> Result<PodState, ApiError> {
        let namespace = peerpod.namespace().unwrap_or_default();
        let api: Api<PodView> = Api::namespaced(self.client.clone(), &namespace);
        let found = api_call::get_opt(&api, &pod.name).await?;
        let key = key(peerpod);
        let known_for = |grace| self.endings.known_for(&key, &pod.uid, grace, Instant::now());
        let state = state_of(found, &pod.uid, known_for);
        // One that went meanwhile nobody else would forget.
        if !matches!(state.owner, Owner::Ending { .. }) || !self.index.contains(&key) {
            self.endings.forget(&key);
        }
        Ok(state)
    }

    /// Another PeerPod, in any namespace, that names the same machine and needs it: one that stays, or one of another
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

/// What the PeerPod `other` is called in the status of `reader`, whose readers may know nothing of another namespace.
fn named_to(reader: &PeerPod, other: &ObjectRef<PeerPod>) -> Message {
    let full = format!("the PeerPod {}/{}", other.namespace.as_deref().unwrap_or_default(), other.name);
    if other.namespace == reader.metadata.namespace {
        Message::public(full)
    } else {
        Message::new("a PeerPod of another namespace", full)
    }
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

    use super::*;
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
        let [near, far] = [("db", "shop"), ("payroll", "bank")]
            .map(|(name, namespace)| ObjectRef::new(name).within(namespace));
        assert_eq!(named_to(&here, &near), Message::public("the PeerPod shop/db"));
        let message = named_to(&here, &far);
        assert_eq!(message, Message::new("a PeerPod of another namespace", "the PeerPod bank/payroll"));
    }
}
