//! Makes objects as wanted *(client required)*: one write for each object that differs, none for the others.

use std::{collections::HashMap, sync::Arc, time::Instant};

use futures::future::try_join_all;
use kube::{
    Api, Client, ResourceExt,
    api::{
        ApiResource, DeleteParams, DynamicObject, ListParams, PartialObjectMeta, Patch, PatchParams,
        Preconditions, TypeMeta,
    },
};
use operator_kit::api_call::{self, ApiError};
use serde_json::Value;
use tracing::info;

use super::{
    drift::Drifts,
    resources::{CONFIG_LABEL, MANAGED_BY, MANAGER, differs},
    wanted::{Found, Kind, Wanted},
};
use crate::api::v1alpha1::FIELD_MANAGER;

/// The objects of all configurations, as the API server has them.
#[derive(Clone)]
pub(super) struct Objects {
    pub(super) client: Client,
    pub(super) drifts: Arc<Drifts>,
}

impl Objects {
    pub(super) fn new(client: Client, drifts: Arc<Drifts>) -> Self {
        Self { client, drifts }
    }

    /// Creates what is missing, corrects what differs, and removes objects of `kinds` that were created for the configuration and
    /// are no longer wanted. It keeps objects that got the label otherwise, as by `kubectl expose`. It leaves objects that others
    /// keep changing for a while.
    pub(super) async fn apply_all(
        &self,
        config: &str,
        kinds: &[Kind],
        wanted: &[Wanted],
    ) -> Result<Found, ApiError> {
        let reads = kinds.iter().map(|kind| async move {
            let mut there = labelled(&self.client, config, kind).await?;
            let of_kind = wanted.iter().filter(|wanted| wanted.is_a(kind));
            let reads = of_kind.map(|wanted| read(&self.client, wanted, there.remove(&wanted.name)));
            let states = try_join_all(reads.collect::<Vec<_>>()).await?;
            Ok::<_, ApiError>((kind, states, there))
        });
        // The reads run together; the writes follow the order of the kinds.
        let observed = try_join_all(reads).await?;
        let mut found = Found::default();
        for (kind, states, unwanted) in observed {
            for (wanted, state) in states {
                let key = (kind.resource.kind.clone(), wanted.name.clone());
                match state {
                    State::AsWanted(object) => {
                        self.drifts.settled(&wanted.key(Some(config)));
                        found.objects.insert(key, *object);
                    }
                    State::Due(there) => match self.apply(Some(config), wanted, there.as_deref()).await? {
                        Some(object) => {
                            found.objects.insert(key.clone(), object);
                            found.applied.insert(key, there.is_none());
                        }
                        None => found.objects.extend(there.map(|object| (key, *object))),
                    },
                    State::Unmanaged => found.unmanaged.push(format!("{} {}", key.0, key.1)),
                }
            }
            for object in unwanted.into_values().filter(is_ours) {
                remove(&kind.api(&self.client), &object, DeleteParams::background()).await?;
            }
        }
        Ok(found)
    }

    /// Corrects an object that this operator did not create and that all configurations share, if it exists and differs.
    pub(super) async fn adjust(&self, wanted: &Wanted) -> Result<bool, ApiError> {
        let Some(object) = api_call::get_opt(&wanted.api(&self.client), &wanted.name).await? else {
            return Ok(false);
        };
        if differs(&as_value(&object), &wanted.object, FIELD_MANAGER) {
            self.apply(None, wanted, None).await?;
        } else {
            self.drifts.settled(&wanted.key(None));
        }
        Ok(true)
    }

    /// Writes an object, unless others keep changing it. `there`: its present state, if the operator created it.
    async fn apply(
        &self,
        config: Option<&str>,
        wanted: &Wanted,
        there: Option<&DynamicObject>,
    ) -> Result<Option<DynamicObject>, ApiError> {
        let key = wanted.key(config);
        if !self.drifts.admit(&key, &wanted.content(), Instant::now()) {
            return Ok(None);
        }
        info!(kind = wanted.resource.kind, name = wanted.name, "applying");
        let applied = match (self.write(wanted).await, there) {
            // Fields that others set beside it may make it invalid.
            (Err(error), Some(there))
                if error.invalid().is_some() && self.drifts.may_take_over(&key, Instant::now()) =>
            {
                self.write_over(wanted, there, &key, error).await
            }
            (written, _) => written,
        };
        if applied.is_err() {
            self.drifts.not_written(&key);
        }
        applied.map(Some)
    }

    pub(super) async fn write(&self, wanted: &Wanted) -> Result<DynamicObject, ApiError> {
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let patch = Patch::Apply(&wanted.object);
        api_call::bounded(wanted.api(&self.client).patch(&wanted.name, &params, &patch)).await
    }

    /// Deletes all objects of these kinds that this operator created for the configuration, which wants none of them any more: in the
    /// background, or each after all that it owns. Returns what was left.
    pub(super) async fn clear(
        &self,
        config: &str,
        kinds: &[Kind],
        how: &DeleteParams,
    ) -> Result<Option<Left>, ApiError> {
        let mut left = None;
        for kind in kinds {
            let of_kind = kind.api(&self.client);
            for object in api_call::bounded(of_kind.list(&of(config))).await?.into_iter().filter(is_ours) {
                let left = left.get_or_insert_with(Left::default);
                left.kept = left.kept.take().or_else(|| kept(&object, &kind.resource.kind));
                remove(&of_kind, &object, how.clone()).await?;
            }
            self.drifts.forget(config, &kind.resource.kind);
        }
        Ok(left)
    }

    /// The objects of these kinds that have the configuration's label and are not being deleted.
    pub(super) async fn all_staying(
        &self,
        config: &str,
        kinds: &[Kind],
    ) -> Result<Vec<PartialObjectMeta<DynamicObject>>, ApiError> {
        let staying = try_join_all(kinds.iter().map(|kind| self.staying(config, kind))).await?;
        Ok(staying.into_iter().flatten().collect())
    }

    /// The objects of this kind that have the configuration's label and are not being deleted.
    pub(super) async fn staying(
        &self,
        config: &str,
        kind: &Kind,
    ) -> Result<Vec<PartialObjectMeta<DynamicObject>>, ApiError> {
        let mut found = api_call::bounded(kind.api(&self.client).list_metadata(&of(config))).await?.items;
        found.retain(|object| object.metadata.deletion_timestamp.is_none());
        Ok(found)
    }

    /// All objects of this kind that this operator created, for any configuration. Objects that merely have the label are not
    /// included.
    pub(super) async fn made(&self, kind: &Kind) -> Result<Vec<DynamicObject>, ApiError> {
        let params = ListParams::default().labels(&format!("{CONFIG_LABEL},{MANAGED_BY}={MANAGER}"));
        let objects = api_call::bounded(kind.api(&self.client).list(&params)).await?;
        Ok(objects.into_iter().filter(is_ours).map(|object| typed(object, &kind.resource)).collect())
    }

    /// Removes an object, unless it changed since it was read.
    pub(super) async fn remove_unchanged(&self, kind: &Kind, object: &DynamicObject) -> Result<(), ApiError> {
        if !announce_removal(object) {
            return Ok(());
        }
        let removed = api_call::delete_as_read(&kind.api(&self.client), object).await;
        api_call::if_unchanged(&object.name_any(), removed).map(drop)
    }
}

/// Objects that were left, and that are being deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Left {
    /// One that a finalizer keeps, and this finalizer.
    pub(super) kept: Option<String>,
}

/// What keeps an object that is being deleted, if that is another program.
fn kept(object: &DynamicObject, kind: &str) -> Option<String> {
    object.metadata.deletion_timestamp.as_ref()?;
    // Kubernetes' own garbage collection.
    let of_others = |it: &&String| !["foregroundDeletion", "orphan"].contains(&it.as_str());
    let finalizer = object.finalizers().iter().find(of_others)?;
    Some(format!("the {kind} {} has the finalizer {finalizer} of another program", object.name_any()))
}

/// The state of a wanted object.
enum State {
    AsWanted(Box<DynamicObject>),
    /// It is missing, or differs.
    Due(Option<Box<DynamicObject>>),
    /// An object that this operator did not create has its name.
    Unmanaged,
}

/// `there`: the object, if it has the configuration's label.
async fn read<'a>(
    client: &Client,
    wanted: &'a Wanted,
    there: Option<DynamicObject>,
) -> Result<(&'a Wanted, State), ApiError> {
    let state = match there {
        // One that another program restored, without managed fields, is not removed later. An apply makes it the operator's.
        Some(object) if is_ours(&object) && !differs(&as_value(&object), &wanted.object, FIELD_MANAGER) => {
            State::AsWanted(Box::new(object))
        }
        Some(object) => State::Due(Some(Box::new(object))),
        None => match api_call::get_opt(&wanted.api(client), &wanted.name).await? {
            Some(object) if !is_ours(&object) => State::Unmanaged,
            object => State::Due(object.map(Box::new)),
        },
    };
    Ok((wanted, state))
}

/// All objects of this kind that have the configuration's label, by name.
async fn labelled(
    client: &Client,
    config: &str,
    kind: &Kind,
) -> Result<HashMap<String, DynamicObject>, ApiError> {
    let objects = api_call::bounded(kind.api(client).list(&of(config))).await?.into_iter();
    Ok(objects.map(|object| (object.name_any(), typed(object, &kind.resource))).collect())
}

/// Lists what has the configuration's label.
fn of(config: &str) -> ListParams {
    ListParams::default().labels(&format!("{CONFIG_LABEL}={config}"))
}

/// Whether this operator created it, whatever labels it has.
fn is_ours(object: &DynamicObject) -> bool {
    object.managed_fields().iter().any(|fields| fields.manager.as_deref() == Some(FIELD_MANAGER))
}

/// Removes an object, if it is still the same one.
async fn remove(api: &Api<DynamicObject>, object: &DynamicObject, how: DeleteParams) -> Result<(), ApiError> {
    if !announce_removal(object) {
        return Ok(());
    }
    let same = Preconditions { uid: object.uid(), resource_version: None };
    let params = DeleteParams { preconditions: Some(same), ..how };
    let name = object.name_any();
    // It may have been removed or replaced meanwhile.
    api_call::if_unchanged(&name, api_call::bounded(api.delete(&name, &params)).await).map(drop)
}

/// Logs that an object is removed, and returns true, unless it is being deleted already.
fn announce_removal(object: &DynamicObject) -> bool {
    if object.metadata.deletion_timestamp.is_some() {
        return false;
    }
    info!(
        kind = object.types.as_ref().map(|types| types.kind.as_str()),
        name = object.name_any(),
        "removing"
    );
    true
}

/// Items of a list have no kind.
fn typed(mut object: DynamicObject, resource: &ApiResource) -> DynamicObject {
    let (api_version, kind) = (resource.api_version.clone(), resource.kind.clone());
    object.types.get_or_insert(TypeMeta { api_version, kind });
    object
}

/// A dynamic object consists of JSON, so this always succeeds.
fn as_value(object: &DynamicObject) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Service;
    use operator_kit::testing::{Answer, ApiServer, Call};
    use serde_json::json;

    use super::{super::drift::Key, *};

    #[tokio::test]
    async fn drift_of_unwanted_objects_is_not_reported() {
        let none = json!({
            "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "1" }, "items": [],
        });
        let list = Call::get("/api/v1/namespaces/ns/services").answer(Answer::json(200, &none));
        let server = ApiServer::expecting([list]);
        let (drifts, now) = (Arc::new(Drifts::default()), Instant::now());
        for (config, kind) in [("config", "Service"), ("config", "Deployment"), ("other", "Service")] {
            let key = Key { config: Some(config.to_owned()), kind: kind.to_owned(), name: "a".to_owned() };
            while drifts.admit(&key, &"content", now) {}
        }
        let told = |config: &str| drifts.finding(config, now).map(|(finding, _)| finding.message);
        assert!(told("config").is_some_and(|message| message.contains("Service a")));
        let objects = Objects::new(server.client(), drifts.clone());
        let kinds = [Kind::namespaced::<Service>("ns")];
        assert_eq!(objects.clear("config", &kinds, &DeleteParams::background()).await.unwrap(), None);
        let message = told("config").unwrap();
        assert!(!message.contains("Service a") && message.contains("Deployment a"), "{message}");
        assert!(told("other").is_some_and(|message| message.contains("Service a")));
    }

    #[tokio::test]
    async fn an_object_that_lost_its_managed_fields_becomes_the_operators_again() {
        const SERVICES: &str = "/api/v1/namespaces/ns/services";
        let metadata = json!({ "name": "a", "namespace": "ns", "labels": { CONFIG_LABEL: "config" } });
        let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata });
        let list = json!({
            "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "1" }, "items": [service],
        });
        let calls = [
            Call::get(SERVICES).answer(Answer::json(200, &list)),
            Call::patch(format!("{SERVICES}/a")).answer(Answer::json(200, &service)),
        ];
        let server = ApiServer::expecting(calls);
        let objects = Objects::new(server.client(), Arc::default());
        let wanted = [Wanted::of(&serde_json::from_value::<Service>(service).unwrap()).unwrap()];
        let found = objects.apply_all("config", &[Kind::namespaced::<Service>("ns")], &wanted).await.unwrap();
        assert_eq!(found.objects.len(), 1);
    }

    #[tokio::test]
    async fn fields_that_do_not_make_an_object_invalid_are_taken_over_once() {
        const SERVICES: &str = "/api/v1/namespaces/ns/services";
        let entry = |manager: &str, operation: &str, fields: Value| json!({ "manager": manager, "operation": operation, "apiVersion": "v1", "fieldsV1": fields });
        let fields = json!([
            entry(FIELD_MANAGER, "Apply", json!({ "f:spec": { "f:clusterIP": {} } })),
            entry("other", "Update", json!({ "f:spec": { "f:type": {} } })),
        ]);
        let there = json!({ "metadata": { "name": "a", "resourceVersion": "1", "managedFields": fields } });
        let list = json!({
            "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "1" }, "items": [there],
        });
        let list = Call::get(SERVICES).answer(Answer::json(200, &list));
        let patch = || Call::patch(format!("{SERVICES}/a"));
        let refused = patch().body_with(json!({ "kind": "Service" })).answer(Answer::error(
            422,
            "Invalid",
            "spec.clusterIP: Invalid value",
        ));
        let calls = [
            list.clone(),
            refused.clone(),
            patch().body_with(json!({ "metadata": { "resourceVersion": "1" } })),
            refused.clone(),
            patch().body(json!({ "metadata": { "managedFields": fields } })),
            list,
            refused,
        ];
        let server = ApiServer::expecting(calls);
        let objects = Objects::new(server.client(), Arc::default());
        let kinds = [Kind::namespaced::<Service>("ns")];
        let service = json!({
            "metadata": { "name": "a", "namespace": "ns" }, "spec": { "clusterIP": "nonsense" },
        });
        let wanted = [Wanted::of(&serde_json::from_value::<Service>(service).unwrap()).unwrap()];
        for _ in 0..2 {
            let error = objects.apply_all("config", &kinds, &wanted).await.unwrap_err();
            assert!(error.invalid().is_some(), "{error}");
        }
    }

    #[tokio::test]
    async fn writes_that_fail_are_no_drift() {
        const MANY: usize = 10;
        const SERVICES: &str = "/api/v1/namespaces/ns/services";
        let none = json!({
            "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "1" }, "items": [],
        });
        let calls = [
            Call::get(SERVICES).answer(Answer::json(200, &none)),
            Call::get(format!("{SERVICES}/a")).answer(Answer::not_found("services", "a")),
            Call::patch(format!("{SERVICES}/a")).answer(Answer::error(500, "InternalError", "down")),
        ];
        let server = ApiServer::expecting(std::iter::repeat_n(calls, MANY).flatten());
        let drifts = Arc::<Drifts>::default();
        let objects = Objects::new(server.client(), drifts.clone());
        let service = json!({ "metadata": { "name": "a", "namespace": "ns" } });
        let wanted = [Wanted::of(&serde_json::from_value::<Service>(service).unwrap()).unwrap()];
        let kinds = [Kind::namespaced::<Service>("ns")];
        for _ in 0..MANY {
            let error = objects.apply_all("config", &kinds, &wanted).await.unwrap_err();
            assert!(error.to_string().contains("down"), "{error}");
        }
        assert!(drifts.finding("config", Instant::now()).is_none());
    }
}
