//! The settings of one cloud, as they are in force.

use std::sync::Arc;

use operator_kit::Message;
use tokio::sync::watch;

use super::{Cloud, Error, ErrorClass};
use crate::settings::{Snapshot, State};

/// The settings of one cloud, followed as they change. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CloudSettings {
    clouds: ServedCloud,
    pub(super) state: watch::Receiver<State>,
}

/// Which cloud the settings may be for. Two settings of a process must not be for the same cloud, as each cloud has one account
/// and one record of the places of its VMs. A program with several settings names the cloud of all but one.
#[derive(Clone, Debug)]
pub struct ServedCloud(Which);

#[derive(Clone, Debug)]
enum Which {
    Only(&'static Cloud),
    AnyBut(Arc<[&'static Cloud]>),
}

impl ServedCloud {
    /// This one.
    pub fn only(cloud: &'static Cloud) -> Self {
        Self(Which::Only(cloud))
    }

    /// Any cloud but these, which have settings of their own.
    pub fn any_but(others: impl IntoIterator<Item = &'static Cloud>) -> Self {
        Self(Which::AnyBut(others.into_iter().collect()))
    }

    /// Why this state's settings cannot be used, if the reason is the cloud that they name.
    pub fn conflict(&self, state: &State) -> Option<String> {
        let cloud = state.current.as_ref()?.cloud();
        match &self.0 {
            Which::Only(only) if only.name() != cloud => {
                Some(format!("the settings of --provider {only} are for {cloud} (CLOUD_PROVIDER)"))
            }
            Which::AnyBut(others) if others.iter().any(|other| other.name() == cloud) => Some(format!(
                "the settings of --settings-dir are for {cloud} (CLOUD_PROVIDER), which has settings of its own by --provider"
            )),
            _ => None,
        }
    }
}

impl CloudSettings {
    /// Settings for these clouds.
    pub fn new(clouds: ServedCloud, state: watch::Receiver<State>) -> Self {
        Self { clouds, state }
    }

    /// Settings for any cloud that they name.
    pub fn any(state: watch::Receiver<State>) -> Self {
        Self::new(ServedCloud::any_but([]), state)
    }

    /// The cloud that they are for, if that is known.
    pub(super) fn cloud(&self) -> Option<&'static str> {
        if let Which::Only(cloud) = self.clouds.0 {
            return Some(cloud.name());
        }
        self.usable(&self.state.borrow()).map(|snapshot| snapshot.cloud())
    }

    /// The settings in force, if they are for a cloud that these settings may be for.
    pub(super) fn usable(&self, state: &State) -> Option<Arc<Snapshot>> {
        state.current.clone().filter(|_| self.clouds.conflict(state).is_none())
    }

    /// Why they cannot be used, if they are for this cloud nevertheless: cloud-api-adaptor may make its VMs by them.
    pub(super) fn refused_for(&self, cloud: &str) -> Option<Error> {
        let is_named = self.state.borrow().current.as_ref().is_some_and(|it| it.cloud() == cloud);
        let Error { class, message } = self.current().err().filter(|_| is_named)?;
        let place = "the VM may be where settings point that cannot be used";
        Some(Error::new(class, message.map(|why| format!("{place}: {why}"))))
    }

    /// The settings in force with their generation, or why there are none.
    pub(super) fn current(&self) -> Result<(u64, Arc<Snapshot>), Error> {
        let state = self.state.borrow();
        if let Some(conflict) = self.clouds.conflict(&state) {
            return Err(Error::new(ErrorClass::Invalid, Message::public(conflict)));
        }
        let Some(snapshot) = &state.current else {
            let rejected = state.rejected.as_ref();
            let problem = rejected.map_or("it has not read them yet".into(), |rejected| rejected.message());
            let message = problem.map(|problem| format!("the operator has no valid settings: {problem}"));
            return Err(Error::new(ErrorClass::Invalid, message));
        };
        Ok((state.generation, Arc::clone(snapshot)))
    }
}
