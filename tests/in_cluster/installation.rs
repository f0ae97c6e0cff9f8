//! Installing and removing the operator with the documented commands.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use peerpod_operator::{NAMESPACE, api::v1alpha1::PeerPod, names::PLACES};
use serde_json::{Value, json};
use testbed::{
    Caa, docs,
    wait::{self, DEADLINE},
};

use crate::support::Installation;

/// How the operator can be installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Kustomize,
    Helm,
    Manifests,
}

impl Installation {
    /// Makes sure that the operator is installed in this way and in no other.
    pub async fn install(&mut self, way: Way) -> Result<()> {
        if self.way == Some(way) {
            return Ok(());
        }
        self.remove().await?;
        // The next test may have another cloud.
        let records: Api<ConfigMap> = Api::namespaced(self.testbed.client(), NAMESPACE);
        wait::unless_gone(records.delete(PLACES, &DeleteParams::default()).await)?;
        match way {
            Way::Kustomize => self.shell.documented("kustomize").await,
            Way::Helm => self.shell.documented("helm").await,
            Way::Manifests => self.shell.documented("manifests").await,
        }?;
        self.way = Some(way);
        self.testbed.collect_new_kinds().await?;
        self.caa = Some(Caa::install(&self.testbed).await?);
        self.enforce("restricted").await
    }

    /// Removes the operator in the way in which it was installed.
    pub async fn remove(&mut self) -> Result<()> {
        match self.way {
            Some(way @ (Way::Kustomize | Way::Manifests)) => {
                self.end_peer_pods().await?;
                // A Pod that is just ending, or a kubelet that has just come back, accepts no commands.
                wait::eventually("the operator drains", DEADLINE, async || {
                    self.shell.documented("drain").await
                })
                .await?;
                let remove = docs::block("remove")?;
                let what = if way == Way::Kustomize { "-k my-cluster" } else { "-f manifests/" };
                self.shell.run(&remove.replace("-k my-cluster", what)).await?;
            }
            // The remains of the removal must not hinder the next installation.
            Some(Way::Helm) => {
                self.end_peer_pods().await?;
                self.shell.documented("helm-uninstall").await?;
            }
            None => {}
        }
        (self.way, self.caa) = (None, None);
        Ok(())
    }

    /// Deletes all Pods that have a machine, also those of other tests, and waits until no machine is recorded.
    pub async fn end_peer_pods(&self) -> Result<()> {
        let peerpods: Api<PeerPod> = Api::all(self.testbed.client());
        for peerpod in peerpods.list(&ListParams::default()).await? {
            let pods: Api<Pod> =
                Api::namespaced(self.testbed.client(), &peerpod.namespace().unwrap_or_default());
            for owner in peerpod.owner_references() {
                wait::unless_gone(pods.delete(&owner.name, &DeleteParams::default()).await)?;
            }
        }
        wait::eventually("no machine is recorded", DEADLINE, async || {
            let left = peerpods.list(&ListParams::default()).await?.items;
            let status = left.first().map(|peerpod| (peerpod.name_any(), &peerpod.status));
            ensure!(left.is_empty(), "{} PeerPods are there, such as {status:?}", left.len());
            Ok(())
        })
        .await
    }

    /// Deletes the entries of places that the settings no longer name, as an administrator would.
    pub async fn forget_earlier_places(&self) -> Result<()> {
        let records: Api<ConfigMap> = Api::namespaced(self.testbed.client(), NAMESPACE);
        wait::eventually("the earlier places are recorded", DEADLINE, async || {
            let mut earlier = json!({});
            for (key, text) in records.get(PLACES).await?.data.unwrap_or_default() {
                let entry: Value = serde_json::from_str(&text)?;
                if entry.get("until").is_some() {
                    earlier[key] = Value::Null;
                }
            }
            ensure!(earlier != json!({}), "no place is an earlier one yet");
            records.patch(PLACES, &PatchParams::default(), &Patch::Merge(json!({ "data": earlier }))).await?;
            Ok(())
        })
        .await
    }

    /// Limits Pods of the operator's namespace to this profile.
    pub async fn enforce(&self, profile: &str) -> Result<()> {
        let enforce = format!("pod-security.kubernetes.io/enforce={profile}");
        self.testbed.cluster().kubectl(&["label", "--overwrite", "namespace", NAMESPACE, &enforce]).await?;
        Ok(())
    }

    /// The profile that Pods of the operator's namespace are limited to.
    pub async fn enforced(&self) -> Result<String> {
        let label = r"jsonpath={.metadata.labels.pod-security\.kubernetes\.io/enforce}";
        self.testbed.cluster().kubectl(&["get", "namespace", NAMESPACE, "--output", label]).await
    }
}
