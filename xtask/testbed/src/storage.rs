//! Direct access to the API server's storage.

use anyhow::{Result, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use kube::Resource;
use serde_json::json;

use crate::{Testbed, http};

impl Testbed {
    /// Removes all objects of a custom kind, whatever finalizers they have. Through the API server, thousands of them take half a minute.
    pub async fn remove_all<K: Resource<DynamicType = ()>>(&self) -> Result<()> {
        self.remove_below(&format!("{}/{}", K::group(&()), K::plural(&()))).await
    }

    /// Does the same with all objects whose keys in etcd are below this one. The key of an object is `PLURAL/NAMESPACE/NAME`, of one of a
    /// custom kind `GROUP/PLURAL/NAMESPACE/NAME`.
    pub async fn remove_below(&self, key: &str) -> Result<()> {
        // `0` is the character after `/`, so the range is every key below this one.
        let [first, end] = ["/", "0"].map(|last| BASE64.encode(format!("/registry/{key}{last}")));
        let range = json!({ "key": first, "range_end": end }).to_string();
        let (status, answer) = http::post(self.cluster().etcd(), "/v3/kv/deleterange", range).await?;
        ensure!(status == 200, "etcd answers {status}: {answer}");
        Ok(())
    }
}
