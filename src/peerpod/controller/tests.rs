use std::{future::pending, sync::Mutex, time::Duration};

use futures::future::join;
use kube::client::Body;
use prometheus_client::registry::Registry;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tower::{BoxError, service_fn};

use super::*;
use crate::{provider::state_in_memory, settings::State};

/// A controller for a cloud in memory, with the sender of its settings, which must live as long.
fn controller(client: Client) -> (watch::Sender<State>, PeerPods) {
    let (settings, state) = watch::channel(state_in_memory("gcp", false));
    let (clouds, openers, leadership) =
        ([CloudSettings::any(state)], Openers::default(), Leadership::unlimited());
    let metrics = Metrics::new(&mut Registry::default());
    let options = Options::new("operator");
    (settings, PeerPods::new(client, clouds, openers, leadership, metrics, &options))
}

#[tokio::test(start_paused = true)]
async fn the_controller_itself_keeps_the_places_of_vms() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let asking = Arc::clone(&asked);
    let hangs = service_fn(move |request: hyper::Request<Body>| {
        asking.lock().unwrap().push(request.uri().path().to_owned());
        pending::<Result<hyper::Response<Body>, BoxError>>()
    });
    let (_settings, controller) = controller(Client::new(hangs, "default"));
    let run = controller.run(|| (), CancellationToken::new());
    assert!(timeout(Duration::from_secs(1), run).await.is_err(), "it ended by itself");
    let record = "/api/v1/namespaces/operator/configmaps";
    assert!(asked.lock().unwrap().iter().any(|path| path == record), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn the_shutdown_does_not_wait_for_the_first_list() {
    let hangs = service_fn(async |_: hyper::Request<Body>| {
        pending::<Result<hyper::Response<Body>, BoxError>>().await
    });
    let (_settings, controller) = controller(Client::new(hangs, "default"));
    let shutdown = CancellationToken::new();
    let run = controller.run(|| (), shutdown.clone());
    let stop = async {
        sleep(Duration::from_secs(1)).await;
        shutdown.cancel();
    };
    timeout(Duration::from_secs(2), join(Box::pin(run), stop)).await.unwrap();
}
