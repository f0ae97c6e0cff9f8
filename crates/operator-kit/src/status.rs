//! Writes the status of an object and its events *(client required)*.

use json_patch::{Patch as JsonPatch, PatchOperation, ReplaceOperation, TestOperation, jsonptr::PointerBuf};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams},
    core::{NamespaceResourceScope, object::HasStatus},
    runtime::events::{Event, EventType, Recorder},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tracing::{debug, warn};

use crate::{
    api_call::{self, ApiError},
    finalizer::Written,
    projection::{Projection, reading},
    text::cut,
};

/// Room in an event's note, in bytes, as the API server has it.
const NOTE_LIMIT: usize = 1024;

/// Writes the status and the events of a controller's objects.
pub struct Publisher {
    client: Client,
    recorder: Recorder,
    field_manager: &'static str,
    /// What the controller does with them, for its events.
    action: &'static str,
}

impl Publisher {
    /// `projection`: what is read of the objects, their status among it. `field_manager` writes the status and reports the
    /// events, each about this `action`.
    pub fn new(
        client: &Client,
        projection: &'static Projection,
        field_manager: &'static str,
        action: &'static str,
    ) -> Self {
        let recorder = Recorder::new(client.clone(), field_manager.into());
        Self { client: reading(client, projection), recorder, field_manager, action }
    }

    /// Makes the status be this, and nothing else.
    pub async fn status<K>(&self, object: &K, status: &K::Status) -> Result<(), ApiError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + HasStatus<Status: Serialize>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned,
    {
        let (name, namespace) = (object.name_any(), object.namespace().unwrap_or_default());
        let api: Api<K> = Api::namespaced(self.client.clone(), &namespace);
        // The uid keeps the status of one object off a later one of the same name.
        let patch = json!({
            "apiVersion": K::api_version(&()),
            "kind": K::kind(&()),
            "metadata": { "name": name, "uid": object.uid() },
            "status": status,
        });
        let params = PatchParams::apply(self.field_manager);
        let (forced, patch) = (params.clone().force(), Patch::Apply(patch));
        let applied = match api_call::bounded(api.patch_status(&name, &forced, &patch)).await {
            Ok(applied) => applied,
            // It is gone, or another object has its name: there is no status to write.
            Err(error) if error.is_gone_or_changed(&name) => return Ok(()),
            Err(error) => return Err(error),
        };
        // Compared as JSON: times differ in digits that are not written.
        let status = json!(status);
        if json!(applied.status()) == status {
            return Ok(());
        }
        // A condition that another field manager has, too, as one that restored a backup, an apply alone does not take away.
        let pinned = applied.resource_version().map_or(Value::Null, Value::from);
        let replaced = Patch::<()>::Json(JsonPatch(vec![
            PatchOperation::Test(TestOperation {
                path: PointerBuf::from_tokens(["metadata", "resourceVersion"]),
                value: pinned,
            }),
            PatchOperation::Replace(ReplaceOperation {
                path: PointerBuf::from_tokens(["status"]),
                value: status,
            }),
        ]));
        // An object that changed meanwhile gets another reconcile.
        Written::by(&name, api_call::bounded(api.patch_status(&name, &params, &replaced)).await).map(drop)
    }

    /// Publishes an event. One that cannot be published is logged; a terminating namespace takes none.
    pub async fn event(
        &self,
        object: &impl Resource<DynamicType = ()>,
        type_: EventType,
        reason: &str,
        note: &str,
    ) {
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(cut(note, NOTE_LIMIT)),
            action: self.action.to_owned(),
            secondary: None,
        };
        match api_call::bounded(self.recorder.publish(&event, &object.object_ref(&()))).await {
            Err(error) if error.is_of_terminating_namespace() => {
                debug!(%error, "the namespace is terminating, so it accepts no event");
            }
            Err(error) => warn!(%error, "publishing an event failed"),
            Ok(()) => {}
        }
    }
}
