//! Makes an object as wanted *(client required)*: by one server-side apply if that would change it, and otherwise without a
//! write.

use std::fmt::Debug;

use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
};
use serde::{Serialize, de::DeserializeOwned};
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
/// belongs to another program.
pub async fn apply<K>(api: &Api<K>, wanted: &K, manager: &str) -> Result<Applied, ApiError>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    let (name, object) = (wanted.name_any(), document(wanted)?);
    // Without force, an object that another program creates meanwhile is a conflict.
    let mut params = PatchParams::apply(manager);
    if let Some(current) = api_call::get_opt(api, &name).await? {
        if !current.managed_fields().iter().any(|it| it.manager.as_deref() == Some(manager)) {
            return Ok(Applied::Foreign);
        }
        if !differs(&document(&current)?, &object, manager) {
            return Ok(Applied::AsWanted);
        }
        params = params.force();
    }
    info!(kind = %K::kind(&()), namespace = wanted.namespace(), name, "applying");
    api_call::bounded(api.patch(&name, &params, &Patch::Apply(&object))).await?;
    Ok(Applied::Written)
}

/// An object with its kind, as an apply needs it.
fn document<K: Resource<DynamicType = ()> + Serialize>(object: &K) -> Result<Value, ApiError> {
    let mut document = serde_json::to_value(object).map_err(kube::Error::SerdeError)?;
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

    async fn applied(calls: impl IntoIterator<Item = Call>) -> Result<Applied, ApiError> {
        let server = ApiServer::expecting(calls);
        let wanted = json!({ "metadata": { "name": "a", "namespace": "shop" }, "data": { "size": "1" } });
        let wanted: ConfigMap = serde_json::from_value(wanted).unwrap();
        apply(&Api::namespaced(server.client(), "shop"), &wanted, "kit").await
    }

    fn stored(size: &str, manager: &str) -> Call {
        let fields =
            json!({ "manager": manager, "operation": "Apply", "fieldsV1": { "f:data": { "f:size": {} } } });
        let metadata = json!({ "name": "a", "namespace": "shop", "managedFields": [fields] });
        Call::get(A).answer(Answer::object(&json!({ "metadata": metadata, "data": { "size": size } })))
    }

    fn written(query: &str) -> Call {
        let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "data": { "size": "1" } });
        Call::patch(format!("{A}?{query}fieldManager=kit")).body_with(object)
    }

    #[tokio::test]
    async fn only_what_is_missing_or_differs_is_written() {
        let missing = Call::get(A).answer(Answer::not_found("configmaps", "a"));
        assert_eq!(applied([missing, written("")]).await.unwrap(), Applied::Written);
        assert_eq!(applied([stored("2", "kit"), written("force=true&")]).await.unwrap(), Applied::Written);
        assert_eq!(applied([stored("1", "kit")]).await.unwrap(), Applied::AsWanted);
    }

    #[tokio::test]
    async fn an_object_of_another_program_stays_as_it_is() {
        assert_eq!(applied([stored("2", "kubectl")]).await.unwrap(), Applied::Foreign);
    }

    #[tokio::test]
    async fn an_error_is_no_absence() {
        let unknown = Call::get(A).answer(Answer::page_not_found());
        assert!(applied([unknown]).await.is_err());
    }
}
