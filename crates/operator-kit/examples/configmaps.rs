//! Labels each ConfigMap that has the label `example.com/count` with the number of its keys. Of several replicas, one acts.

use std::{collections::BTreeMap, error::Error, sync::Arc};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::controller::Action;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use operator_kit::api_call::{ApiError, bounded};
use operator_kit::projection::{Part, Projection};
use operator_kit::{ListenAt, client, controller::Host, http, lifecycle, process, shutdown};
use operator_kit::{lease::Election, telemetry, watch};
use prometheus_client::registry::Registry;
use serde_json::json;

/// What it reads of a ConfigMap: far more than usual, so that each key counts. Other fields take no memory, however large they are.
static READ: Projection =
    Projection { metadata: &[("labels", KEYS)], rest: &[("data", Part::All)], most: usize::MAX };
const KEYS: Part = Part::Only(&[("example.com/keys", Part::All)]);

fn main() -> Result<(), Box<dyn Error>> {
    lifecycle::block_on(run())?
}

async fn run() -> Result<(), Box<dyn Error>> {
    telemetry::init(env!("CARGO_CRATE_NAME"), telemetry::LogFormat::Text);
    let shutdown = shutdown::on_signals()?;
    let (mut registry, readiness) = (Registry::default(), http::Readiness::default());
    process::register(&mut registry);
    let endpoints = http::Endpoints {
        health: ListenAt::Everywhere(8081).into(),
        metrics: ListenAt::Everywhere(8080).into(),
        secure: None,
        page: None,
        readiness: readiness.clone(),
        registry,
    };
    let servers = endpoints.serve(&shutdown)?;

    let client = client::infer().await?;
    let election = Election::new(client.clone(), "default", "configmaps", &process::name());
    let leadership = election.leadership();
    let host = Host {
        client: client.clone(),
        crds: &[],
        leadership,
        readiness: readiness.clone(),
        shutdown: shutdown.clone(),
    };
    let labelled = watch::paged().labels("example.com/count");
    let controller =
        host.controller(&READ, labelled, |it: &ConfigMap| (it.data.clone(), it.labels().clone()));
    // It reconciles while this process leads, logs the errors, and tries again what failed.
    let work = Box::pin(host.run(controller, client, reconcile));
    lifecycle::run(work, Some(election), readiness.ready(), &shutdown).await;
    shutdown.cancel();
    servers.stopped().await;
    Ok(())
}

async fn reconcile(config_map: Arc<ConfigMap>, client: Arc<Client>) -> Result<Action, ApiError> {
    let (name, namespace) = (config_map.name_any(), config_map.namespace().unwrap_or_default());
    let keys = config_map.data.as_ref().map_or(0, BTreeMap::len).to_string();
    if config_map.labels().get("example.com/keys") != Some(&keys) {
        let labels = Patch::Merge(json!({ "metadata": { "labels": { "example.com/keys": keys } } }));
        let api = Api::<ConfigMap>::namespaced(Client::clone(&client), &namespace);
        bounded(api.patch(&name, &PatchParams::default(), &labels)).await?;
    }
    Ok(Action::await_change())
}
