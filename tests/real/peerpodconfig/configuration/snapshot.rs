//! Compares the contents of a cluster at two moments.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DynamicObject, ListParams},
    discovery::{Discovery, verbs},
};
use serde_json::{Value, json};
use testbed::wait::{self, DEADLINE};

/// The objects of a cluster, by kind, namespace and name.
pub type Snapshot = BTreeMap<String, Value>;

/// Every object of the cluster, without events and node leases, which change by themselves.
pub async fn everything(client: &Client) -> Result<Snapshot> {
    let mut all = BTreeMap::new();
    let discovery = Discovery::new(client.clone()).run().await?;
    for group in discovery.groups() {
        for (resource, capabilities) in group.recommended_resources() {
            if !capabilities.supports_operation(verbs::LIST)
                || ["Event", "ComponentStatus"].contains(&resource.kind.as_str())
            {
                continue;
            }
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
            let objects = api.list(&ListParams::default()).await;
            for object in objects.with_context(|| format!("listing {}", resource.plural))? {
                let namespace = object.namespace().unwrap_or_default();
                if namespace == "kube-node-lease" {
                    continue;
                }
                let name = format!("{}/{} {namespace}/{}", resource.group, resource.kind, object.name_any());
                all.insert(name, lasting(&resource.kind, serde_json::to_value(object)?));
            }
        }
    }
    Ok(all)
}

/// The part of an object that only its creator changes; of a node also its capacity.
fn lasting(kind: &str, mut object: Value) -> Value {
    for field in ["resourceVersion", "managedFields", "generation"] {
        object["metadata"].as_object_mut().expect("an object has metadata").remove(field);
    }
    if kind == "Lease" {
        object["spec"].take();
    }
    let status = object.as_object_mut().expect("an object").remove("status").unwrap_or_default();
    object["has"] = json!([status["capacity"], status["allocatable"]]);
    object
}

/// Waits until the cluster is as it was.
pub async fn until_as(client: &Client, before: &Snapshot) -> Result<()> {
    wait::eventually("the cluster is as it was", DEADLINE, async || {
        let after = everything(client).await?;
        let names: BTreeSet<_> = before.keys().chain(after.keys()).collect();
        match names.into_iter().find(|name| before.get(*name) != after.get(*name)) {
            Some(name) => bail!("{name} was {:?} and is {:?}", before.get(name), after.get(name)),
            None => Ok(()),
        }
    })
    .await
}
