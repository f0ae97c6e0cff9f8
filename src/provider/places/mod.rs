//! The places in which a cloud's VMs may be, kept in a `ConfigMap` of the operator.
//!
//! cloud-api-adaptor makes VMs at the place that its settings named when it started. The operator asks at the place that the
//! settings in force name. A cloud that is asked in the wrong place answers that the VM does not exist. So the operator keeps
//! every place that the settings have named, for the next process and the next leader. A VM is absent only if it is in none of
//! them.
//!
//! ```text
//! records.rs   the entries, and what changes when the settings name a place (pure)
//! keeper.rs    the leader reads the ConfigMap, writes the entry, asks who answers there, and adds that
//! term.rs      what it has seen since it leads, and has not written yet
//! messages.rs  what it logs, and its errors
//! by_hand.rs   what the record says to the command `sweep`
//! ```
//!
//! A place is an address and who answers there, its [identity](super::Provider::identity): a host, an account or a pool. The settings
//! name an address as their [`Endpoint`]. `KnownPlaces` has the place that they name now and each `FormerPlace`. A provider is opened at a
//! [`RecordedPlace`](super::cloud::RecordedPlace), and `former_places.rs` asks in all of them.
//!
//! cloud-api-adaptor may use settings that the operator cannot use, and make VMs where they point. If the operator cannot read where
//! that is, the record gets a place without an address. A VM that no place has may be there until an administrator deletes that entry.
//!
//! The mounted files change about a minute after their `ConfigMap`, and cloud-api-adaptor may start meanwhile. So the controller of
//! PeerPodConfigs reports where cloud-api-adaptor's settings point if the settings in force do not name that.
//!
//! A place is written before the operator decides anything by it, and before it asks who answers there. A write that fails is tried
//! again, also after the settings have been set back: cloud-api-adaptor may have started meanwhile. While the operator cannot read or write
//! the places, it deletes nothing, and it releases nothing unless an administrator says so.

#[cfg(feature = "cli")]
mod by_hand;
mod keeper;
mod messages;
mod records;
mod term;

use std::{convert::Infallible, sync::Arc};

use futures::Stream;
use jiff::Timestamp;
use operator_kit::{Leadership, Permission, changes::changes};
use tokio::sync::{Notify, watch};

#[cfg(feature = "cli")]
pub(super) use self::by_hand::has_moved;
use self::{
    keeper::Keeper,
    records::{Identity, Records},
};
use super::{CloudSettings, CloudsContext, Error, Limits, Opening, cloud_label, decorate};
use crate::{
    names,
    settings::{Endpoint, Snapshot},
};

/// The permissions that the leader needs to keep the places.
pub const PERMISSIONS: &[Permission] =
    &[Permission::new("", &["configmaps"], &["list", "watch", "create", "patch"]).named(&[names::PLACES])];

/// The places in which VMs may be. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Places {
    answer: watch::Receiver<Option<Answer>>,
    leadership: Leadership,
    identity_changed: Arc<Notify>,
    limits: Limits,
}

/// What is known about the place that the settings name, and about those before.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Answer {
    /// The term of leadership that found it out.
    term: u64,
    endpoint: Endpoint,
    outcome: Result<Arc<KnownPlaces>, Error>,
}

impl Answer {
    /// Whether both are failures of one kind. Their texts may differ, as each may name a request or the time that is left.
    fn fails_like(&self, other: &Self) -> bool {
        let class = |answer: &Self| answer.outcome.as_ref().err().map(|error| error.class.as_str());
        class(self).is_some()
            && (class(self), self.term, &self.endpoint) == (class(other), other.term, &other.endpoint)
    }
}

/// Every place that a VM may be in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KnownPlaces {
    /// Who answers at the settings' place; `None` if the cloud has no such thing.
    pub(super) identity: Option<String>,
    /// Since when another one answers than before, if it ever changed.
    pub(super) moved_at: Option<Timestamp>,
    /// The key of the place's entry.
    pub(super) key: String,
    /// The places that the settings named before.
    pub(super) former: Vec<FormerPlace>,
}

impl KnownPlaces {
    /// The places of a cloud by these records, while the settings name the one with this key, where this identity answers.
    fn new(records: &Records, cloud: &str, key: String, identity: &Identity) -> Self {
        let former = records.former(cloud, &key).map(|(key, record)| FormerPlace {
            key: key.to_owned(),
            address: record.address.clone(),
            identity: record.identity.as_ref().and_then(Identity::name).map(ToOwned::to_owned),
            moved_at: record.moved_at,
            until: record.until,
        });
        Self {
            identity: identity.name().map(ToOwned::to_owned),
            moved_at: records.of(&key).and_then(|record| record.moved_at),
            former: former.collect(),
            key,
        }
    }
}

/// A place that the settings named before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FormerPlace {
    pub(super) key: String,
    /// Where it is. Empty if that could not be read.
    pub(super) address: String,
    /// Who answered there; `None` if nobody has answered yet, or if the cloud has no such thing.
    pub(super) identity: Option<String>,
    pub(super) moved_at: Option<Timestamp>,
    pub(super) until: Option<Timestamp>,
}

impl Places {
    /// The places that these settings name, and the work of keeping them, without end. Only the leader does that work.
    pub(super) fn keep(
        settings: CloudSettings,
        context: &CloudsContext,
    ) -> (Self, impl Future<Output = Infallible> + Send + use<>) {
        let (openers, metrics) = (context.openers.clone(), context.metrics.clone());
        let (sender, answer) = watch::channel(None);
        let (identity_changed, limits) = (Arc::new(Notify::new()), Limits::default());
        let within = limits.clone();
        let open = move |snapshot: &Snapshot| {
            let provider = openers.open(snapshot, Opening::new(1))?;
            Ok(decorate(provider, cloud_label(snapshot.cloud()), within.clone(), metrics.clone()))
        };
        let keeper = Keeper::new(context, settings, Box::new(open), sender, Arc::clone(&identity_changed));
        let leadership = context.leadership.clone();
        (Self { answer, leadership, identity_changed, limits }, keeper.run())
    }

    /// Places with this endpoint alone, whichever identity answers there.
    #[cfg(test)]
    pub(super) fn only(endpoint: Endpoint) -> Self {
        Self::after(endpoint, Vec::new())
    }

    /// The same after these places.
    #[cfg(test)]
    pub(super) fn after(endpoint: Endpoint, former: Vec<FormerPlace>) -> Self {
        Self::of(endpoint, KnownPlaces { identity: None, moved_at: None, key: "key".to_owned(), former })
    }

    /// This endpoint, where another identity answers than before.
    #[cfg(test)]
    pub(super) fn moved(endpoint: Endpoint) -> Self {
        let (key, moved_at) = ("key".to_owned(), Some(Timestamp::UNIX_EPOCH));
        Self::of(endpoint, KnownPlaces { identity: None, moved_at, key, former: Vec::new() })
    }

    #[cfg(test)]
    fn of(endpoint: Endpoint, known: KnownPlaces) -> Self {
        let leadership = Leadership::unlimited();
        let answer = Answer { term: leadership.term(), endpoint, outcome: Ok(Arc::new(known)) };
        let (answer, identity_changed) = (watch::channel(Some(answer)).1, Arc::default());
        Self { answer, leadership, identity_changed, limits: Limits::default() }
    }

    /// The known places while the settings name this one. `None`: the leader has not found them out yet.
    pub(super) fn known(&self, endpoint: &Endpoint) -> Option<Result<Arc<KnownPlaces>, Error>> {
        let answer = self.answer.borrow();
        let answer =
            answer.as_ref().filter(|it| it.endpoint == *endpoint && it.term == self.leadership.term());
        answer.map(|answer| answer.outcome.clone())
    }

    /// To be notified if another identity than the known one answers at the settings' place.
    pub(super) fn identity_changed(&self) -> Arc<Notify> {
        Arc::clone(&self.identity_changed)
    }

    /// The limits of the calls that ask who answers there. All other calls to the cloud share them.
    pub(super) fn limits(&self) -> Limits {
        self.limits.clone()
    }

    /// Yields when what is known changes.
    pub(super) fn changes(&self) -> impl Stream<Item = ()> + Send + use<> {
        let mut answer = self.answer.clone();
        answer.mark_unchanged();
        changes(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_for_its_endpoint_and_its_term_only() {
        let here = Endpoint { setting: "REGION", address: "here".to_owned() };
        let places = Places::only(here.clone());
        assert!(places.known(&here).is_some());
        let there = Endpoint { address: "there".to_owned(), ..here.clone() };
        assert!(places.known(&there).is_none(), "the settings name another place");
        let answer = places.answer.borrow().clone().map(|it| Answer { term: it.term + 1, ..it });
        let places = Places { answer: watch::channel(answer).1, ..places };
        assert!(places.known(&here).is_none(), "another process may have led meanwhile, by other settings");
    }
}
