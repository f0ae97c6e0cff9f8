//! Writes the status of an object and its events *(client required)*.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    time::{Duration, Instant},
};

use json_patch::{Patch as JsonPatch, PatchOperation, ReplaceOperation, TestOperation, jsonptr::PointerBuf};
use kube::{
    Client, Resource, ResourceExt,
    api::{ObjectMeta, Patch, PatchParams},
    core::{Request, object::HasStatus},
    runtime::events::{Event, EventType, Recorder},
};
use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tracing::{debug, warn};

use crate::{
    api_call::{self, ApiError, Written},
    projection::{Projection, reading},
    text::cut,
};

/// The API server's limit for an event's note, in bytes.
const NOTE_LIMIT: usize = 1024;

/// After how many events the memory of published events begins anew. kube's recorder keeps each for 6 minutes, to count repeats of it
/// instead of publishing them, and looks through all of them at each event. Thousands of objects may have an event each at once.
/// A repeat of one that is remembered counts as none.
const REMEMBERED_EVENTS: usize = 1000;

/// Of how many objects the last written status is remembered.
const REMEMBERED_STATUSES: usize = 4096;

/// A cache shows a write within less time. One that still shows the copy from before it shows a cluster that was restored from a backup.
const CACHE_LAG: Duration = Duration::from_secs(60);

/// The events that were published, as far as they are remembered.
struct Published {
    recorder: Recorder,
    /// The hash of the note, by the hash of the object and the reason. The recorder compares no notes: it would count an event with
    /// another note as a repeat, and show the first note.
    notes: HashMap<u64, u64>,
}

impl Published {
    fn nothing(client: &Client, field_manager: &'static str) -> Self {
        Self { recorder: Recorder::new(client.clone(), field_manager.into()), notes: HashMap::new() }
    }
}

/// The last write of a status.
struct Last {
    hash: u64,
    /// The resource version of the copy that the status was written for, and when; `None` until the write has succeeded.
    done: Option<(Option<String>, Instant)>,
}

/// Writes the status and the events of a controller's objects.
///
/// It needs the rights to `patch` their subresource `status`, and to `create` and `patch` `events` of the group `events.k8s.io`.
pub struct Publisher {
    /// For objects, of which it reads a part.
    client: Client,
    /// For events.
    whole: Client,
    published: Mutex<Published>,
    /// What was written last, by the uid of the object.
    written: Mutex<HashMap<String, Last>>,
    field_manager: &'static str,
    /// What the controller does with them, for its events.
    action: &'static str,
}

impl Publisher {
    /// `projection`: what is read of the objects, their whole status among it: one that is read in part differs from what is
    /// written, and so is written each time. `field_manager` writes the status and reports the events, each about this `action`.
    pub fn new(
        client: &Client,
        projection: &'static Projection,
        field_manager: &'static str,
        action: &'static str,
    ) -> Self {
        let published = Mutex::new(Published::nothing(client, field_manager));
        let written = Mutex::default();
        Self {
            client: reading(client, projection),
            whole: client.clone(),
            published,
            written,
            field_manager,
            action,
        }
    }

    /// Makes the status be this, and nothing else.
    pub async fn status<K>(&self, object: &K, status: &K::Status) -> Result<(), ApiError>
    where
        K: Resource<DynamicType = ()> + HasStatus<Status: Serialize> + DeserializeOwned,
    {
        let name = object.name_any();
        // The uid ensures that the status is not written to a later object of the same name.
        let patch = json!({
            "apiVersion": K::api_version(&()),
            "kind": K::kind(&()),
            "metadata": { "name": name, "uid": object.uid() },
            "status": status,
        });
        let params = PatchParams::apply(self.field_manager);
        let (forced, patch) = (params.clone().force(), Patch::Apply(patch));
        let answer = self.patch(object, &forced, &patch).await;
        // If it is gone, or another object has its name, there is no status to write.
        let Some(applied) = api_call::if_unchanged(&name, answer)? else { return Ok(()) };
        // Compared as JSON: times differ in digits that are not written.
        let status = json!(status);
        if json!(applied.status()) == status {
            return Ok(());
        }
        // A condition that has another field manager, too, such as a program that restored a backup, stays after an apply alone. Only a
        // later object of the same name must not get this status. Other changes since the apply do not matter: a test for them would
        // leave the condition there, and they may start no reconcile that tries again.
        let replaced = Patch::Json(JsonPatch(vec![
            PatchOperation::Test(TestOperation {
                path: PointerBuf::from_tokens(["metadata", "uid"]),
                value: json!(object.uid()),
            }),
            PatchOperation::Replace(ReplaceOperation {
                path: PointerBuf::from_tokens(["status"]),
                value: status,
            }),
        ]));
        Written::by(&name, self.patch(object, &params, &replaced).await).map(drop)
    }

    /// Patches the status of an object, in a namespace or of the whole cluster.
    async fn patch<K>(&self, object: &K, params: &PatchParams, patch: &Patch<Value>) -> Result<K, ApiError>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let objects = Request::new(K::url_path(&(), object.meta().namespace.as_deref()));
        let patch = objects.patch_subresource("status", &object.name_any(), params, patch);
        api_call::bounded(self.client.request(patch.map_err(kube::Error::BuildRequest)?)).await
    }

    /// Writes the status of an object by [`status`](Self::status), if the object has another one as far as is known: the object may have
    /// been read before the last write.
    pub async fn status_if_changed<K>(&self, object: &K, status: &K::Status) -> Result<(), ApiError>
    where
        K: Resource<DynamicType = ()> + HasStatus<Status: Serialize + PartialEq> + DeserializeOwned,
    {
        let (metadata, hash) = (object.meta(), hash(status));
        if self.has_written(metadata, hash).unwrap_or(object.status() == Some(status)) {
            return Ok(());
        }
        self.remember(metadata, Last { hash, done: None });
        self.status(object, status).await?;
        let done = Some((metadata.resource_version.clone(), Instant::now()));
        self.remember(metadata, Last { hash, done });
        Ok(())
    }

    /// Whether the status with this hash was written last, and for this copy of the object: then the cache does not show the result yet.
    /// `None` if only the copy tells whether a write is due.
    fn has_written(&self, metadata: &ObjectMeta, hash: u64) -> Option<bool> {
        let written = self.written.lock();
        let last = written.get(metadata.uid.as_deref().unwrap_or_default())?;
        let Some((of, at)) = last.done.as_ref().filter(|_| last.hash == hash) else {
            // The copy may have this status because it was read before another one was written. A write that failed may have changed it.
            return Some(false);
        };
        let is_same = of.is_some() && *of == metadata.resource_version && at.elapsed() < CACHE_LAG;
        is_same.then_some(true)
    }

    fn remember(&self, metadata: &ObjectMeta, last: Last) {
        let mut written = self.written.lock();
        if written.len() >= REMEMBERED_STATUSES {
            // Of objects that were deleted since, no cache shows anything.
            *written = HashMap::new();
        }
        written.insert(metadata.uid.clone().unwrap_or_default(), last);
    }

    /// The recorder for one more event. It cannot forget one event alone: with another note the memory of all begins anew.
    fn recorder(&self, about: u64, note: u64) -> Recorder {
        let mut published = self.published.lock();
        let fits = match published.notes.get(&about) {
            Some(before) => *before == note,
            None => published.notes.len() < REMEMBERED_EVENTS,
        };
        if !fits {
            *published = Published::nothing(&self.whole, self.field_manager);
        }
        published.notes.insert(about, note);
        published.recorder.clone()
    }

    /// Publishes an event. If the last one about this object, with this reason, had the same note and was at most 6 minutes ago, that one
    /// is counted once more. Up to 1,000 are remembered, until one of them has another note. An event that cannot be published is
    /// logged; a terminating namespace accepts none, and an object with a name of more than 236 characters has none.
    pub async fn event(
        &self,
        object: &impl Resource<DynamicType = ()>,
        type_: EventType,
        reason: &str,
        note: &str,
    ) {
        let (object, note) = (object.object_ref(&()), cut(note, NOTE_LIMIT));
        let recorder = self.recorder(hash(&(&object, reason)), hash(&note));
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(note),
            action: self.action.to_owned(),
            secondary: None,
        };
        match api_call::bounded(recorder.publish(&event, &object)).await {
            Err(error) if error.is_of_terminating_namespace() => {
                debug!(%error, "the namespace is terminating, so it accepts no event");
            }
            Err(error) => {
                if error.code() == Some(404) {
                    // kube counts a repeat on the event that it remembers. If someone deleted that one, each repeat would fail.
                    let mut published = self.published.lock();
                    *published = Published::nothing(&self.whole, self.field_manager);
                }
                warn!(%error, "publishing an event failed");
            }
            Ok(()) => {}
        }
    }
}

fn hash(value: &impl Serialize) -> u64 {
    let mut hasher = DefaultHasher::new();
    json!(value).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests;
