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
mod tests {
    use std::sync::Arc;

    use kube::client::Body;
    use tower::{BoxError, service_fn};

    use super::*;
    use crate::{
        testing::{Answer, ApiServer, Call},
        widget::{Gadget, GadgetSpec, WIDGET, Widget, WidgetSpec, WidgetStatus},
    };

    const STATUS: &str = "/apis/example.com/v1/namespaces/shop/widgets/a/status";

    /// The result of writing a status of the size 2.
    async fn written(calls: impl IntoIterator<Item = Call>) -> Result<(), ApiError> {
        written_to(None, calls).await
    }

    /// The same for a widget that has this status.
    async fn written_to(
        before: Option<WidgetStatus>,
        calls: impl IntoIterator<Item = Call>,
    ) -> Result<(), ApiError> {
        let mut widget = Widget::new("a", WidgetSpec::default());
        widget.metadata.namespace = Some("shop".into());
        widget.metadata.uid = Some("u".into());
        widget.status = before;
        let server = ApiServer::expecting(calls);
        let publisher = Publisher::new(&server.client(), &WIDGET, "kit", "Making");
        publisher.status_if_changed(&widget, &WidgetStatus { size: Some(2) }).await
    }

    fn apply() -> Call {
        let wanted =
            json!({ "kind": "Widget", "metadata": { "name": "a", "uid": "u" }, "status": { "size": 2 } });
        Call::patch(format!("{STATUS}?force=true&fieldManager=kit")).body_with(wanted)
    }

    fn applied(status: &Value) -> Answer {
        Answer::object(&json!({
            "apiVersion": "example.com/v1", "kind": "Widget", "spec": {}, "status": status,
            "metadata": { "name": "a", "uid": "u" },
        }))
    }

    #[tokio::test]
    async fn a_new_status_takes_one_write_and_an_equal_one_takes_no_write() {
        assert!(written_to(Some(WidgetStatus { size: Some(2) }), []).await.is_ok());
        assert!(written([apply().answer(applied(&json!({ "size": 2 })))]).await.is_ok());
    }

    #[tokio::test]
    async fn a_patch_replaces_a_status_that_an_apply_left_different() {
        // It tests no resource version: then any write between would leave the status as it is.
        let patch = json!([
            { "op": "test", "path": "/metadata/uid", "value": "u" },
            { "op": "replace", "path": "/status", "value": { "size": 2 } },
        ]);
        let replace = Call::patch(format!("{STATUS}?fieldManager=kit")).body(patch);
        let left = || apply().answer(applied(&json!({ "size": 3 })));
        let another = Answer::error(422, "Invalid", "the test failed");
        for answer in [applied(&json!({ "size": 2 })), another, Answer::not_found("widgets", "a")] {
            assert!(written([left(), replace.clone().answer(answer)]).await.is_ok());
        }
        assert!(written([left(), replace.answer(Answer::error(403, "Forbidden", "no"))]).await.is_err());
    }

    #[tokio::test]
    async fn an_object_that_is_gone_or_another_has_no_status() {
        for answer in [Answer::not_found("widgets", "a"), Answer::conflict("widgets", "a")] {
            assert!(written([apply().answer(answer)]).await.is_ok());
        }
        assert!(written([apply().answer(Answer::page_not_found())]).await.is_err());
    }

    #[tokio::test]
    async fn an_object_without_a_namespace_gets_its_status() {
        let (gadget, status) = (Gadget::new("a", GadgetSpec::default()), WidgetStatus { size: Some(2) });
        let answer = json!({
            "apiVersion": "example.com/v1", "kind": "Gadget", "metadata": { "name": "a" }, "spec": {}, "status": status,
        });
        let apply = Call::patch("/apis/example.com/v1/gadgets/a/status?force=true&fieldManager=kit")
            .body_with(json!({ "kind": "Gadget", "status": status }))
            .answer(Answer::object(&answer));
        let server = ApiServer::expecting([apply]);
        let publisher = Publisher::new(&server.client(), &WIDGET, "kit", "Making");
        publisher.status_if_changed(&gadget, &status).await.unwrap();
    }

    #[tokio::test]
    async fn a_status_that_an_old_copy_has_is_written_over_a_newer_one() {
        let mut widget = Widget::new("a", WidgetSpec::default());
        widget.metadata.namespace = Some("shop".into());
        widget.metadata.uid = Some("u".into());
        widget.status = Some(WidgetStatus { size: Some(2) });
        let apply = |size: u32| {
            let status = json!({ "size": size });
            Call::patch(format!("{STATUS}?force=true&fieldManager=kit"))
                .body_with(json!({ "status": status }))
                .answer(applied(&status))
        };
        let server = ApiServer::expecting([apply(3), apply(2), apply(3)]);
        let publisher = Publisher::new(&server.client(), &WIDGET, "kit", "Making");
        // The copy stays the one before the first write, and then is the one after the second.
        for size in [2, 3, 2, 2] {
            assert!(publisher.status_if_changed(&widget, &WidgetStatus { size: Some(size) }).await.is_ok());
        }
        // Then the watch brings what the first write left.
        widget.status = Some(WidgetStatus { size: Some(3) });
        assert!(publisher.status_if_changed(&widget, &WidgetStatus { size: Some(3) }).await.is_ok());
    }

    #[tokio::test]
    async fn a_failed_write_is_repeated_although_an_old_copy_has_the_status() {
        let apply = |size: u32, answer: Option<Answer>| {
            let status = json!({ "size": size });
            let call = Call::patch(format!("{STATUS}?force=true&fieldManager=kit"));
            call.body_with(json!({ "status": status })).answer(answer.unwrap_or_else(|| applied(&status)))
        };
        let failed = Answer::error(500, "InternalError", "no");
        let server = ApiServer::expecting([apply(3, None), apply(2, Some(failed)), apply(2, None)]);
        let publisher = Publisher::new(&server.client(), &WIDGET, "kit", "Making");
        let mut widget = Widget::new("a", WidgetSpec::default());
        widget.metadata.namespace = Some("shop".into());
        widget.metadata.uid = Some("u".into());
        widget.metadata.resource_version = Some("1".into());
        widget.status = Some(WidgetStatus { size: Some(2) });
        // The copy is the one before the first write all the time.
        for (size, is_written) in [(3, true), (2, false), (2, true), (2, true)] {
            let written = publisher.status_if_changed(&widget, &WidgetStatus { size: Some(size) }).await;
            assert_eq!(written.is_ok(), is_written, "{size}");
        }
    }

    #[tokio::test]
    async fn a_status_is_not_written_again_before_the_cache_shows_it() {
        let failed = || apply().answer(Answer::error(500, "InternalError", "no"));
        let server =
            ApiServer::expecting([failed(), apply().answer(applied(&json!({ "size": 2 }))), failed()]);
        let publisher = Publisher::new(&server.client(), &WIDGET, "kit", "Making");
        let mut widget = Widget::new("a", WidgetSpec::default());
        widget.metadata.namespace = Some("shop".into());
        widget.metadata.uid = Some("u".into());
        // The first write fails. After the second one, the copy is the same, and then another one without that status.
        for (version, is_written) in [("1", false), ("1", true), ("1", true), ("2", false)] {
            widget.metadata.resource_version = Some(version.into());
            let written = publisher.status_if_changed(&widget, &WidgetStatus { size: Some(2) }).await;
            assert_eq!(written.is_ok(), is_written, "{version}");
        }
    }

    const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/shop/events";

    /// Publishes events with these notes about one widget.
    async fn publish(client: &Client, notes: &[&str]) {
        let mut widget = Widget::new("a", WidgetSpec::default());
        widget.metadata.namespace = Some("shop".into());
        widget.metadata.uid = Some("u".into());
        let publisher = Publisher::new(client, &WIDGET, "kit", "Making");
        for note in notes {
            publisher.event(&widget, EventType::Warning, "Failed", note).await;
        }
    }

    #[tokio::test]
    async fn another_note_is_published_and_not_counted_as_a_repeat() {
        let notes = ["no disk", "no network", "no disk"];
        let event = |note: &&str| {
            let wanted = json!({ "reason": "Failed", "note": note, "regarding": { "name": "a" } });
            Call::post(EVENTS).body_with(wanted).answer(Answer::as_sent())
        };
        let server = ApiServer::expecting(notes.iter().map(event));
        publish(&server.client(), &notes).await;
    }

    #[tokio::test]
    async fn the_same_note_is_counted_as_a_repeat() {
        let methods = Arc::new(Mutex::new(Vec::new()));
        let seen = methods.clone();
        // The name of an event has the time in it, so no script can have the path of the second call.
        let as_sent = service_fn(move |request: hyper::Request<Body>| {
            seen.lock().push(request.method().clone());
            async { Ok::<_, BoxError>(hyper::Response::new(request.into_body())) }
        });
        publish(&Client::new(as_sent, "default"), &["no disk"; 3]).await;
        assert_eq!(*methods.lock(), ["POST", "PATCH", "PATCH"]);
    }

    #[tokio::test]
    async fn a_repeat_of_an_event_that_someone_deleted_is_published_anew() {
        let methods = Arc::new(Mutex::new(Vec::new()));
        let seen = methods.clone();
        let without_repeats = service_fn(move |request: hyper::Request<Body>| {
            let method = request.method().clone();
            let is_repeat = method == "PATCH";
            seen.lock().push(method);
            let mut answer = hyper::Response::new(request.into_body());
            if is_repeat {
                *answer.status_mut() = hyper::StatusCode::NOT_FOUND;
                *answer.body_mut() = json!({ "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "gone" }).to_string().into_bytes().into();
            }
            async { Ok::<_, BoxError>(answer) }
        });
        publish(&Client::new(without_repeats, "default"), &["no disk"; 4]).await;
        assert_eq!(*methods.lock(), ["POST", "PATCH", "POST", "PATCH"]);
    }
}
