//! Tells people about an object *(client required)*: its status, and events.

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

use super::{
    api_call::{self, ApiError},
    finalizer::Written,
    projection::{Projection, reading},
    text::cut,
};
use crate::api::v1alpha1::FIELD_MANAGER;

/// Room in an event's note, in bytes, as the API server has it.
const NOTE_LIMIT: usize = 1024;

/// Writes what is told of a controller's objects.
pub(crate) struct Publisher {
    client: Client,
    recorder: Recorder,
    /// What the controller does with them, for its events.
    action: &'static str,
}

impl Publisher {
    /// `projection`: what is read of the objects, their status among it.
    pub(crate) fn new(client: &Client, projection: &'static Projection, action: &'static str) -> Self {
        let recorder = Recorder::new(client.clone(), FIELD_MANAGER.into());
        Self { client: reading(client, projection), recorder, action }
    }

    /// Makes the status be this, and nothing else.
    pub(crate) async fn status<K>(&self, object: &K, status: &K::Status) -> Result<(), ApiError>
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
        let params = PatchParams::apply(FIELD_MANAGER);
        let (forced, patch) = (params.clone().force(), Patch::Apply(patch));
        let applied = match api_call::bounded(api.patch_status(&name, &forced, &patch)).await {
            Ok(applied) => applied,
            // It is gone, or another one has its name: there is nobody left to tell.
            Err(error) if error.is_gone_or_changed(&name) => return Ok(()),
            Err(error) => return Err(error),
        };
        // As it is written: times are not, to the last digit.
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
        // Where it changed meanwhile it is looked at again.
        Written::by(&name, api_call::bounded(api.patch_status(&name, &params, &replaced)).await).map(drop)
    }

    /// Publishes an event. One that cannot be published is logged; a terminating namespace takes none.
    pub(crate) async fn event(
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
