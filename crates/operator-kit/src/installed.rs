//! Definitions of custom resources as they are installed *(client required)*: one may be older than the program, or be installed
//! later.

use futures::{StreamExt, stream::BoxStream};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Resource,
    runtime::reflector::{ObjectRef, Store},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    controller::Host,
    crd::{crd_name, lacking},
    projection::{Part, Projection},
    watch,
};

/// The schemas and the conditions. Definitions are large, but no API server accepts a larger one.
static DEFINITION: Projection = Projection {
    metadata: &[],
    rest: &[("spec", Part::All), ("status", Part::Only(&[("conditions", Part::All)]))],
    most: 4 << 20,
};

/// The definition of a kind as it is installed, if it is. Cheap to clone.
#[derive(Clone)]
pub struct Installed {
    store: Store<CustomResourceDefinition>,
    name: String,
    /// The version of the kind that the program reads.
    version: String,
    first: CancellationToken,
}

impl Installed {
    /// Follows the definition of `K` while the changes that come with it are read. The process is not ready before it is known whether
    /// it is installed. It needs the rights to `list` and `watch` `customresourcedefinitions`.
    pub fn follow<K: Resource<DynamicType = ()>>(host: &Host) -> (Self, BoxStream<'static, ()>) {
        let (name, version) = (crd_name::<K>(), K::version(&()).into_owned());
        let first = CancellationToken::new();
        let named = watch::paged().fields(&format!("metadata.name={name}"));
        let read = version.clone();
        let (store, changes) = host.cached(&DEFINITION, named, move |it: &CustomResourceDefinition| {
            (it.metadata.generation, is_established(it, &read))
        });
        let installed = Self { store, name, version: version.clone(), first: first.clone() };
        let changes = changes.map(move |definition| {
            if definition.is_ok_and(|definition| is_established(&definition, &version)) {
                first.cancel();
            }
        });
        (installed, changes.boxed())
    }

    /// Whether API servers serve the kind in the program's version.
    pub fn is_established(&self) -> bool {
        let installed = self.store.get(&ObjectRef::new(&self.name));
        installed.is_some_and(|definition| is_established(&definition, &self.version))
    }

    /// Returns when the kind is served, for the first time.
    pub async fn established(self) {
        self.first.cancelled().await;
    }

    /// The fields of the `wanted` definition that the installed one lacks; see [`lacking`]. None if none is installed.
    pub fn lacking(&self, wanted: &Value) -> Vec<String> {
        let installed = self.store.get(&ObjectRef::new(&self.name));
        installed.map(|installed| lacking(&json!(&*installed), wanted)).unwrap_or_default()
    }
}

fn is_established(definition: &CustomResourceDefinition, version: &str) -> bool {
    let mut conditions = definition.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let is_served = definition.spec.versions.iter().any(|it| it.name == version && it.served);
    is_served && conditions.any(|it| it.type_ == "Established" && it.status == "True")
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;
    use crate::{
        Leadership,
        http::Readiness,
        testing::{Answer, ApiServer, Call},
        widget::Widget,
    };

    #[tokio::test]
    async fn a_definition_is_followed_until_its_kind_is_served() {
        let event = |generation: u32, served: bool, established: &str, properties: Value| {
            let schema = json!({ "openAPIV3Schema": { "properties": properties } });
            let version = json!({ "name": "v1", "schema": schema, "served": served, "storage": true });
            let other = json!({ "name": "v2", "schema": {}, "served": true, "storage": false });
            let definition = json!({
                "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": { "name": "widgets.example.com", "uid": "u", "resourceVersion": "2", "generation": generation },
                "spec": { "group": "example.com", "names": {}, "scope": "Namespaced", "versions": [other, version] },
                "status": { "conditions": [{ "type": "Established", "status": established }] },
            });
            json!({ "type": "ADDED", "object": definition }).to_string()
        };
        let list = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinitionList",
            "metadata": { "resourceVersion": "1" }, "items": [],
        });
        let status = json!({ "status": {} });
        let events = [
            event(1, true, "False", json!({})),
            event(2, false, "True", json!({})),
            event(3, true, "True", status.clone()),
        ];
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let server = ApiServer::expecting([
            Call::get(path).answer(Answer::object(&list)),
            Call::get(path).answer(Answer::text(200, events.join("\n") + "\n")),
        ]);
        let host = Host {
            client: server.client(),
            crds: &[],
            leadership: Leadership::unlimited(),
            readiness: Readiness::default(),
            shutdown: CancellationToken::new(),
        };
        let (installed, mut changes) = Installed::follow::<Widget>(&host);

        let wanted = json!({ "spec": { "versions": [
            { "name": "v1", "schema": { "openAPIV3Schema": { "properties": { "status": {} } } } },
        ] } });
        assert_eq!((installed.is_established(), installed.lacking(&wanted)), (false, vec![]));
        changes.next().await.unwrap();
        assert!(host.readiness.is_ready());
        assert_eq!(
            (installed.is_established(), installed.lacking(&wanted)),
            (false, vec!["status".to_owned()])
        );
        changes.next().await.unwrap();
        assert!(!installed.is_established(), "another version is served");
        assert!(installed.clone().established().now_or_never().is_none());
        changes.next().await.unwrap();
        assert_eq!((installed.is_established(), installed.lacking(&wanted)), (true, vec![]));
        assert!(installed.established().now_or_never().is_some());
    }
}
