//! Tools for unit tests of reconcilers. If an expectation fails, they panic, and so the test fails.
//!
//! An [`ApiServer`] follows a script: the calls that a test expects, in order, each with its [`Answer`].
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use kube::{Api, api::{Patch, PatchParams}};
//! use operator_kit::testing::{Answer, ApiServer, Call};
//! use serde_json::json;
//!
//! let server = ApiServer::expecting([
//!     Call::get("/api/v1/namespaces/shop/configmaps/a").answer(Answer::object(&ConfigMap::default())),
//!     Call::patch("/api/v1/namespaces/shop/configmaps/a?fieldManager=me")
//!         .body_with(json!({ "data": { "size": "2" } }))
//!         .answer(Answer::conflict("configmaps", "a")),
//! ]);
//! let config_maps: Api<ConfigMap> = Api::namespaced(server.client(), "shop");
//! config_maps.get("a").await.unwrap();
//! let patch = Patch::Merge(json!({ "data": { "size": "2", "color": "red" } }));
//! let params = PatchParams { field_manager: Some("me".into()), ..PatchParams::default() };
//! assert!(config_maps.patch("a", &params, &patch).await.is_err());
//! # });
//! ```
//!
//! A call that is not the next one in the script gets an error as its answer. When the [`ApiServer`] is dropped, the test then
//! fails with a text that names the call, or the calls that are missing.

mod answer;
mod call;
mod server;

use serde::de::DeserializeOwned;
use serde_json::Value;

pub use self::{
    answer::{Answer, not_of},
    call::Call,
    server::ApiServer,
};
use crate::projection::{Projection, filtered};

/// An object of this type, read as a whole and read through a projection.
///
/// # Panics
///
/// If the object is not of this type.
pub fn read_and_projected<K: DeserializeOwned>(projection: &'static Projection, object: &Value) -> [K; 2] {
    let text = object.to_string();
    [text.clone(), filtered(projection, &text, 7)].map(|text| match serde_json::from_str(&text) {
        Ok(object) => object,
        Err(problem) => panic!("{problem}: {text}"),
    })
}
