//! Labels each ConfigMap that has the label `example.com/count` with the number of its keys. Of several replicas, one acts.

use std::{collections::BTreeMap, convert::Infallible, error::Error, future::ready, sync::Arc};

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::{Controller, WatchStreamExt, controller::Action, reflector, watcher};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use operator_kit::{Backoff, Leadership, ListenAt, api_call, client, http, lifecycle, process, shutdown};
use operator_kit::{lease::Election, telemetry, watch};
use prometheus_client::registry::Registry;
use serde_json::json;

type Context = (Client, Leadership, Backoff<String>);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    telemetry::init(env!("CARGO_CRATE_NAME"), telemetry::LogFormat::Text);
    let shutdown = shutdown::on_signals()?;
    let (mut registry, readiness) = (Registry::default(), http::Readiness::default());
    process::register(&mut registry);
    let listed = readiness.needs("ConfigMaps");
    let (health, metrics) = (ListenAt::Everywhere(8081), ListenAt::Everywhere(8080));
    let servers = http::serve(health, metrics, None, readiness, registry, &shutdown)?;

    let client = client::infer().await?;
    let election = Election::new(client.clone(), "default", "configmaps", &process::name());
    let leadership = election.leadership();
    let (store, writer) = reflector::store();
    let changes = watcher(Api::<ConfigMap>::all(client.clone()), watch::paged().labels("example.com/count"));
    let changes = watch::retry_watch("ConfigMaps", changes).reflect(writer).touched_objects();
    let work = Controller::for_stream(changes, store.clone())
        .reconcile_all_on(leadership.changes())
        .graceful_shutdown_on(shutdown.clone().cancelled_owned())
        .run(reconcile, |_, never, _| match *never {}, Arc::new((client, leadership, Backoff::default())))
        .for_each(|_| ready(()));
    let synced = async { store.wait_until_ready().await.map_or((), |()| listed.met()) };
    lifecycle::run(work, Some(election), synced, &shutdown).await;
    shutdown.cancel();
    servers.stopped().await;
    Ok(())
}

async fn reconcile(config_map: Arc<ConfigMap>, context: Arc<Context>) -> Result<Action, Infallible> {
    let (client, leadership, backoff) = &*context;
    let (name, namespace) = (config_map.name_any(), config_map.namespace().unwrap_or_default());
    let keys = config_map.data.as_ref().map_or(0, BTreeMap::len).to_string();
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    let labels = Patch::Merge(json!({ "metadata": { "labels": { "example.com/keys": keys } } }));
    let params = PatchParams::default();
    let written = leadership.while_leading(api_call::bounded(api.patch(&name, &params, &labels))).await;
    let key = format!("{namespace}/{name}");
    if let Some(Err(_)) = written {
        return Ok(Action::requeue(backoff.failed(&key)));
    }
    backoff.succeeded(&key);
    Ok(Action::await_change())
}
