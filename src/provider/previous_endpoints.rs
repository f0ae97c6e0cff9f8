//! VMs that may be at an endpoint that the settings named before.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use futures::future::join_all;
use jiff::Timestamp;
use operator_kit::Message;

use super::{
    Error, ErrorClass, Finding, InstanceId, OwnVm, Provider, Vm,
    places::{Former, Known},
};
use crate::{
    api::v1alpha1::{RELEASE_ABANDON, RELEASE_ANNOTATION},
    names::PLACES,
    settings::Endpoint,
};

/// The most VMs that are remembered as seen at the current endpoint. At this number the memory starts again. A forgotten VM costs
/// a question at each previous endpoint, and no more.
const MOST_SEEN: usize = 10_000;

/// An endpoint that the settings named before.
pub(super) struct PreviousEndpoint {
    pub(super) former: Former,
    /// Access to it, or why there is none.
    pub(super) provider: Result<Arc<dyn Provider>, Error>,
}

/// The VMs that were seen at one endpoint. They are at no other one.
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

/// A provider that reports a VM as absent only if it cannot be at another endpoint. The VM was seen here before, or it is at none of
/// the previous endpoints and the host here never changed. The provider only reads at the previous endpoints.
///
/// The age of a PeerPod proves nothing: cloud-api-adaptor keeps the settings with which it was started, so it may create VMs at a
/// previous endpoint long after the change.
pub(super) struct WithPrevious {
    pub(super) current: Arc<dyn Provider>,
    /// Where `current` looks.
    pub(super) endpoint: Endpoint,
    pub(super) known: Arc<Known>,
    pub(super) seen: Arc<Seen>,
    pub(super) previous: Vec<PreviousEndpoint>,
}

impl WithPrevious {
    /// Fails unless a VM that is not here is nowhere.
    async fn absent(&self, id: &InstanceId) -> Result<(), Error> {
        if let Some(moved) = self.known.moved {
            let there = another_host(moved, &self.known.key);
            return Err(self.not_here(ErrorClass::Invalid, &there));
        }
        let absent = join_all(self.previous.iter().map(|previous| self.absent_in(id, previous))).await;
        // Of several problems always the same one is told.
        absent.into_iter().collect()
    }

    /// Fails unless the VM is not at that previous endpoint either.
    async fn absent_in(&self, id: &InstanceId, previous: &PreviousEndpoint) -> Result<(), Error> {
        let PreviousEndpoint { former: Former { key, address, until, moved, .. }, provider } = previous;
        let setting = self.endpoint.setting;
        let described = match provider {
            Ok(provider) => provider.describe(id).await,
            Err(unavailable) => Err(unavailable.clone()),
        };
        let (class, there) = match described {
            Err(gone) if gone.class == ErrorClass::NotFound => {
                let Some(moved) = moved else { return Ok(()) };
                (ErrorClass::Invalid, another_host(*moved, key))
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
                let there = format!("the VM is there; set {setting} back, or delete the VM there by hand");
                (ErrorClass::Invalid, Message::public(there))
            }
        };
        let until = until.map(|until| format!(", until {until:.0}")).unwrap_or_default();
        let text =
            |before: &str, there: &str| format!("{setting} pointed to {before} before{until}: {there}");
        let public = text("another place", there.for_status());
        let full = text(address, there.for_log());
        Err(self.not_here(class, &Message::new(public, full)))
    }

    fn not_here(&self, class: ErrorClass, there: &Message) -> Error {
        let Endpoint { setting, address } = &self.endpoint;
        let public = format!("the VM is not where {setting} points now; {}", there.for_status());
        let full = format!("the VM is not at {address}, where {setting} points now; {}", there.for_log());
        Error::new(class, Message::new(public, full))
    }
}

/// Why a VM that is not at the endpoint with this key is not absent.
fn another_host(since: Timestamp, key: &str) -> Message {
    let advice = forget(key);
    Message::public(format!(
        "since {since:.0} that is another host than before; if the former host is gone for good, or only its UUID changed, {advice}"
    ))
}

/// How an administrator says that no VM is at an endpoint any more.
fn forget(key: &str) -> String {
    format!(
        "delete the entry {key} of the operator's ConfigMap {PLACES}, or annotate the PeerPod \
         {RELEASE_ANNOTATION}={RELEASE_ABANDON}"
    )
}

#[async_trait]
impl Provider for WithPrevious {
    async fn describe(&self, id: &InstanceId) -> Result<Vm, Error> {
        let described = self.current.describe(id).await;
        match &described {
            Ok(_) => self.seen.add(id),
            Err(gone) if gone.class == ErrorClass::NotFound && !self.seen.has(id) => self.absent(id).await?,
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

    /// A cloud that answers so when it is asked for a VM.
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

    const T: Timestamp = Timestamp::constant(1_790_000_000, 0);

    fn former(moved: Option<Timestamp>, answer: Result<Vm, Error>) -> PreviousEndpoint {
        let former = Former {
            key: "libvirt-1".to_owned(),
            address: "qemu+ssh://host-1:22/system".to_owned(),
            host: None,
            moved,
            until: Some(T),
        };
        PreviousEndpoint { former, provider: Ok(Arc::new(Answers(answer))) }
    }

    /// An endpoint without the VM, after these.
    fn after(moved: Option<Timestamp>, previous: Vec<PreviousEndpoint>) -> WithPrevious {
        let endpoint = Endpoint { setting: "LIBVIRT_URI", address: "qemu+ssh://host-2:22/system".to_owned() };
        let (host, key) = (None, "libvirt-2".to_owned());
        let known = Known { host, moved, key, former: Vec::new() };
        WithPrevious {
            current: Arc::new(Answers(Err(gone()))),
            endpoint,
            known: Arc::new(known),
            seen: Arc::default(),
            previous,
        }
    }

    fn gone() -> Error {
        Error::new(ErrorClass::NotFound, "")
    }

    fn id() -> InstanceId {
        InstanceId::parse("aws", "i-1").unwrap()
    }

    fn vm() -> Vm {
        Vm { id: id(), name: "a".into(), marked: true, created: None, own_disks: Vec::new() }
    }

    #[tokio::test]
    async fn the_places_are_named_in_the_log_alone() {
        let failed = || Error::new(ErrorClass::Transient, Message::new("no answer", "no answer of host-1"));
        for (moved, previous, class, says) in [
            (None, former(None, Ok(vm())), ErrorClass::Invalid, "the VM is there; set LIBVIRT_URI back"),
            (None, former(None, Err(failed())), ErrorClass::Transient, "cannot find out"),
            (None, former(Some(T), Err(gone())), ErrorClass::Invalid, "delete the entry libvirt-1 of"),
            (Some(T), former(None, Err(gone())), ErrorClass::Invalid, "delete the entry libvirt-2 of"),
        ] {
            let error = after(moved, vec![previous]).describe(&id()).await.unwrap_err();
            let (public, full) = (error.message.for_status(), error.message.for_log());
            assert!(error.class == class && public.contains(says), "{error:?}");
            assert!(public.contains("2026-09-21T14:13:20Z"), "{public}");
            assert!(!public.contains("host-") && !public.contains("qemu"), "{public}");
            assert!(full.contains("not at qemu+ssh://host-2:22/system, where"), "{full}");
        }
    }

    #[tokio::test]
    async fn a_vm_is_absent_that_is_nowhere_or_was_seen_here() {
        let nowhere = after(None, vec![former(None, Err(gone())), former(None, Err(gone()))]);
        assert_eq!(nowhere.describe(&id()).await.unwrap_err().class, ErrorClass::NotFound);
        let seen = after(Some(T), vec![former(None, Ok(vm()))]);
        seen.seen.add(&id());
        assert_eq!(seen.describe(&id()).await.unwrap_err().class, ErrorClass::NotFound);
    }
}
