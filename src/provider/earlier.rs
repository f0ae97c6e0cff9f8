//! Machines that may be where the settings pointed before.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use futures::future::join_all;
use jiff::Timestamp;

use super::{Error, ErrorClass, Finding, InstanceId, OwnVm, Provider, Vm};
use crate::{
    api::v1alpha1::{RELEASE_ABANDON, RELEASE_ANNOTATION},
    settings::Place,
};

/// So many machines are known to be in the place that is named now. Beyond that it begins anew: one that is forgotten is
/// merely asked for in the earlier places, too.
const MOST_SEEN: usize = 10_000;

/// A place that the settings named until then.
pub(super) struct EarlierPlace {
    pub(super) place: Place,
    pub(super) until: Timestamp,
    pub(super) provider: Arc<dyn Provider>,
}

/// The machines that were seen in one place. They are in no other one.
#[derive(Default)]
pub(super) struct Seen(Mutex<HashSet<InstanceId>>);

impl Seen {
    fn add(&self, id: &InstanceId) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= MOST_SEEN {
            seen.clear();
        }
        if !seen.contains(id) {
            seen.insert(id.clone());
        }
    }

    fn has(&self, id: &InstanceId) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(id)
    }
}

/// A provider by the settings in force that takes no machine for absent which may be in a place that they named before:
/// there is none in the earlier places, or it was seen here. In the earlier places it only reads.
///
/// How old a PeerPod is says nothing: cloud-api-adaptor goes by the settings with which it was started, so it may make
/// machines in an earlier place long after.
pub(super) struct WithEarlier {
    pub(super) current: Arc<dyn Provider>,
    /// Where `current` looks.
    pub(super) place: String,
    pub(super) seen: Arc<Seen>,
    pub(super) earlier: Vec<EarlierPlace>,
}

impl WithEarlier {
    /// Fails unless the machine is not in that earlier place either.
    async fn absent(&self, id: &InstanceId, earlier: &EarlierPlace) -> Result<(), Error> {
        let EarlierPlace { place: Place { setting, name }, until, provider } = earlier;
        let place = format!("{name}, which {setting} named until {until:.0}");
        let not_here = format!("the machine is not in {}", self.place);
        match provider.describe(id).await {
            Err(gone) if gone.class == ErrorClass::NotFound => Ok(()),
            Err(error) => {
                let message = format!(
                    "{not_here}; whether it is in {place}, is not known: {error}; set {setting} back, or, where it is gone there \
                     for good, annotate the PeerPod {RELEASE_ANNOTATION}={RELEASE_ABANDON}"
                );
                Err(Error::new(error.class, message))
            }
            Ok(_) => {
                let message = format!(
                    "{not_here}, but in {place}: set {setting} back, or delete the machine there by hand"
                );
                Err(Error::new(ErrorClass::Invalid, message))
            }
        }
    }
}

#[async_trait]
impl Provider for WithEarlier {
    async fn describe(&self, id: &InstanceId) -> Result<Vm, Error> {
        let described = self.current.describe(id).await;
        match &described {
            Ok(_) => self.seen.add(id),
            Err(gone) if gone.class == ErrorClass::NotFound && !self.seen.has(id) => {
                let absent = join_all(self.earlier.iter().map(|earlier| self.absent(id, earlier))).await;
                // Of several problems always the same one is told.
                absent.into_iter().collect::<Result<(), _>>()?;
            }
            Err(_) => {}
        }
        described
    }

    async fn delete(&self, vm: &OwnVm) -> Result<(), Error> {
        self.current.delete(vm).await
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        self.current.examine().await
    }
}
