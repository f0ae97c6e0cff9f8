//! The pool of byom, as cloud-api-adaptor writes it.

use std::{collections::BTreeMap, net::Ipv4Addr};

use anyhow::{Context as _, Result, bail, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use serde_json::{Map, Value, json};

use crate::wait::DEADLINE;

/// The `ConfigMap` of the pool.
pub const POOL: &str = "byom-ip-pool-state";

const STATE: &str = "allocation-state";

/// A pool in a `ConfigMap`.
#[derive(Clone)]
pub struct BringYourOwn {
    api: Api<ConfigMap>,
}

/// The content of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InPool {
    /// The Pods that have a machine, by its address. If two Pods have the same machine, only one is here, but `allocations` counts both.
    pub allocated: BTreeMap<String, String>,
    /// The number of allocations.
    pub allocations: usize,
    /// The machines that no Pod has.
    pub available: Vec<String>,
    /// How often the pool has been written.
    pub version: i64,
}

/// A machine's address by its number. Nothing listens there.
pub fn machine(number: u8) -> String {
    Ipv4Addr::new(127, 255, 254, number).to_string()
}

impl BringYourOwn {
    /// The pool in this namespace, written by this client.
    pub fn of(client: Client, namespace: &str) -> Self {
        Self { api: Api::namespaced(client, namespace) }
    }

    /// Makes the pool with these machines.
    pub async fn create(&self, available: &[String]) -> Result<()> {
        let state = json!({ "allocatedIPs": {}, "availableIPs": available, "version": 1 });
        let config_map = ConfigMap {
            metadata: ObjectMeta { name: Some(POOL.to_owned()), ..ObjectMeta::default() },
            data: Some([(STATE.to_owned(), written(state)?)].into()),
            ..ConfigMap::default()
        };
        self.api.create(&PostParams::default(), &config_map).await.context("making the pool")?;
        Ok(())
    }

    /// Gives any free machine to a Pod. Returns its address.
    pub async fn allocate(&self, pod: &str) -> Result<String> {
        let sandbox: String = (0..64).map(|_| fastrand::char('a'..='f')).collect();
        let mut given = String::new();
        self.change(|state| {
            let available = state["availableIPs"].as_array_mut().context("a pool has available machines")?;
            ensure!(!available.is_empty(), "the pool has no machine");
            let address = available.swap_remove(fastrand::usize(..available.len()));
            address.as_str().context("an address")?.clone_into(&mut given);
            let key = format!("{pod}-{sandbox}");
            state["allocatedIPs"][&key] = entry(&key, &given, pod, Timestamp::now());
            Ok(())
        })
        .await?;
        Ok(given)
    }

    /// Records that a Pod has had this machine since then, under this key, whatever Pod had it before.
    pub async fn give(&self, key: &str, address: &str, pod: &str, since: Timestamp) -> Result<()> {
        self.change(|state| {
            take(state, address)?;
            state["allocatedIPs"][key] = entry(key, address, pod, since);
            Ok(())
        })
        .await
    }

    /// Returns a machine to the pool.
    pub async fn end(&self, address: &str) -> Result<()> {
        self.change(|state| {
            take(state, address)?;
            state["availableIPs"]
                .as_array_mut()
                .context("a pool has available machines")?
                .push(address.into());
            Ok(())
        })
        .await
    }

    /// The content of the pool.
    pub async fn content(&self) -> Result<InPool> {
        let (_, state) = self.read().await?;
        let entries = state["allocatedIPs"].as_object().context("a pool has allocations")?;
        let text = |value: &Value| value.as_str().map(str::to_owned).context("a text");
        let allocated = entries.values().map(|entry| Ok((text(&entry["ip"])?, text(&entry["podName"])?)));
        let available = state["availableIPs"].as_array().context("a pool has available machines")?;
        Ok(InPool {
            allocated: allocated.collect::<Result<_>>()?,
            allocations: entries.len(),
            available: available.iter().map(text).collect::<Result<_>>()?,
            version: state["version"].as_i64().context("a pool has a version")?,
        })
    }

    /// Changes the present pool. If another program wrote it in between, this reads it again.
    async fn change(&self, mut change: impl FnMut(&mut Value) -> Result<()>) -> Result<()> {
        let changed = async {
            loop {
                let (mut object, mut state) = self.read().await?;
                change(&mut state)?;
                state["version"] = (state["version"].as_i64().unwrap_or_default() + 1).into();
                object.data.get_or_insert_default().insert(STATE.to_owned(), written(state)?);
                match self.api.replace(POOL, &PostParams::default(), &object).await {
                    Ok(_) => return Ok(()),
                    Err(kube::Error::Api(status)) if status.is_conflict() => {}
                    Err(error) => bail!(error),
                }
            }
        };
        tokio::time::timeout(DEADLINE, changed).await.context("the pool is written by others all the time")?
    }

    async fn read(&self) -> Result<(ConfigMap, Value)> {
        let object = self.api.get(POOL).await.context("reading the pool")?;
        let text = object.data.as_ref().and_then(|data| data.get(STATE)).context("a pool has a state")?;
        let state = serde_json::from_str(text)?;
        Ok((object, state))
    }
}

/// Removes a machine from the pool, whatever Pod has it.
fn take(state: &mut Value, address: &str) -> Result<()> {
    let allocated = state["allocatedIPs"].as_object_mut().context("a pool has allocations")?;
    let rest: Map<_, _> =
        std::mem::take(allocated).into_iter().filter(|(_, it)| it["ip"] != address).collect();
    *allocated = rest;
    let available = state["availableIPs"].as_array_mut().context("a pool has available machines")?;
    available.retain(|it| it != address);
    Ok(())
}

fn entry(key: &str, address: &str, pod: &str, since: Timestamp) -> Value {
    let since = Timestamp::from_second(since.as_second()).unwrap_or(since).to_string();
    json!({ "allocationID": key, "ip": address, "nodeName": "fake-0", "podName": pod, "allocatedAt": since })
}

fn written(mut state: Value) -> Result<String> {
    state["lastUpdated"] = Timestamp::from_second(Timestamp::now().as_second())?.to_string().into();
    Ok(serde_json::to_string_pretty(&state)?)
}
