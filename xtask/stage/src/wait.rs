//! Waits for conditions. Every wait has a deadline, and its error contains the last state.

use std::{fmt::Debug, pin::pin, time::Duration};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
pub use cluster::wait::eventually;
use futures::StreamExt as _;
use jiff::Timestamp;
use kube::{
    Api, Resource,
    runtime::{WatchStreamExt as _, watcher},
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::timeout;

/// Long enough for anything that takes no time of its own, even on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Watches one object (`None` if it does not exist) until `holds` is true. Returns that state.
pub async fn until<K>(
    api: &Api<K>,
    name: &str,
    what: &str,
    deadline: Duration,
    mut holds: impl FnMut(Option<&K>) -> bool,
) -> Result<Option<K>>
where
    K: Resource + Clone + DeserializeOwned + Serialize + Debug + Send + 'static,
{
    let mut last = "nothing was seen of it".to_owned();
    let watching = async {
        let mut states = pin!(watcher::watch_object(api.clone(), name).default_backoff());
        while let Some(state) = states.next().await {
            match state {
                Ok(object) if holds(object.as_ref()) => return Ok(object),
                Ok(object) => last = describe(object),
                Err(error) => last = format!("watching it failed: {error}"),
            }
        }
        Err(anyhow!("the watch ended"))
    };
    match timeout(deadline, watching).await {
        Ok(outcome) => outcome.with_context(|| format!("waiting until {what}")),
        Err(_) => bail!("waited {deadline:?} in vain until {what}; the last of {name}:\n{last}"),
    }
}

/// Watches one object until it exists and `holds` is true.
pub async fn present<K>(
    api: &Api<K>,
    name: &str,
    what: &str,
    deadline: Duration,
    mut holds: impl FnMut(&K) -> bool,
) -> Result<K>
where
    K: Resource + Clone + DeserializeOwned + Serialize + Debug + Send + 'static,
{
    let found = until(api, name, what, deadline, |object| object.is_some_and(&mut holds)).await?;
    found.with_context(|| format!("{name} is there, and is not"))
}

/// Watches one object until it does not exist.
pub async fn gone<K>(api: &Api<K>, name: &str, deadline: Duration) -> Result<()>
where
    K: Resource + Clone + DeserializeOwned + Serialize + Debug + Send + 'static,
{
    until(api, name, &format!("{name} is gone"), deadline, |object| object.is_none()).await.map(drop)
}

/// The object as YAML for error messages, without fields that do not help a reader.
fn describe<K: Resource + Serialize>(object: Option<K>) -> String {
    let Some(mut object) = object else { return "it does not exist".to_owned() };
    object.meta_mut().managed_fields = None;
    serde_yaml::to_string(&object).unwrap_or_else(|error| format!("it cannot be shown: {error}"))
}

/// The result of a change to an object that may already be gone.
pub fn unless_gone<T>(outcome: kube::Result<T>) -> Result<()> {
    match outcome {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        outcome => Ok(outcome.map(drop)?),
    }
}

/// Waits until a later whole second than this time. The API server and kubelets write times in whole seconds.
pub async fn second_after(time: Timestamp) -> Result<()> {
    eventually("the clock shows another second", DEADLINE, async || {
        ensure!(Timestamp::now().as_second() > time.as_second());
        Ok(())
    })
    .await
}
