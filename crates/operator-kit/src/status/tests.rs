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
    let server = ApiServer::expecting([failed(), apply().answer(applied(&json!({ "size": 2 }))), failed()]);
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

#[tokio::test]
async fn a_note_that_is_too_long_is_cut() {
    let wanted = json!({ "note": "x".repeat(NOTE_LIMIT) });
    let server = ApiServer::expecting([Call::post(EVENTS).body_with(wanted).answer(Answer::as_sent())]);
    publish(&server.client(), &[&"x".repeat(4 * NOTE_LIMIT)]).await;
}

#[tokio::test]
async fn what_is_remembered_of_many_objects_has_a_limit() {
    let server = ApiServer::expecting([]);
    let publisher = Publisher::new(&server.client(), &WIDGET, "kit", "Making");
    for number in 0..2 * REMEMBERED_STATUSES as u64 {
        let metadata = ObjectMeta { uid: Some(number.to_string()), ..ObjectMeta::default() };
        publisher.remember(&metadata, Last { hash: 0, done: None });
        publisher.recorder(number, 0);
    }
    assert!(publisher.written.lock().len() <= REMEMBERED_STATUSES);
    assert!(publisher.published.lock().notes.len() <= REMEMBERED_EVENTS);
}
