//! What else may need the VM that a PeerPod names *(client required)*. It keeps the VM from being deleted.
//!
//! A tenant may write any identifier into a PeerPod, so not each PeerPod that names a VM may keep it. If the VM is deleted at all,
//! it bears the name of this PeerPod's Pod. So a PeerPod of a Pod whose VMs have other names cannot have it, and neither can one
//! without a Pod. A Pod that a PeerPod only pretends to have does not keep a VM for long: the garbage collector deletes that PeerPod,
//! and the PeerPod's next reconcile finds that its Pod has ended.
//!
//! On a cloud that reuses identifiers, a Pod may have a VM that no PeerPod records for it yet. There, Pods of the same name count,
//! too. A VM that was absent and came back may bear a name that is no longer true, and an earlier process may have seen that alone. So
//! there each living PeerPod with the finalizer counts that names it for a Pod. If this process has seen it, each PeerPod that names it
//! counts.

use jiff::{SignedDuration, Timestamp};
use kube::{Api, Resource as _, ResourceExt as _, api::ListParams, runtime::reflector::ObjectRef};
use operator_kit::{
    Message,
    api_call::{self, ApiError},
};

use super::{
    decide::VmState,
    index::{Claimants, Key, MOST_PODS},
    object::{has_finalizer, owner},
    observe::Observer,
    pod::PodView,
    relations::{ClaimVerdict, is_namesake, judge_claim},
};
use crate::{
    api::v1alpha1::PeerPod,
    provider::{Bears, Cloud, InstanceId, Stage, Vm},
};

/// How far the clock that dates a VM may be behind the API server's, which dates Pods.
const SKEW: SignedDuration = SignedDuration::from_mins(2);

/// The number of Pods of one name on a page of a list.
const NAMESAKES: u32 = 20;

impl Observer {
    /// Whether a PeerPod that is not being deleted may have the VM, too. Always false for a cloud that does not reuse
    /// identifiers.
    pub(super) fn is_contested(&self, peerpod: &PeerPod) -> bool {
        reuses_ids(peerpod) && self.index.claimants(peerpod, 0).living.is_some()
    }

    /// What else needs the VM: a PeerPod, in any namespace, that names it and is not being deleted or whose Pod may still run, or a
    /// Pod that may have it without a record. `None` if there is no VM.
    pub(super) async fn claimant(
        &self,
        peerpod: &PeerPod,
        vm: &VmState,
    ) -> Result<Option<Message>, ApiError> {
        let VmState::Present(vm) = vm else { return Ok(None) };
        let claimant = self.recorded_claimant(peerpod, vm).await?;
        let claimant = claimant.map(|key| {
            let named = named_to(peerpod, "PeerPod", key.namespace.as_deref(), &key.name);
            named.map(|it| format!("{it} names the same VM and still needs it"))
        });
        if claimant.is_some() || !reuses_ids(peerpod) {
            return Ok(claimant);
        }
        let namesake = self.unrecorded_claimant(peerpod, vm).await?;
        Ok(namesake.map(|pod| {
            let named = named_to(peerpod, "Pod", pod.namespace().as_deref(), &pod.name_any());
            named.map(|it| {
                format!("{it} has the same name and may have this VM, which is not recorded for it")
            })
        }))
    }

    /// A PeerPod that names the VM and still needs it. The operator reads the Pods of deleted PeerPods, but not of more than
    /// [`MOST_PODS`]: if there are more, one of them counts as needing the VM.
    async fn recorded_claimant(
        &self,
        peerpod: &PeerPod,
        vm: &Vm,
    ) -> Result<Option<ObjectRef<PeerPod>>, ApiError> {
        let Claimants { living, deleting, one_more } =
            if vm.reappeared || vm.stage == Stage::Remains(Bears::Id) {
                // Its name does not say which Pod needs it.
                self.index.claimants_of_any_name(peerpod, MOST_PODS)
            } else {
                self.index.claimants(peerpod, MOST_PODS)
            };
        let of_any_pod = || reuses_ids(peerpod).then(|| self.index.record_of_any_pod(peerpod)).flatten();
        if let Some(living) = living.or_else(of_any_pod) {
            return Ok(Some((*living).clone()));
        }
        if let Some(one_more) = one_more {
            // Their own reconciles note whose Pods have ended, and no timer reconciles those that lack the operator's finalizer.
            let lacks_finalizer =
                |key: &&Key| self.store.get(key).is_some_and(|other| !has_finalizer(&other));
            self.requeues.add(deleting.iter().chain([&one_more]).filter(lacks_finalizer).cloned());
            return Ok(Some((*one_more).clone()));
        }
        let Ok(id) = InstanceId::parse(peerpod.cloud_provider(), peerpod.instance_id()) else {
            return Ok(None);
        };
        for key in &deleting {
            let other = self.store.get(key).filter(|other| is_namesake(other, peerpod, &id));
            let Some(other) = other else { continue };
            let needed = match judge_claim(&other, peerpod) {
                ClaimVerdict::Living => true,
                ClaimVerdict::WhilePodRuns(pod) => {
                    self.pod_state(&other, pod).await?.owner.may_run().is_some()
                }
                ClaimVerdict::NoClaim => false,
            };
            if needed {
                return Ok(Some((**key).clone()));
            }
        }
        Ok(None)
    }

    /// Another Pod of the name of this PeerPod's, in any namespace, that may have the VM although no PeerPod says so.
    async fn unrecorded_claimant(&self, peerpod: &PeerPod, vm: &Vm) -> Result<Option<PodView>, ApiError> {
        let Some(own) = owner(peerpod) else { return Ok(None) };
        let pods: Api<PodView> = Api::all(self.client.clone());
        let params = ListParams::default().fields(&format!("metadata.name={}", own.name)).limit(NAMESAKES);
        let mut claimant = None;
        api_call::for_each(&pods, &params, |pod| {
            // The uid alone is no proof: it can be copied into a PeerPod of another namespace.
            let is_own = pod.namespace() == peerpod.namespace() && pod.uid().as_ref() == Some(&own.uid);
            if claimant.is_none() && !is_own && self.may_have_unrecorded(&pod, peerpod, vm.created) {
                claimant = Some(pod);
            }
        })
        .await?;
        Ok(claimant)
    }

    /// Whether this Pod may have a VM that was given to a Pod of its name at that time. It has another one if that is recorded and
    /// its sandbox is ready: while it starts in a new sandbox, its new VM is not recorded yet.
    fn may_have_unrecorded(&self, pod: &PodView, peerpod: &PeerPod, given: Option<Timestamp>) -> bool {
        let is_younger = || {
            let created = pod.creation_timestamp().map(|time| time.0);
            created.zip(given).is_some_and(|(created, given)| created.duration_since(given) > SKEW)
        };
        let has_another = || pod.is_in_sandbox() && self.index.has_another_vm(pod.meta(), peerpod);
        pod.may_be_peer_pod() && !is_younger() && !has_another()
    }
}

fn reuses_ids(peerpod: &PeerPod) -> bool {
    Cloud::named(peerpod.cloud_provider()).is_some_and(|cloud| cloud.reuses_ids)
}

/// The name of another object in the status of `reader`. Readers of that status must not learn names of another namespace.
fn named_to(reader: &PeerPod, kind: &str, namespace: Option<&str>, name: &str) -> Message {
    let full = format!("the {kind} {}/{name}", namespace.unwrap_or_default());
    if namespace == reader.metadata.namespace.as_deref() {
        Message::public(full)
    } else {
        Message::new(format!("a {kind} of another namespace"), full)
    }
}

#[cfg(test)]
mod tests;
