//! The settings of one cloud, as they are in force.

use std::{mem, sync::Arc};

use operator_kit::Message;
use tokio::sync::watch;

use super::{CATALOGUE, Cloud, Error, ErrorClass};
use crate::settings::{Endpoint, Raw, Snapshot, State};

/// The most reported endpoints that wait for the keeper of the places. It takes them at once, so more wait only in a program that deletes
/// no VMs.
const MOST_REPORTED: usize = 16;

/// The name of a cloud, and where VMs are there.
pub(crate) type CloudEndpoint = (&'static str, Endpoint);

/// The settings of one cloud, followed as they change. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CloudSettings {
    clouds: ServedCloud,
    pub(super) state: watch::Receiver<State>,
    /// Where cloud-api-adaptor may make VMs by other settings, until the keeper of the places takes it.
    reported: Arc<watch::Sender<Vec<CloudEndpoint>>>,
}

/// Which cloud the settings may be for. Two settings of a process must not be for the same cloud, as each cloud has one account
/// and one record of the places of its VMs. A program with several settings names the cloud of all but one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedCloud(Which);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Which {
    Only(&'static Cloud),
    AnyBut(Arc<[&'static Cloud]>),
}

/// Where VMs may be by settings that are or were mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PossiblePlace {
    /// The operator cannot read where, in one of these clouds.
    Unknown(ServedCloud),
    /// In the cloud of this name, at this endpoint.
    At(&'static str, Endpoint),
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

    /// Whether they may be for the cloud of this name.
    pub(super) fn may_be(&self, cloud: &str) -> bool {
        match &self.0 {
            Which::Only(only) => only.name() == cloud,
            Which::AnyBut(others) => others.iter().all(|other| other.name() != cloud),
        }
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
        Self { clouds, state, reported: Arc::new(watch::Sender::new(Vec::new())) }
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

    /// Whether they may be for the cloud of this name.
    pub(crate) fn may_be_for(&self, cloud: &str) -> bool {
        self.clouds.may_be(cloud)
    }

    /// Whether they must be for one cloud.
    pub(crate) fn are_for_one_cloud(&self) -> bool {
        matches!(self.clouds.0, Which::Only(_))
    }

    /// Whether the settings in force are for this cloud, and name another endpoint there.
    pub(crate) fn differ_from(&self, (cloud, endpoint): &CloudEndpoint) -> bool {
        self.endpoint_in(cloud).is_some_and(|own| own.address != endpoint.address)
    }

    /// Reports that cloud-api-adaptor may make VMs at this endpoint, so that it is recorded. That of the settings in force is recorded
    /// without a report.
    pub(crate) fn report(&self, place: &CloudEndpoint) {
        let (cloud, endpoint) = place;
        if self.endpoint_in(cloud).is_some_and(|own| own.address == endpoint.address) {
            return;
        }
        self.reported.send_if_modified(|reported| {
            let is_new = reported.len() < MOST_REPORTED && !reported.contains(place);
            if is_new {
                reported.push(place.clone());
            }
            is_new
        });
    }

    /// What was reported since the last call.
    pub(super) fn take_reported(&self) -> Vec<CloudEndpoint> {
        let mut taken = Vec::new();
        self.reported.send_if_modified(|reported| {
            taken = mem::take(reported);
            false
        });
        taken
    }

    /// Waits until such an endpoint is reported.
    pub(super) async fn until_reported(&self, is_such: impl Fn(&CloudEndpoint) -> bool) {
        let mut reported = self.reported.subscribe();
        // It cannot fail: this value keeps the channel open.
        let _ = reported.wait_for(|reported| reported.iter().any(&is_such)).await;
    }

    /// The endpoint of the settings in force, if they are for this cloud.
    fn endpoint_in(&self, cloud: &str) -> Option<Endpoint> {
        let (snapshot, endpoint) = self.named(&self.state.borrow())?;
        (snapshot.cloud() == cloud).then_some(endpoint)
    }

    /// The settings in force, if they are for a cloud that these settings may be for.
    pub(super) fn usable(&self, state: &State) -> Option<Arc<Snapshot>> {
        state.current.clone().filter(|_| self.clouds.conflict(state).is_none())
    }

    /// Where VMs are by the settings in force, although deletion may be unable to use them.
    pub(super) fn named(&self, state: &State) -> Option<(Arc<Snapshot>, Endpoint)> {
        let snapshot = self.usable(state)?;
        let endpoint = endpoint_of(&snapshot)?;
        Some((snapshot, endpoint))
    }

    /// Where cloud-api-adaptor may make VMs by settings that the operator cannot use.
    pub(super) fn unplaced(&self, state: &State) -> Option<PossiblePlace> {
        if let Some(problem) = &state.rejected {
            return problem.may_have_place().then(|| PossiblePlace::Unknown(self.clouds.clone()));
        }
        let current = state.current.as_ref().filter(|_| self.named(state).is_none())?;
        Some(match &current.endpoint {
            // They conflict with the settings of another source, which are for that cloud.
            Ok(endpoint) => PossiblePlace::At(current.cloud(), endpoint.clone()),
            Err(_) => PossiblePlace::Unknown(ServedCloud::only(Cloud::named(current.cloud())?)),
        })
    }

    /// Why they cannot be used, if they are for this cloud nevertheless: cloud-api-adaptor may make its VMs by them.
    pub(super) fn refused_for(&self, cloud: &str) -> Option<Error> {
        let is_named = self.state.borrow().current.as_ref().is_some_and(|it| it.cloud() == cloud);
        let Error { class, message } = self.current().err().filter(|_| is_named)?;
        let place = "the VM may be in the place of settings that the operator cannot use";
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

/// Where VMs are by this `ConfigMap` and this Secret, although deletion may be unable to use them. `None`: that cannot be read.
pub(crate) fn named_by(raw: &Raw) -> Option<CloudEndpoint> {
    let snapshot = Snapshot::parse(raw, CATALOGUE).ok()?;
    Some((snapshot.cloud(), endpoint_of(&snapshot)?))
}

/// Where VMs are by these settings, although deletion may be unable to use them.
fn endpoint_of(snapshot: &Snapshot) -> Option<Endpoint> {
    // While the Secret has another value, cloud-api-adaptor makes VMs at the ConfigMap's place, which is this one.
    if let Ok(endpoint) = &snapshot.endpoint {
        return Some(endpoint.clone());
    }
    let read = Cloud::named(snapshot.cloud())?.place?;
    read(&snapshot.values)
}

#[cfg(test)]
mod tests {
    use secrecy::SecretString;

    use super::*;
    use crate::settings::SettingsError;

    const HOST: &str = "qemu+ssh://root@kvm-1/system";

    fn libvirt(uri: &str) -> State {
        state(&[("CLOUD_PROVIDER", "libvirt"), ("LIBVIRT_URI", uri)])
    }

    fn state(given: &[(&str, &str)]) -> State {
        let given = given.iter().map(|(name, value)| ((*name).to_owned(), SecretString::from(*value)));
        let settings = given.collect();
        let snapshot = Snapshot::parse(&Raw { settings, ..Raw::default() }, CATALOGUE).unwrap();
        State { current: Some(Arc::new(snapshot)), generation: 1, ..State::default() }
    }

    #[test]
    fn settings_whose_place_cannot_be_read_may_be_of_any_cloud_that_they_are_not_kept_from() {
        let rejected_for = |error, state| State { rejected: Some(Arc::new(error)), ..state };
        let rejected = |state| rejected_for(SettingsError::NotText { path: "LIBVIRT_URI".into() }, state);
        let misspelt = SettingsError::UnknownProvider { name: "libvrt".to_owned(), known: vec!["libvirt"] };
        let [libvirt_cloud, gcp] = ["libvirt", "gcp"].map(|name| Cloud::named(name).unwrap());
        let any = ServedCloud::any_but([]);
        for (clouds, state, of_libvirt, of_gcp) in [
            (any.clone(), State::default(), false, false),
            (any.clone(), libvirt(HOST), false, false),
            // cloud-api-adaptor's libvirt accepts this parameter.
            (any.clone(), libvirt("qemu+tls://kvm-2/system?tls_priority=NORMAL"), true, false),
            (any.clone(), rejected(State::default()), true, true),
            (any.clone(), rejected(libvirt(HOST)), true, true),
            (ServedCloud::any_but([gcp]), rejected(libvirt(HOST)), true, false),
            (ServedCloud::only(gcp), rejected(State::default()), false, true),
            // cloud-api-adaptor knows no such cloud either.
            (any, rejected_for(misspelt, libvirt(HOST)), false, false),
            // These settings conflict with others, which are for that cloud alone.
            (ServedCloud::any_but([libvirt_cloud]), libvirt(HOST), true, false),
        ] {
            let settings = CloudSettings::new(clouds, watch::channel(state.clone()).1);
            let unplaced = settings.unplaced(&state);
            let may_be = |cloud: &str| match &unplaced {
                None => false,
                Some(PossiblePlace::Unknown(clouds)) => clouds.may_be(cloud),
                Some(PossiblePlace::At(at, endpoint)) => {
                    *at == cloud && endpoint.address == "qemu+ssh://kvm-1:22/system"
                }
            };
            assert_eq!([may_be("libvirt"), may_be("gcp")], [of_libvirt, of_gcp], "{state:?}");
        }
    }

    #[test]
    fn a_place_is_named_although_deletion_cannot_use_other_settings() {
        let guid = "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11";
        let google = "https://compute.googleapis.com/compute/v1/projects/peer-pods";
        let of_guid = format!("{guid} dal12 https://dal.power-iaas.cloud.ibm.com");
        let vpc = "https://eu-de.iaas.cloud.ibm.com/v1";
        for (cloud, given, place) in [
            ("gcp", [("GCP_PROJECT_ID", "peer-pods"), ("GCP_CREDENTIALS", "{")], Some(google)),
            ("gcp", [("GCP_PROJECT_ID", "a/b"), ("GCP_CREDENTIALS", "")], None),
            ("docker", [("DOCKER_HOST", "tcp://a:1"), ("DOCKER_API_VERSION", "new")], Some("tcp://a:1")),
            // Without a key.
            (
                "ibmcloud-powervs",
                [("POWERVS_ZONE", "dal12"), ("POWERVS_SERVICE_INSTANCE_ID", guid)],
                Some(&*of_guid),
            ),
            // The account is not known.
            ("ibmcloud", [("IBMCLOUD_VPC_ENDPOINT", vpc), ("IBMCLOUD_API_KEY", "")], None),
        ] {
            let state = state(&[&[("CLOUD_PROVIDER", cloud)][..], &given[..]].concat());
            assert!(state.current.as_ref().unwrap().endpoint.is_err(), "{cloud} {given:?}");
            let settings = CloudSettings::any(watch::channel(state.clone()).1);
            let named = settings.named(&state).map(|(_, endpoint)| endpoint.address);
            assert_eq!(named.as_deref(), place, "{cloud} {given:?}");
            assert_eq!(settings.unplaced(&state).is_none(), place.is_some(), "{cloud} {given:?}");
        }
    }

    #[test]
    fn another_endpoint_than_that_in_force_is_reported_once_until_it_is_taken() {
        let (sender, state) = watch::channel(libvirt(HOST));
        let settings = CloudSettings::any(state);
        let at = |address: &str| Endpoint { setting: "A", address: address.to_owned() };
        let reported = |place: &CloudEndpoint| {
            settings.clone().report(place);
            settings.clone().report(place);
            settings.take_reported()
        };
        let (here, there) = (("libvirt", at("qemu+ssh://kvm-1:22/system")), ("libvirt", at("b")));
        assert!(!settings.differ_from(&here) && settings.differ_from(&there));
        assert_eq!([reported(&here), reported(&there)], [vec![], vec![there.clone()]]);
        // The settings may be for that cloud later.
        let elsewhere = ("gcp", at("b"));
        assert!(!settings.differ_from(&elsewhere));
        assert_eq!(reported(&elsewhere), [elsewhere]);
        sender.send_replace(State::default());
        assert!(!settings.differ_from(&there), "no settings are in force");
        assert_eq!(reported(&here), [here]);
        (0..99).for_each(|number| settings.report(&("libvirt", at(&number.to_string()))));
        assert_eq!(settings.take_reported().len(), MOST_REPORTED);
    }
}
