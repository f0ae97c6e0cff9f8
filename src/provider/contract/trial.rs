//! A cloud on trial, and what scenarios do to it.

use std::{collections::HashSet, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use prometheus_client::registry::Registry;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::{Cannot, Example, Left, Peer};
use crate::{
    metrics::Metrics,
    provider::{
        Accepted, Claim, Error, ErrorClass, InstanceId, Limits, Listed, OwnVm, Provider, Resource, Stage, Vm,
        VmRef, decorate, former_places::WithFormerPlaces, ownership, places::KnownPlaces,
    },
    settings::{Endpoint, State},
};

/// How long a cloud may take for what it accepted.
const PATIENCE: Duration = Duration::from_secs(30);

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(50);

/// A peer, and a provider for it with all that the operator puts around one.
pub(super) struct Trial<'a> {
    pub(super) peer: &'a dyn Peer,
    pub(super) provider: Arc<dyn Provider>,
}

impl<'a> Trial<'a> {
    pub(super) fn new(peer: &'a dyn Peer) -> Result<Self, Error> {
        let (cloud, metrics) = (peer.cloud(), Metrics::new(&mut Registry::default()));
        let current = decorate(peer.open()?, cloud.schema.cloud, Limits::default(), metrics);
        let known =
            KnownPlaces { identity: None, moved_at: None, key: "here".to_owned(), former: Vec::new() };
        let provider = WithFormerPlaces {
            current,
            endpoint: Endpoint { setting: "the settings", address: "here".to_owned() },
            known: Arc::new(known),
            settings: watch::channel(State::default()).1,
            sightings: Arc::default(),
            former: Vec::new(),
            settles_late: cloud.settles_late,
        };
        Ok(Self { peer, provider: Arc::new(provider) })
    }

    pub(super) fn id(&self, example: &Example) -> Result<InstanceId, Cannot> {
        Ok(InstanceId::of(self.peer.cloud(), &example.id)?)
    }
}

impl Trial<'_> {
    /// All that is listed. Fails if a thing is listed twice, or with an identifier of a VM that is none.
    pub(super) async fn list(&self) -> Result<Vec<Listed>, Cannot> {
        let mut listed = Vec::new();
        self.provider.list(&mut |page| listed.extend(page)).await?;
        let mut seen = HashSet::new();
        for it in &listed {
            ensure(seen.insert((it.kind, &it.id)), || format!("{it:?} is listed twice"))?;
            let vm = match (&it.kind, &it.vm) {
                (Resource::Vm, None) => &it.id,
                (Resource::Vm, Some(_)) => return Err(format!("{it:?} came with a VM").into()),
                (_, Some(VmRef::Id(vm))) => vm,
                (_, Some(VmRef::Name(_)) | None) => continue,
            };
            let id = InstanceId::of(self.peer.cloud(), vm)?;
            ensure(id.as_str() == vm, || format!("{vm} is not canonical"))?;
        }
        Ok(listed)
    }

    /// Asks as for a PeerPod that was recorded and deleted just now.
    async fn ask(&self, vm: &Example) -> Result<Result<Vm, Error>, Cannot> {
        let now = Timestamp::now();
        let recorded = now - SignedDuration::from_secs(1);
        let claim = Claim { recorded, created: recorded, deleted: Some(now), ..Claim::default() };
        Ok(self.provider.describe(&self.id(vm)?, &claim).await)
    }

    /// Asks until the cloud has settled about it.
    async fn settled(&self, vm: &Example) -> Result<Result<Vm, Error>, Cannot> {
        loop {
            match self.ask(vm).await? {
                Err(Error { class: ErrorClass::Unsettled { check_again_after }, .. }) => {
                    sleep(check_again_after).await;
                }
                answer => return Ok(answer),
            }
        }
    }

    pub(super) async fn describe(&self, vm: &Example) -> Result<Vm, Cannot> {
        Ok(self.settled(vm).await??)
    }

    /// The error of a question that must fail.
    pub(super) async fn refused(&self, vm: &Example) -> Result<Error, Cannot> {
        match self.ask(vm).await? {
            Ok(shown) => Err(format!("it is shown as {shown:?}").into()),
            Err(error) => Ok(error),
        }
    }

    /// The error of a deletion that must fail.
    pub(super) async fn kept(&self, own: &OwnVm) -> Result<Error, Cannot> {
        match self.provider.delete(own).await {
            Ok(Accepted { .. }) => Err("it was deleted".into()),
            Err(error) => Ok(error),
        }
    }

    pub(super) async fn prove(&self, vm: &Example, pod: &str) -> Result<OwnVm, Cannot> {
        Ok(ownership::verify(self.describe(vm).await?, pod, self.peer.cloud().name_limit)?)
    }

    /// Deletes it, and waits until nothing is left.
    pub(super) async fn reap(&self, vm: &Example, pod: &str) -> Result<(), Cannot> {
        let own = self.prove(vm, pod).await?;
        self.provider.delete(&own).await?;
        self.ends(vm, pod).await
    }

    /// Waits until the VM is gone, and deletes what remains of it.
    async fn ends(&self, vm: &Example, pod: &str) -> Result<(), Cannot> {
        if let Some(remains) = self.remains(vm, pod).await? {
            self.delete_once_more(&remains).await?;
            self.vanishes(vm).await?;
        }
        self.nothing_is_left(vm).await
    }

    /// Deletes what an earlier deletion, which goes on, may delete first.
    async fn delete_once_more(&self, own: &OwnVm) -> Result<(), Cannot> {
        match self.provider.delete(own).await {
            Err(error) if error.class != ErrorClass::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Waits until the VM is gone. Gives what remains of it, if anything does.
    pub(super) async fn remains(&self, vm: &Example, pod: &str) -> Result<Option<OwnVm>, Cannot> {
        let remains = self.until_gone(vm, |it| matches!(it.stage, Stage::Remains(_))).await?;
        let own = |remains| ownership::verify(remains, pod, self.peer.cloud().name_limit);
        Ok(remains.map(own).transpose()?)
    }

    /// Deletes what earlier deletions may have left.
    pub(super) async fn finish(&self, vm: &Example, pod: &str) -> Result<(), Cannot> {
        match self.until_gone(vm, |_| true).await? {
            None => self.nothing_is_left(vm).await,
            Some(left) => {
                let own = ownership::verify(left, pod, self.peer.cloud().name_limit)?;
                self.delete_once_more(&own).await?;
                self.ends(vm, pod).await
            }
        }
    }

    /// Waits until it counts as absent.
    pub(super) async fn vanishes(&self, vm: &Example) -> Result<(), Cannot> {
        self.until_gone(vm, |_| false).await.map(drop)
    }

    /// Waits until it counts as absent, or until what is left of it is `enough`. Gives what is left. In the middle of a deletion a cloud
    /// may be unable to answer.
    async fn until_gone(&self, vm: &Example, enough: fn(&Vm) -> bool) -> Result<Option<Vm>, Cannot> {
        let mut problem = None;
        let gone = async {
            loop {
                match self.settled(vm).await? {
                    Err(Error { class: ErrorClass::NotFound, .. }) => return Ok(None),
                    Err(error) if error.class == ErrorClass::Transient => {
                        problem = Some(error);
                        sleep(PAUSE).await;
                    }
                    Err(error) => return Err(Cannot::from(error)),
                    Ok(seen) if enough(&seen) => return Ok(Some(seen)),
                    Ok(_) => sleep(PAUSE).await,
                }
            }
        };
        if let Ok(outcome) = timeout(PATIENCE, gone).await {
            return outcome;
        }
        Err(problem.map_or_else(|| format!("{} is still there", vm.name).into(), Cannot::from))
    }

    async fn nothing_is_left(&self, vm: &Example) -> Result<(), Cannot> {
        let left = self.peer.left(vm).await?;
        ensure(left == Left::default(), || format!("{left:?}"))
    }
}

pub(super) fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), Cannot> {
    if holds { Ok(()) } else { Err(otherwise().into()) }
}
