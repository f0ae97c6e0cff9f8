//! When a VM counts as absent: the cloud says so, twice if it settles late, and every place that the settings named before says so,
//! too.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::future::join_all;
use jiff::Timestamp;
use operator_kit::Message;
use tokio::{sync::watch, time::Instant};

use super::{
    Accepted, Claim, Error, ErrorClass, Finding, InstanceId, OwnVm, Pages, Provider, Stage, Vm,
    error::release_advice,
    places::{FormerPlace, KnownPlaces},
    sightings::Sightings,
};
use crate::{
    names::PLACES,
    settings::{Endpoint, State},
};

/// Access to a place that the settings named before.
pub(super) struct FormerProvider {
    pub(super) place: FormerPlace,
    /// The provider there, or why there is none.
    pub(super) provider: Result<Arc<dyn Provider>, Error>,
}

/// A provider that reports a VM as absent only if it cannot be in another place. That holds if the VM was seen here before, if its
/// identifier says where it is, or if no former place has it, the identity here never changed, and no newer settings were rejected. An
/// unknown place may have any VM. The provider only reads in former places.
///
/// The age of a PeerPod proves nothing: cloud-api-adaptor keeps the settings with which it was started, so it may create VMs in a
/// former place long after the change.
pub(super) struct WithFormerPlaces {
    pub(super) current: Arc<dyn Provider>,
    /// Where `current` looks.
    pub(super) endpoint: Endpoint,
    pub(super) known: Arc<KnownPlaces>,
    /// The settings in force, and whether newer ones cannot be used.
    pub(super) settings: watch::Receiver<State>,
    pub(super) sightings: Arc<Sightings>,
    pub(super) former: Vec<FormerProvider>,
    /// Whether one answer is not enough for a young VM.
    pub(super) settles_late: bool,
}

impl WithFormerPlaces {
    /// Fails unless a VM that is not here is absent. `asked`: when the question began.
    async fn absent(&self, id: &InstanceId, claim: &Claim, asked: Instant) -> Result<(), Error> {
        self.absent_elsewhere(id, claim).await?;
        // Last: the former places of a cloud settle late, too, and must deny the VM twice.
        if self.settles_late { self.sightings.ensure_settled(id, claim, asked) } else { Ok(()) }
    }

    /// Fails unless a VM that is not here is in no other place either.
    async fn absent_elsewhere(&self, id: &InstanceId, claim: &Claim) -> Result<(), Error> {
        if id.scope().is_some() || self.sightings.has(id, claim) {
            return Ok(());
        }
        if let Some(rejected) = self.settings.borrow().rejected.as_deref() {
            let there = rejected.message().map(|problem| {
                format!("it may be where newer settings point, which the operator cannot use: {problem}")
            });
            return Err(self.not_here(ErrorClass::Invalid, &there));
        }
        if let Some(moved_at) = self.known.moved_at {
            let there = another_identity(moved_at, &self.known.key);
            return Err(self.not_here(ErrorClass::Invalid, &there));
        }
        // Of several problems, always report the same one. That of an unknown place says least.
        let (unknown, named): (Vec<_>, Vec<_>) =
            self.former.iter().partition(|former| former.place.address.is_empty());
        let former = named.into_iter().chain(unknown);
        join_all(former.map(|former| self.absent_in(id, claim, former))).await.into_iter().collect()
    }

    /// Fails unless the VM is not in that former place either.
    async fn absent_in(&self, id: &InstanceId, claim: &Claim, former: &FormerProvider) -> Result<(), Error> {
        let FormerProvider { place: FormerPlace { key, address, until, moved_at, .. }, provider } = former;
        if address.is_empty() {
            return Err(self.not_here(ErrorClass::Invalid, &in_unknown_place(*until, key)));
        }
        let setting = self.endpoint.setting;
        let described = match provider {
            Ok(provider) => provider.describe(id, claim).await,
            Err(unavailable) => Err(unavailable.clone()),
        };
        let (class, there) = match described {
            Err(gone) if gone.class == ErrorClass::NotFound => {
                let Some(moved_at) = moved_at else { return Ok(()) };
                (ErrorClass::Invalid, another_identity(*moved_at, key))
            }
            Err(error) => {
                let there = error.message.map(|error| {
                    format!(
                        "the operator cannot find out whether the VM is there: {error}; set {setting} back, or, if no VM is there \
                         any more, {}",
                        forget(key)
                    )
                });
                (error.class, there)
            }
            Ok(_) => {
                let there = format!(
                    "the VM is there; if {setting} has just changed, the operator follows within about a minute; otherwise set it back, \
                     or delete the VM there by hand"
                );
                (ErrorClass::Invalid, Message::public(there))
            }
        };
        let until = until.map(|until| format!(", until {until:.0}")).unwrap_or_default();
        let text = |before: &str, there: &str| format!("{setting} also pointed to {before}{until}: {there}");
        let public = text("another place", there.for_status());
        let full = text(address, there.for_log());
        Err(self.not_here(class, &Message::new(public, full)))
    }

    fn not_here(&self, class: ErrorClass, there: &Message) -> Error {
        let Endpoint { setting, address } = &self.endpoint;
        let public = format!("the VM does not exist where {setting} points now; {}", there.for_status());
        let full =
            format!("the VM does not exist at {address}, where {setting} points now; {}", there.for_log());
        Error::new(class, Message::new(public, full))
    }
}

/// Why a VM that is not in the place with this key is not absent.
fn another_identity(since: Timestamp, key: &str) -> Message {
    let advice = forget(key);
    Message::public(format!(
        "since {since:.0} another host, account or pool answers there than before; set the former address or credentials back, or, if \
         no VM is left in the former one, or only the UUID of the host changed, {advice}"
    ))
}

/// Why a VM is not absent that may be in the unknown place with this key.
fn in_unknown_place(since: Option<Timestamp>, key: &str) -> Message {
    let first = since.map(|since| format!(", first at {since:.0}")).unwrap_or_default();
    let advice = forget(key);
    Message::public(format!(
        "settings were mounted that the operator could not use{first}: cloud-api-adaptor may have made the VM where they point, and \
         the operator could not read where that is; look there, delete by hand the VMs whose Pods are gone, and, once no pod VM is \
         left there, {advice}"
    ))
}

/// How an administrator says that no VM is in a place any more.
fn forget(key: &str) -> String {
    let release = release_advice();
    format!("delete the entry {key} of the operator's ConfigMap {PLACES}, or {release}")
}

#[async_trait]
impl Provider for WithFormerPlaces {
    async fn describe(&self, id: &InstanceId, claim: &Claim) -> Result<Vm, Error> {
        let asked = Instant::now();
        let described = self.current.describe(id, claim).await;
        match &described {
            // That it is leaving proves no deletion: some clouds say the same of a VM that stops.
            Ok(Vm { stage: Stage::Present | Stage::Leaving, .. }) => self.sightings.seen(id, claim),
            // The VM itself may exist, and not be shown yet.
            Ok(Vm { stage: Stage::Remains(_), .. }) if self.settles_late => {
                self.sightings.ensure_settled(id, claim, asked)?;
            }
            Err(gone) if gone.class == ErrorClass::NotFound => self.absent(id, claim, asked).await?,
            Ok(_) | Err(_) => {}
        }
        described
    }

    async fn delete(&self, vm: &OwnVm) -> Result<Accepted, Error> {
        let accepted = self.current.delete(vm).await;
        if accepted.as_ref().is_ok_and(|accepted| !accepted.may_only_stop) {
            self.sightings.leaves(&vm.vm().id);
        }
        accepted
    }

    async fn list(&self, pages: Pages<'_>) -> Result<(), Error> {
        self.current.list(pages).await
    }

    /// The former places are asked, too.
    fn most_at_once(&self) -> Option<usize> {
        let former = self.former.iter().filter_map(|former| former.provider.as_ref().ok());
        former.chain([&self.current]).filter_map(|provider| provider.most_at_once()).min()
    }

    /// A former place that wants no calls delays no VM that is in the current one.
    fn paused_for(&self) -> Option<Duration> {
        self.current.paused_for()
    }

    async fn identity(&self) -> Result<Option<String>, Error> {
        self.current.identity().await
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        self.current.examine().await
    }
}

#[cfg(test)]
pub(super) mod tests;
