//! The leader keeps the places *(client required)*.

use std::{collections::BTreeMap, convert::Infallible, pin::pin, sync::Arc, time::Duration};

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{Patch, PatchParams},
    runtime::watcher,
};
use operator_kit::{
    Backoff, Leadership,
    api_call::{ApiError, bounded},
    watch::backing_off,
};
use serde_json::json;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, timeout},
};
use tracing::warn;

use super::{
    Answer, KnownPlaces, messages,
    records::{Identity, Records, key},
    term::{Asked, TermState},
};
use crate::{
    api::v1alpha1::FIELD_MANAGER,
    names::PLACES,
    provider::{CloudEndpoint, CloudSettings, CloudsContext, Error, Provider, cloud_settings::PossiblePlace},
    settings::{Endpoint, Snapshot, State},
};

/// The creation has a field manager of its own, so that it never removes what another process wrote meanwhile.
const CREATOR: &str = "peerpod-operator-places";

/// How long the first read may take before it counts as failed.
const READ_PATIENCE: Duration = Duration::from_secs(10);

/// How long the cloud may take to say who answers. It is longer than the two requests take at most after which a login may be refused: one
/// that is cut off before leaves no note that the password was refused. It is shorter than the time that any call may take.
const IDENTITY_PATIENCE: Duration = Duration::from_secs(55);

/// The longest pause between attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The longest pause before an unexpected identity is asked for again: several hosts may share an address.
const LONGEST_DOUBT: Duration = Duration::from_secs(300);

/// Keeps the places while this process leads.
pub(super) struct Keeper {
    api: Api<ConfigMap>,
    /// The `ConfigMap`, for people.
    name: String,
    open: Open,
    settings: CloudSettings,
    leadership: Leadership,
    /// Where it says what it found out.
    answer: watch::Sender<Option<Answer>>,
    /// Notified if another identity answers at the address.
    identity_changed: Arc<Notify>,
    backoff: Backoff<()>,
    doubts: Backoff<()>,
}

/// Opens the provider of settings, to be asked who answers.
pub(super) type Open = Box<dyn Fn(&Snapshot) -> Result<Arc<dyn Provider>, Error> + Send + Sync>;

/// Why there are no known places yet.
enum NotYet {
    /// The watch has not brought the `ConfigMap`, or not what was last written to it.
    Watch,
    /// A later attempt may succeed without a change.
    Transient(Error),
    /// Only a change helps.
    Permanent(Error),
}

impl Keeper {
    pub(super) fn new(
        context: &CloudsContext,
        settings: CloudSettings,
        open: Open,
        answer: watch::Sender<Option<Answer>>,
        identity_changed: Arc<Notify>,
    ) -> Self {
        let CloudsContext { client, namespace, leadership, .. } = context;
        let (api, name) = (Api::namespaced(client.clone(), namespace), format!("{namespace}/{PLACES}"));
        let leadership = leadership.clone();
        let backoff = Backoff::new(Duration::from_secs(1), LONGEST_PAUSE);
        let doubts = Backoff::new(Duration::from_secs(1), LONGEST_DOUBT);
        Self { api, name, open, settings, leadership, answer, identity_changed, backoff, doubts }
    }

    /// Works while this process leads, without end.
    pub(super) async fn run(self) -> Infallible {
        self.leadership.each_term(|| Box::pin(self.lead()), || ()).await
    }

    /// Does the leader's work, without end.
    async fn lead(&self) {
        let mut settings = self.settings.state.clone();
        let mut objects = pin!(backing_off(watcher::watch_object(self.api.clone(), PLACES)));
        let mut term = TermState::default();
        self.backoff.succeeded(&());
        loop {
            let pause = self.step(&mut term, &mut settings).await;
            tokio::select! {
                Some(object) = objects.next() => term.take(object, &self.name),
                Ok(()) = settings.changed() => {}
                () = self.settings.until_reported(|_| true) => {}
                () = self.identity_changed.notified() => self.doubt(&mut term),
                () = sleep(pause) => term.waited(&self.name),
            }
        }
    }

    /// Notes that it must be asked again who answers: soon, or later and later while others answer in turn.
    fn doubt(&self, term: &mut TermState) {
        if term.doubt.is_some() {
            return;
        }
        let now = Instant::now();
        if term.last_doubt.is_none_or(|last| now - last > 2 * LONGEST_DOUBT) {
            self.doubts.succeeded(&());
        }
        term.last_doubt = Some(now);
        term.doubt = Some(now + self.doubts.failed(&()));
    }

    /// Does the next step. Returns when to look again if nothing changes.
    async fn step(&self, term: &mut TermState, settings: &mut watch::Receiver<State>) -> Duration {
        let state = settings.borrow_and_update().clone();
        // What the settings name is recorded even if deletion cannot use them.
        let named = self.settings.named(&state);
        if named.is_none() {
            self.withdraw();
        }
        let recorded = self.note_places(term, &state, named.as_ref());
        let is_unrecorded =
            |(cloud, endpoint): &CloudEndpoint| recorded.of(&key(cloud, &endpoint.address)).is_none();
        let work = async {
            self.record(term, named.as_ref()).await?;
            match &named {
                Some((snapshot, endpoint)) => self.find_out(term, snapshot, endpoint).await.map(Some),
                None => Ok(None),
            }
        };
        let found = tokio::select! {
            found = work => found,
            // The result would be for former settings.
            Ok(()) = settings.changed() => return Duration::ZERO,
            // One that is recorded, or about to be, may be reported again and again. A login must not be cut off each time.
            () = self.settings.until_reported(is_unrecorded) => return Duration::ZERO,
        };
        let (outcome, pause) = self.outcome(term, found);
        if let Some(outcome) = outcome {
            self.publish(named.map(|(_, endpoint)| endpoint), outcome);
        }
        pause
    }

    /// Notes wherever VMs may be. Returns the places that are recorded or about to be.
    fn note_places(
        &self,
        term: &mut TermState,
        state: &State,
        named: Option<&(Arc<Snapshot>, Endpoint)>,
    ) -> Records {
        let in_force =
            named.map(|(snapshot, endpoint)| PossiblePlace::At(snapshot.cloud(), endpoint.clone()));
        let reported = self.settings.take_reported().into_iter();
        let reported = reported.map(|(cloud, endpoint)| PossiblePlace::At(cloud, endpoint));
        reported.chain(in_force).chain(self.settings.unplaced(state)).for_each(|place| term.note(place));
        let recorded = term.object.as_ref().and_then(|object| self.read(object).ok()).unwrap_or_default();
        term.with_unrecorded(&recorded, Timestamp::now())
    }

    /// What to publish, if anything is decided, and when to look again if nothing changes.
    fn outcome(
        &self,
        term: &TermState,
        found: Result<Option<KnownPlaces>, NotYet>,
    ) -> (Option<Result<Arc<KnownPlaces>, Error>>, Duration) {
        match found {
            // The settings report their own problem. Nothing is decided by them.
            Ok(None) => (None, LONGEST_PAUSE),
            Ok(Some(known)) => {
                self.backoff.succeeded(&());
                let until = |at: Instant| at.saturating_duration_since(Instant::now());
                let pause = term.doubt.map_or(LONGEST_PAUSE, |at| LONGEST_PAUSE.min(until(at)));
                (Some(Ok(Arc::new(known))), pause)
            }
            Err(NotYet::Watch) => match &term.unreadable {
                // A watch that fails brings nothing to wait for.
                Some(unreadable) => (Some(Err(unreadable.clone())), self.backoff.failed(&())),
                None => (None, READ_PATIENCE),
            },
            Err(NotYet::Transient(error)) => (Some(Err(error)), self.backoff.failed(&())),
            Err(NotYet::Permanent(error)) => (Some(Err(error)), LONGEST_PAUSE),
        }
    }

    /// Publishes the outcome for the place that the settings name, and logs a new failure. If they name none, it only logs.
    fn publish(&self, endpoint: Option<Endpoint>, outcome: Result<Arc<KnownPlaces>, Error>) {
        let log = |outcome: &Result<_, Error>| {
            if let Err(error) = outcome {
                warn!(places = self.name, "{}", error.message.for_log());
            }
        };
        let Some(endpoint) = endpoint else { return log(&outcome) };
        let answer = Answer { term: self.leadership.term(), endpoint, outcome };
        self.answer.send_if_modified(|before| {
            // An equal answer stays as the object that it is: what was opened for it is used on.
            if before.as_ref() == Some(&answer) {
                return false;
            }
            // PeerPods that had such a failure try again by themselves.
            let is_news = !before.as_ref().is_some_and(|it| it.fails_like(&answer));
            if is_news {
                log(&answer.outcome);
            }
            *before = Some(answer);
            is_news
        });
    }

    /// Writes the place that the settings name, and wherever else VMs may be, if that is not recorded. It asks no cloud first: that takes
    /// time, in which the settings may be set back.
    async fn record(
        &self,
        term: &mut TermState,
        named: Option<&(Arc<Snapshot>, Endpoint)>,
    ) -> Result<(), NotYet> {
        if term.unrecorded.is_empty() {
            return Ok(());
        }
        let Some(object) = &term.object else { return Err(NotYet::Watch) };
        let (before, now) = (self.read(object)?, Timestamp::now());
        let mut records = term.with_unrecorded(&before, now);
        if let Some((snapshot, endpoint)) = named {
            records = records.naming(snapshot.cloud(), endpoint, None, now);
        }
        let is_news = records != before;
        if is_news {
            self.withdraw();
            let written = self.save(object, &records, &before).await?;
            messages::announce_former(&self.name, &before, &records);
            term.wrote(written);
        }
        term.unrecorded.clear();
        // Also if another leader wrote it, or if the answer to the write was lost: administrators wait for this line.
        if let Some((snapshot, endpoint)) = named
            && (is_news || term.announced.as_ref() != Some(endpoint))
        {
            messages::announce(&self.name, &key(snapshot.cloud(), &endpoint.address), endpoint);
            term.announced = Some(endpoint.clone());
        }
        Ok(())
    }

    /// Takes back the last answer: it does not have that place, and would count as soon as the settings are set back. By an error nothing
    /// is decided. It stays, so that it is reported once while attempts fail.
    fn withdraw(&self) {
        self.answer.send_if_modified(|answer| answer.take_if(|it| it.outcome.is_ok()).is_some());
    }

    /// The places. The identity of the one that the settings name is written first if it is new.
    async fn find_out(
        &self,
        term: &mut TermState,
        snapshot: &Arc<Snapshot>,
        endpoint: &Endpoint,
    ) -> Result<KnownPlaces, NotYet> {
        let Some(object) = &term.object else { return Err(NotYet::Watch) };
        let before = self.read(object)?;
        let cloud = snapshot.cloud();
        let key = key(cloud, &endpoint.address);
        let doubted = term.doubt.is_some_and(|at| at <= Instant::now());
        let recorded = before.of(&key).and_then(|record| record.identity.clone()).filter(|_| !doubted);
        let answered = term.answered.take().filter(|(asked, _)| !doubted && Arc::ptr_eq(asked, snapshot));
        let identity = match recorded.or(answered.map(|(_, identity)| identity)) {
            Some(identity) => Ok(identity),
            None => self.ask(&mut term.refused, snapshot).await,
        };
        let records = before.naming(cloud, endpoint, identity.as_ref().ok(), Timestamp::now());
        if records != before {
            let written = self.save(object, &records, &before).await;
            if let (Err(NotYet::Watch), Ok(identity)) = (&written, &identity) {
                term.answered = Some((Arc::clone(snapshot), identity.clone()));
            }
            let written = written?;
            let moved_at = |records: &Records| records.of(&key).and_then(|it| it.moved_at);
            if moved_at(&records) != moved_at(&before) {
                messages::announce_move(&self.name, &key, endpoint);
            }
            term.wrote(written);
        }
        // Only now: VMs may be in the place that is one too many, also after the settings were set back.
        if records.is_full(cloud) {
            return Err(NotYet::Permanent(messages::full(endpoint, &self.name)));
        }
        // A place with an unknown identity can be recorded, but the operator decides nothing by it.
        let identity = identity.map_err(NotYet::Transient)?;
        term.doubt = term.doubt.filter(|_| !doubted);
        Ok(KnownPlaces::new(&records, cloud, key, &identity))
    }

    /// What the `ConfigMap` records.
    fn read(&self, object: &ConfigMap) -> Result<Records, NotYet> {
        let empty = BTreeMap::new();
        let read = Records::read(object.data.as_ref().unwrap_or(&empty));
        read.map_err(|unreadable| NotYet::Permanent(messages::unreadable(&unreadable, &self.name)))
    }

    /// Writes the changes to the `ConfigMap` that was read.
    async fn save(
        &self,
        object: &ConfigMap,
        records: &Records,
        before: &Records,
    ) -> Result<ConfigMap, NotYet> {
        let unwritable =
            |error: ApiError| NotYet::Transient(messages::failed("write", &self.name, error.code(), &error));
        let Some(version) = &object.metadata.resource_version else {
            self.create().await.map_err(unwritable)?;
            return Err(NotYet::Watch);
        };
        match self.write(records, before, version).await {
            // The watch brings what another process wrote.
            Err(error) if error.is_conflict() => Err(NotYet::Watch),
            written => written.map_err(unwritable),
        }
    }

    /// Asks who answers at the place that the settings name.
    async fn ask(&self, refused: &mut Option<Asked>, snapshot: &Arc<Snapshot>) -> Result<Identity, Error> {
        let provider = match refused.take() {
            Some((asked, provider)) if Arc::ptr_eq(&asked, snapshot) => provider,
            _ => (self.open)(snapshot)?,
        };
        let identity = timeout(IDENTITY_PATIENCE, provider.identity())
            .await
            .unwrap_or_else(|_| Err(messages::no_identity(IDENTITY_PATIENCE)));
        if identity.is_err() {
            *refused = Some((Arc::clone(snapshot), provider));
        }
        identity.map(Identity::new)
    }

    /// Creates an empty `ConfigMap`. Another process may have created it and written to it, so the watch brings it.
    async fn create(&self) -> Result<ConfigMap, ApiError> {
        let empty = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": PLACES } });
        let params = PatchParams::apply(CREATOR).force();
        bounded(self.api.patch(PLACES, &params, &Patch::Apply(empty))).await
    }

    /// Writes the changes, if the `ConfigMap` still has the version that was read.
    async fn write(&self, records: &Records, before: &Records, version: &str) -> Result<ConfigMap, ApiError> {
        let data = records.changed_since(before).map_err(kube::Error::SerdeError)?;
        let patch = json!({ "metadata": { "resourceVersion": version }, "data": data });
        let params = PatchParams::apply(FIELD_MANAGER);
        bounded(self.api.patch(PLACES, &params, &Patch::Merge(patch))).await
    }
}

#[cfg(test)]
mod tests;
