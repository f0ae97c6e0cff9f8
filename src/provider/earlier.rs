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
    runtime::Message,
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
        let (class, there) = match provider.describe(id).await {
            Err(gone) if gone.class == ErrorClass::NotFound => return Ok(()),
            Err(error) => {
                let there = error.message.map(|error| {
                    format!(
                        "the operator cannot find out whether the VM is there: {error}; set {setting} back, or, if the VM is gone \
                         there for good, annotate the PeerPod {RELEASE_ANNOTATION}={RELEASE_ABANDON}"
                    )
                });
                (error.class, there)
            }
            Ok(_) => {
                let there = format!("the VM is there; set {setting} back, or delete the VM there by hand");
                (ErrorClass::Invalid, Message::public(there))
            }
        };
        let text = |now: &str, before: &str, there: &str| {
            format!("the VM is not {now}; until {until:.0} {setting} pointed to {before}: {there}")
        };
        let now = format!("where {setting} points now");
        let public = text(&now, "another place", there.for_status());
        let full = text(&format!("in {}, {now}", self.place), name, there.for_log());
        Err(Error::new(class, Message::new(public, full)))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A cloud that answers so when it is asked for a machine.
    struct Answers(Result<Vm, Error>);

    #[async_trait]
    impl Provider for Answers {
        async fn describe(&self, _: &InstanceId) -> Result<Vm, Error> {
            self.0.clone()
        }

        async fn delete(&self, _: &OwnVm) -> Result<(), Error> {
            Ok(())
        }

        async fn examine(&self) -> Result<Vec<Finding>, Error> {
            Ok(Vec::new())
        }
    }

    /// What is said of a machine that is not here, where the earlier place answers so.
    async fn told(earlier: Result<Vm, Error>) -> Message {
        let place = Place { setting: "LIBVIRT_URI", name: "qemu:///system at host-1:22".to_owned() };
        let until = Timestamp::from_second(1_790_000_000).unwrap();
        let provider = WithEarlier {
            current: Arc::new(Answers(Err(Error::new(ErrorClass::NotFound, "")))),
            place: "qemu:///system at host-2:22".to_owned(),
            seen: Arc::default(),
            earlier: vec![EarlierPlace { place, until, provider: Arc::new(Answers(earlier)) }],
        };
        provider.describe(&id()).await.unwrap_err().message
    }

    fn id() -> InstanceId {
        InstanceId::parse("aws", "i-1").unwrap()
    }

    #[tokio::test]
    async fn the_places_are_named_in_the_log_alone() {
        let vm = Vm { id: id(), name: "a".into(), marked: true, created: None, own_disks: Vec::new() };
        let failed = Error::new(ErrorClass::Transient, Message::new("no answer", "no answer of host-1"));
        for (answer, outcome) in [(Ok(vm), "the VM is there"), (Err(failed), "cannot find out")] {
            let message = told(answer).await;
            let (public, full) = (message.for_status(), message.for_log());
            assert!(public.contains(outcome) && public.contains("set LIBVIRT_URI back"), "{public}");
            assert!(
                public.contains("until 2026-09-21T14:13:20Z LIBVIRT_URI pointed to another place"),
                "{public}"
            );
            assert!(!public.contains("host-") && !public.contains("qemu"), "{public}");
            assert!(full.contains("not in qemu:///system at host-2:22"), "{full}");
            assert!(full.contains("pointed to qemu:///system at host-1:22"), "{full}");
        }
    }
}
