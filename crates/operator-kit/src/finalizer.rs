//! Adding a finalizer, and taking it away *(client required)*.

use json_patch::{
    Patch as JsonPatch, PatchOperation, RemoveOperation, ReplaceOperation, TestOperation, jsonptr::PointerBuf,
};
use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    api_call::{self, ApiError, Written},
    metadata::Metadata,
};

/// Adds the finalizer by a server-side apply, which leaves those of others alone. False if the object was removed since it was read, or
/// another one has its name: then create nothing for it, because nothing would clean that up.
///
/// Continue in the same reconcile: a finalizer changes no generation, so a controller that the generation alone triggers does not
/// reconcile the object again. Do not use kube's own helper `finalizer` with such a controller, because it waits for that reconcile.
///
/// `field_manager` must apply nothing else to the object itself: an apply takes away what the same manager applied before and does not
/// apply again. The status is apart, so `my-operator-finalizer` beside `my-operator` suffices.
///
/// It needs the right to `patch` these objects.
pub async fn add<K: Resource<DynamicType = ()>>(
    api: &Api<Metadata<K>>,
    object: &K,
    finalizer: &str,
    field_manager: &str,
) -> Result<bool, ApiError> {
    let patch = json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        "metadata": { "uid": object.meta().uid, "finalizers": [finalizer] },
    });
    let (name, params) = (object.name_any(), PatchParams::apply(field_manager).force());
    let applied = api_call::bounded(api.patch(&name, &params, &Patch::Apply(patch))).await;
    Ok(api_call::if_unchanged(&name, applied)?.is_some())
}

/// Removes the finalizer, if the object is still the one that was read and its finalizers are unchanged since. It does not matter
/// which program set the finalizer, and by which field manager. An object without the finalizer costs no call.
///
/// After [`Written::Outdated`], requeue the object soon: the change of another finalizer changes no generation, so a controller that the
/// generation alone triggers does not reconcile the object again.
///
/// The object must have been read with its finalizers, as the caches of a [`Host`](crate::controller::Host) have them. A
/// [`Projection`](crate::projection::Projection) for another cache must name them: an object that was read without them counts as one
/// without the finalizer, and so would stay.
///
/// It needs the right to `patch` these objects.
pub async fn release<K: Resource>(
    api: &Api<Metadata<K>>,
    object: &K,
    finalizer: &str,
    field_manager: &str,
) -> Result<Written, ApiError> {
    if !object.finalizers().iter().any(|it| it == finalizer) {
        return Ok(Written::Done);
    }
    let patch = Patch::<()>::Json(release_patch(object, finalizer));
    let params = PatchParams { field_manager: Some(field_manager.to_owned()), ..PatchParams::default() };
    let name = object.name_any();
    Written::by(&name, api_call::bounded(api.patch(&name, &params, &patch)).await)
}

/// Removes this finalizer and no other. The tests pin the object and the very list that was read.
fn release_patch(object: &impl Resource, finalizer: &str) -> JsonPatch {
    let path = PointerBuf::from_tokens(["metadata", "finalizers"]);
    let finalizers = object.meta().finalizers.clone().unwrap_or_default();
    let others: Vec<_> = finalizers.iter().filter(|it| *it != finalizer).cloned().collect();
    let change = if others.is_empty() {
        PatchOperation::Remove(RemoveOperation { path: path.clone() })
    } else {
        PatchOperation::Replace(ReplaceOperation { path: path.clone(), value: others.into() })
    };
    let uid = PointerBuf::from_tokens(["metadata", "uid"]);
    JsonPatch(vec![
        PatchOperation::Test(TestOperation {
            path: uid,
            value: object.meta().uid.clone().map_or(Value::Null, Value::from),
        }),
        PatchOperation::Test(TestOperation { path, value: finalizers.into() }),
        change,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        testing::{Answer, ApiServer, Call, not_of},
        widget::{FINALIZER, Widget, WidgetSpec},
    };

    fn released(finalizers: &[&str]) -> Value {
        let document =
            json!({ "metadata": { "name": "a", "uid": "u-1", "finalizers": finalizers }, "spec": {} });
        let mut changed = serde_json::to_value(&document).unwrap();
        let widget: Widget = serde_json::from_value(json!({
            "apiVersion": "example.com/v1", "kind": "Widget",
            "metadata": document["metadata"], "spec": {},
        }))
        .unwrap();
        json_patch::patch(&mut changed, &release_patch(&widget, FINALIZER)).unwrap();
        changed["metadata"].clone()
    }

    #[test]
    fn only_our_finalizer_is_removed() {
        assert_eq!(released(&[FINALIZER]), json!({ "name": "a", "uid": "u-1" }));
        assert_eq!(released(&["x/y", FINALIZER])["finalizers"], json!(["x/y"]));
    }

    #[test]
    fn a_changed_list_or_object_fails_the_patch() {
        let mut widget = Widget::new("a", WidgetSpec::default());
        widget.metadata.uid = Some("u-1".into());
        widget.metadata.finalizers = Some(vec![FINALIZER.into()]);
        let patch = release_patch(&widget, FINALIZER);
        for metadata in [
            json!({ "uid": "u-2", "finalizers": [FINALIZER] }),
            json!({ "uid": "u-1", "finalizers": ["x/y", FINALIZER] }),
            json!({ "uid": "u-1" }),
        ] {
            assert!(json_patch::patch(&mut json!({ "metadata": metadata }), &patch).is_err());
        }
    }

    /// Releases a widget whose patch gets this answer.
    async fn answered(answer: Answer) -> Result<Written, ApiError> {
        let mut widget = Widget::new("a", WidgetSpec::default());
        widget.metadata.finalizers = Some(vec![FINALIZER.into()]);
        let path = "/apis/example.com/v1/namespaces/shop/widgets/a?fieldManager=kit";
        let server = ApiServer::expecting([Call::patch(path).answer(answer)]);
        let api = Api::<Metadata<Widget>>::namespaced(server.client(), "shop");
        release(&api, &widget, FINALIZER, "kit").await
    }

    #[tokio::test]
    async fn an_object_without_the_finalizer_costs_no_call() {
        let server = ApiServer::expecting([]);
        let api = Api::<Metadata<Widget>>::namespaced(server.client(), "shop");
        let mut widget = Widget::new("a", WidgetSpec::default());
        for others in [None, Some(vec!["x/y".to_owned()])] {
            widget.metadata.finalizers = others;
            assert_eq!(release(&api, &widget, FINALIZER, "kit").await.ok(), Some(Written::Done));
        }
    }

    #[tokio::test]
    async fn the_finalizer_is_added_to_the_object_that_was_read_and_to_no_other() {
        let mut widget = Widget::new("a", WidgetSpec::default());
        widget.metadata.uid = Some("u-1".into());
        let sent = json!({
            "apiVersion": "example.com/v1", "kind": "Widget", "metadata": { "uid": "u-1", "finalizers": [FINALIZER] },
        });
        let path = "/apis/example.com/v1/namespaces/shop/widgets/a?force=true&fieldManager=kit-finalizer";
        let added = async |answer: Answer| {
            let server = ApiServer::expecting([Call::patch(path).body(sent.clone()).answer(answer)]);
            let api = Api::<Metadata<Widget>>::namespaced(server.client(), "shop");
            add(&api, &widget, FINALIZER, "kit-finalizer").await
        };
        assert_eq!(added(Answer::object(&widget)).await.ok(), Some(true));
        for other in [Answer::not_found("widgets", "a"), Answer::conflict("widgets", "a")] {
            assert_eq!(added(other).await.ok(), Some(false));
        }
        for other in not_of("a") {
            assert!(added(other.clone()).await.is_err(), "{other:?}");
        }
    }

    #[tokio::test]
    async fn a_404_about_another_object_is_an_error() {
        assert_eq!(answered(Answer::not_found("widgets", "a")).await.ok(), Some(Written::Gone));
        for other in not_of("a") {
            assert!(answered(other.clone()).await.is_err(), "{other:?}");
        }
    }

    #[tokio::test]
    async fn a_refusal_of_a_webhook_is_an_error_with_any_code() {
        for code in [409, 422] {
            let refused =
                Answer::error(code, "", "admission webhook \"a.example.com\" denied the request: no");
            assert!(answered(refused).await.is_err(), "{code}");
        }
    }
}
