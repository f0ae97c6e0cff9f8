//! The places in which a cloud's VMs may be, kept in a `ConfigMap` of the operator's own.
//!
//! cloud-api-adaptor makes VMs where the settings with which it was started point. The operator asks where the settings in
//! force point, and a cloud that is asked in the wrong place answers that the VM does not exist. So every place that the
//! settings have named is kept, for the next process and the next leader: a VM is absent only if it is in none of them.
//!
//! ```text
//! records.rs  the entries, and what changes when the settings name a place (pure)
//! keeper.rs   the leader reads the ConfigMap, asks which host is there, and writes the entry
//! ```
//!
//! A place is written before anything is decided by it. While the places cannot be read or written, nothing is deleted and
//! nothing is released, but by an administrator's word.

mod keeper;
mod records;

use std::sync::Arc;

use futures::Stream;
use jiff::Timestamp;
use kube::Client;
use operator_kit::{Leadership, Permission, changes::changes};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use self::keeper::Keeper;
use super::{CloudSettings, Error, Openers};
use crate::{names, settings::Endpoint};

/// What the leader may do to keep the places.
pub const PERMISSIONS: &[Permission] =
    &[Permission::new("", &["configmaps"], &["list", "watch", "create", "patch"]).named(&[names::PLACES])];

/// The places in which VMs may be. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Places {
    answer: watch::Receiver<Option<Answer>>,
    leadership: Leadership,
    moved: Arc<Notify>,
}

/// What is known about the place that the settings name, and about those before.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Answer {
    /// The term of leadership in which it was found out.
    term: u64,
    endpoint: Endpoint,
    outcome: Result<Arc<Known>, Error>,
}

/// Every place that a VM may be in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    /// What the host at the settings' place is called; none where the cloud has no such name.
    pub(super) host: Option<String>,
    /// Since when that is another host than before, if it ever was.
    pub(super) moved: Option<Timestamp>,
    /// The key of the place's entry.
    pub(super) key: String,
    /// The places that the settings named before.
    pub(super) former: Vec<Former>,
}

/// A place that the settings named before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Former {
    pub(super) key: String,
    pub(super) address: String,
    pub(super) host: Option<String>,
    pub(super) moved: Option<Timestamp>,
    pub(super) until: Option<Timestamp>,
}

impl Places {
    /// The places, and the work of keeping them in this namespace, which ends with `stop`. It is done while this process
    /// leads.
    pub fn keep(
        client: Client,
        namespace: &str,
        openers: Openers,
        settings: CloudSettings,
        leadership: Leadership,
        stop: CancellationToken,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (sender, answer) = watch::channel(None);
        let moved = Arc::new(Notify::new());
        let keeper =
            Keeper::new(client, namespace, openers, settings, leadership.clone(), sender, Arc::clone(&moved));
        (Self { answer, leadership, moved }, keeper.run(stop))
    }

    /// Places of which this endpoint is the only one, on whichever host.
    #[cfg(test)]
    pub(super) fn only(endpoint: Endpoint) -> Self {
        let leadership = Leadership::unlimited();
        let known = Known { host: None, moved: None, key: "key".to_owned(), former: Vec::new() };
        let answer = Answer { term: leadership.term(), endpoint, outcome: Ok(Arc::new(known)) };
        Self { answer: watch::channel(Some(answer)).1, leadership, moved: Arc::default() }
    }

    /// What is known while the settings name this place. `None`: the leader has not found it out yet.
    pub(super) fn known(&self, endpoint: &Endpoint) -> Option<Result<Arc<Known>, Error>> {
        let answer = self.answer.borrow();
        let answer =
            answer.as_ref().filter(|it| it.endpoint == *endpoint && it.term == self.leadership.term());
        answer.map(|answer| answer.outcome.clone())
    }

    /// To be told where the settings' place leads to another host than is known.
    pub(super) fn moved(&self) -> Arc<Notify> {
        Arc::clone(&self.moved)
    }

    /// Yields whenever something else is known.
    pub(super) fn changes(&self) -> impl Stream<Item = ()> + Send + use<> {
        let mut answer = self.answer.clone();
        answer.mark_unchanged();
        changes(answer)
    }
}
