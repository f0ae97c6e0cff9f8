//! Makes an object as wanted *(client required)*: by one server-side apply if that would change it, and otherwise without a
//! write.

use kube::{
    Client, Resource, ResourceExt,
    api::{GetParams, Patch, PatchParams},
    core::Request,
};
use serde::Serialize;
use serde_json::Value;
use tracing::info;

use crate::{
    api_call::{self, ApiError},
    differs::differs,
};

/// What became of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It was as wanted.
    AsWanted,
    /// It was written.
    Written,
    /// Another program created an object of this name. It stays unchanged.
    Foreign,
}

/// Makes an object as wanted, whatever program changed it since. `manager` is the field manager. An object that it never wrote
/// belongs to another program, unless the controller of the wanted object also controls it: a user may have cleared the managed
/// fields.
///
/// An empty object in `wanted` claims nothing. Leave a map that API servers replace as a whole, such as a `nodeSelector`, out when it is
/// empty. [`differs`] says this, and which notations never equal what is stored, so that the object would be written each time.
///
/// The stored object is read as JSON, because users may write times to its managed fields that the type of the object cannot hold.
///
/// It needs the rights to `get`, `create` and `patch` these objects.
pub async fn apply<K>(client: &Client, wanted: &K, manager: &str) -> Result<Applied, ApiError>
where
    K: Resource<DynamicType = ()> + Serialize,
{
    let (name, object) = (wanted.name_any(), document(wanted).map_err(kube::Error::SerdeError)?);
    let objects = Request::new(K::url_path(&(), wanted.meta().namespace.as_deref()));
    // Without force, an object that another program creates meanwhile is a conflict, unless no field has another value there.
    let mut params = PatchParams::apply(manager);
    let read = objects.get(&name, &GetParams::default()).map_err(kube::Error::BuildRequest)?;
    match api_call::bounded(client.request::<Value>(read)).await {
        Ok(current) => {
            if !is_own(&current, &object, manager) {
                return Ok(Applied::Foreign);
            }
            if !differs(&current, &object, manager) {
                return Ok(Applied::AsWanted);
            }
            params = params.force();
        }
        Err(error) if error.is_absence_of(&name) => {}
        Err(error) => return Err(error),
    }
    info!(kind = %K::kind(&()), namespace = wanted.namespace(), name, "applying");
    let patch = objects.patch(&name, &params, &Patch::Apply(&object)).map_err(kube::Error::BuildRequest)?;
    api_call::bounded(client.request::<Value>(patch)).await?;
    Ok(Applied::Written)
}

fn is_own(current: &Value, wanted: &Value, manager: &str) -> bool {
    let mut writers = current["metadata"]["managedFields"].as_array().into_iter().flatten();
    writers.any(|it| it["manager"] == manager)
        || controller(wanted).is_some_and(|uid| controller(current) == Some(uid))
}

/// The uid of an object's controller.
fn controller(object: &Value) -> Option<&str> {
    let owners = object["metadata"]["ownerReferences"].as_array()?;
    owners.iter().find(|it| it["controller"] == true)?["uid"].as_str()
}

/// An object as JSON with its kind, as an apply needs it. Fails only if it could not be written as JSON.
pub fn document<K: Resource<DynamicType = ()> + Serialize>(object: &K) -> serde_json::Result<Value> {
    let mut document = serde_json::to_value(object)?;
    document["apiVersion"] = K::api_version(&()).into();
    document["kind"] = K::kind(&()).into();
    Ok(document)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;
    use crate::testing::{Answer, ApiServer, Call};

    const A: &str = "/api/v1/namespaces/shop/configmaps/a";
    const TIME: &str = "2026-01-01T00:00:00Z";

    /// Owner references with this controller.
    fn controlled_by(uid: &str) -> Value {
        json!([{ "apiVersion": "example.com/v1", "kind": "Widget", "name": "w", "uid": uid, "controller": true }])
    }

    async fn applied(calls: impl IntoIterator<Item = Call>) -> Result<Applied, ApiError> {
        let server = ApiServer::expecting(calls);
        let metadata = json!({ "name": "a", "namespace": "shop", "ownerReferences": controlled_by("u") });
        let wanted = json!({ "metadata": metadata, "data": { "size": "1" } });
        let wanted: ConfigMap = serde_json::from_value(wanted).unwrap();
        apply(&server.client(), &wanted, "kit").await
    }

    /// Managed fields that were written by this manager then.
    fn written_by(manager: &str, time: &str) -> Value {
        let fields = json!({ "f:data": { "f:size": {} } });
        json!([{ "manager": manager, "operation": "Apply", "time": time, "fieldsV1": fields }])
    }

    fn stored(size: &str, controller: &str, managed_fields: &Value) -> Call {
        let owners = controlled_by(controller);
        let metadata = json!({ "name": "a", "namespace": "shop", "ownerReferences": owners, "managedFields": managed_fields });
        let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": { "size": size } });
        Call::get(A).answer(Answer::object(&object))
    }

    fn written(query: &str) -> Call {
        let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "data": { "size": "1" } });
        Call::patch(format!("{A}?{query}fieldManager=kit")).body_with(object)
    }

    #[tokio::test]
    async fn only_what_is_missing_or_differs_is_written() {
        let missing = Call::get(A).answer(Answer::not_found("configmaps", "a"));
        assert_eq!(applied([missing, written("")]).await.unwrap(), Applied::Written);
        let own = written_by("kit", TIME);
        let differs = [stored("2", "u", &own), written("force=true&")];
        assert_eq!(applied(differs).await.unwrap(), Applied::Written);
        assert_eq!(applied([stored("1", "u", &own)]).await.unwrap(), Applied::AsWanted);
    }

    #[tokio::test]
    async fn an_object_of_another_program_stays_as_it_is() {
        for managed_fields in [written_by("kubectl", TIME), Value::Null] {
            assert_eq!(applied([stored("2", "v", &managed_fields)]).await.unwrap(), Applied::Foreign);
        }
    }

    #[tokio::test]
    async fn an_object_without_managed_fields_is_still_its_controllers() {
        let cleared = [stored("2", "u", &Value::Null), written("force=true&")];
        assert_eq!(applied(cleared).await.unwrap(), Applied::Written);
    }

    #[tokio::test]
    async fn a_time_that_cannot_be_read_does_not_matter() {
        let far = written_by("kit", "9999-12-31T00:00:00Z");
        let object = json!({ "metadata": { "name": "a", "managedFields": far } });
        let answered = written("force=true&").answer(Answer::object(&object));
        assert_eq!(applied([stored("2", "u", &far), answered]).await.unwrap(), Applied::Written);
    }

    #[tokio::test]
    async fn an_error_is_no_absence() {
        let unknown = Call::get(A).answer(Answer::page_not_found());
        assert!(applied([unknown]).await.is_err());
    }
}
