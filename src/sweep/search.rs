//! What every search for untracked things reads and deletes *(client required)*.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, Resource as _, api::ListParams};
use operator_kit::{
    Message,
    api_call::{self, ApiError},
    metadata::Metadata,
    projection::{IDENTITY_ALONE, reading},
    watch::NAMES_PAGE,
};
use tracing::{info, warn};

use super::{
    candidates::{Candidates, Found, Key},
    plan::SweepVerdict,
};
use crate::{
    api::v1alpha1::PeerPod,
    cluster::Cluster,
    metrics::Metrics,
    peerpod::{PEERPOD, object::owner},
    provider::{
        Claim, ClusterClaims, Error, ErrorClass, InstanceId, Listed, Provider, Stage, Target, VmRef,
        ensure_this_cluster, ownership,
    },
};

/// The Pods that have ended: Succeeded or Failed.
const ENDED: &str = "status.phase!=Pending,status.phase!=Running,status.phase!=Unknown";

/// How long deletions rely on what was read from the cluster. Then it is read again.
const FRESH: Duration = Duration::from_secs(30);

/// Access to the cluster for a search.
pub(crate) struct Search {
    pub(crate) client: Client,
    pub(crate) metrics: Metrics,
    cluster: Cluster,
}

/// The results of a deletion.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// How much the cloud agreed to delete.
    pub(crate) deleted: usize,
    /// Why it did not delete the others, each with its identifier.
    pub(crate) failed: Vec<String>,
    /// The keys of those.
    pub(crate) refused: Vec<Key>,
    /// Why it ended early, if it did.
    pub(crate) problem: Option<Problem>,
}

/// Why a round at one cloud ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Problem {
    #[error("{}", .0.message.for_log())]
    Cloud(#[from] Error),
    #[error(transparent)]
    Cluster(#[from] ApiError),
}

impl Problem {
    /// The text in both versions.
    pub(crate) fn message(&self) -> Message {
        match self {
            Self::Cloud(error) => error.message.clone(),
            Self::Cluster(error) => error.message(),
        }
    }
}

impl Search {
    pub(crate) fn new(client: Client, metrics: Metrics) -> Self {
        Self { cluster: Cluster::new(&client), client, metrics }
    }

    /// All that the cloud has of pod VMs.
    pub(crate) async fn list(&self, target: &Target) -> Result<Vec<Found>, Problem> {
        let provider = target.provider.as_ref().map_err(Clone::clone)?;
        let claims = ClusterClaims::new(&target.settings.common, self.cluster.uid().await);
        let claims = claims.elsewhere(target.has_moved);
        let mut listing = Vec::new();
        let take = &mut |page: Vec<Listed>| {
            listing.extend(page.into_iter().map(|listed| {
                let (proof, is_of_another) = (claims.proof(&listed), claims.is_of_another(&listed));
                Found { listed: Listed { tags: Vec::new(), ..listed }, proof, is_of_another }
            }));
        };
        provider.list(take).await?;
        listing.shrink_to_fit();
        Ok(listing)
    }

    /// Spares what may be a VM of an existing Pod, whatever its runtime class.
    pub(crate) async fn spare_pods(&self, candidates: &mut Candidates<'_>) -> Result<(), ApiError> {
        let pods: Api<Metadata<Pod>> = Api::all(reading(&self.client, &IDENTITY_ALONE));
        api_call::for_each(&pods, &ListParams::default().limit(NAMES_PAGE), |pod| {
            if let Some(name) = &pod.meta().name {
                candidates.spare_pod(name);
            }
        })
        .await
    }

    /// Those of these PeerPods whose Pod exists and has ended.
    pub(crate) async fn of_ended_pods(
        &self,
        peerpods: &[&Arc<PeerPod>],
    ) -> Result<Vec<Arc<PeerPod>>, ApiError> {
        let mut ended: HashMap<&str, bool> =
            peerpods.iter().filter_map(|it| Some((&*owner(it)?.uid, false))).collect();
        if ended.is_empty() {
            return Ok(Vec::new());
        }
        let pods: Api<Metadata<Pod>> = Api::all(reading(&self.client, &IDENTITY_ALONE));
        let params = ListParams::default().limit(NAMES_PAGE).fields(ENDED);
        api_call::for_each(&pods, &params, |pod| {
            if let Some(has_ended) = pod.meta().uid.as_ref().and_then(|uid| ended.get_mut(&**uid)) {
                *has_ended = true;
            }
        })
        .await?;
        let has_ended = |it: &Arc<PeerPod>| owner(it).is_some_and(|pod| ended.get(&*pod.uid) == Some(&true));
        Ok(peerpods.iter().filter(|it| has_ended(it)).map(|it| Arc::clone(it)).collect())
    }

    /// Leaves out what PeerPods record that the API server has now.
    pub(crate) async fn track_peerpods(&self, candidates: &mut Candidates<'_>) -> Result<(), ApiError> {
        let api: Api<PeerPod> = Api::all(reading(&self.client, &PEERPOD));
        api_call::for_each(&api, &ListParams::default(), |peerpod| candidates.track(&peerpod)).await
    }

    /// Deletes these, after a last look at the cluster, because the caches may have been behind, and then at each of them. Ends once
    /// the settings are no longer those of the target: `are_in_force` is asked before each of them, and right before its deletion.
    pub(crate) async fn delete(
        &self,
        target: &Target,
        found: Vec<Found>,
        are_in_force: &(dyn Fn() -> bool + Sync),
    ) -> Tally {
        let mut tally = Tally::default();
        tally.problem = self.try_delete(target, found, are_in_force, &mut tally).await.err();
        tally
    }

    async fn try_delete(
        &self,
        target: &Target,
        found: Vec<Found>,
        are_in_force: &(dyn Fn() -> bool + Sync),
        tally: &mut Tally,
    ) -> Result<(), Problem> {
        if target.settings.common.is_developer_mode() {
            tally
                .failed
                .extend(found.first().map(|_| "developer mode is on, so nothing is deleted".to_owned()));
            return Ok(());
        }
        let provider = target.provider.as_ref().map_err(Clone::clone)?;
        let mut left = found;
        while !left.is_empty() {
            let mut candidates = Candidates::of(target.cloud, &left);
            self.track_peerpods(&mut candidates).await?;
            self.spare_pods(&mut candidates).await?;
            let read = Instant::now();
            let untracked = candidates.all().into_iter().filter(|it| !it.is_spared);
            let untracked: Vec<_> = untracked.map(|it| it.found.clone()).collect();
            let mut untracked = untracked.into_iter();
            while read.elapsed() < FRESH
                && let Some(found) = untracked.next()
            {
                if !are_in_force() {
                    info!("the settings have changed; the sweep deletes nothing more in this round");
                    return Ok(());
                }
                match self.delete_one(target, &**provider, &found, are_in_force).await {
                    Ok(true) => tally.deleted += 1,
                    Ok(false) => {}
                    Err(problem) => {
                        let (id, problem) = (&found.listed.id, problem.for_log().to_owned());
                        warn!(id, problem, "the sweep did not delete this; the next round tries again");
                        tally.failed.push(format!("{id}: {problem}"));
                        tally.refused.push(found.key());
                    }
                }
            }
            left = untracked.collect();
        }
        Ok(())
    }

    /// Whether it was deleted; not if it is gone or going, or if the settings have changed.
    async fn delete_one(
        &self,
        target: &Target,
        provider: &dyn Provider,
        found: &Found,
        are_in_force: &(dyn Fn() -> bool + Sync),
    ) -> Result<bool, Message> {
        let Found { listed, proof: Some(proof), is_of_another: false } = found else { return Ok(false) };
        let id = match &listed.vm {
            Some(VmRef::Id(id)) => id,
            _ => &listed.id,
        };
        let id = InstanceId::of(target.cloud, id).map_err(|problem| Message::public(problem.to_string()))?;
        let vm = match provider.describe(&id, &Claim::default()).await {
            Ok(vm) if vm.stage == Stage::Leaving => return Ok(false),
            // The list may not have shown the tag yet.
            Ok(vm) if vm.cluster_uid.is_some() => {
                ensure_this_cluster(vm, self.cluster.uid().await).map_err(|error| error.message)?
            }
            Ok(vm) => vm,
            Err(gone) if gone.class == ErrorClass::NotFound => return Ok(false),
            Err(error) => return Err(error.message),
        };
        let own = ownership::verify_untracked(vm, listed, proof).map_err(|refusal| refusal.message())?;
        if !are_in_force() {
            return Ok(false);
        }
        info!(
            id = id.as_str(), name = listed.name, %proof,
            "deleting what no PeerPod tracks and no Pod needs"
        );
        let accepted = match provider.delete(&own).await {
            Err(gone) if gone.class == ErrorClass::NotFound => return Ok(false),
            accepted => accepted.map_err(|error| error.message)?,
        };
        if accepted.may_only_stop {
            return Err(Message::public("the cloud refuses the deletion while the VM is being stopped"));
        }
        self.metrics.swept(target.cloud.name(), listed.kind.as_str(), SweepVerdict::Delete.as_str());
        Ok(true)
    }
}

#[cfg(test)]
pub(super) mod tests;
