//! What happens to admission policies *(client required)*. An API server that has none is not asked for them again and again.

use std::future::pending;

use futures::{Stream, StreamExt, future::ready, stream};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject},
    runtime::{WatchStreamExt, reflector::ObjectRef, watcher},
};
use tokio::sync::watch;
use tracing::warn;

use super::build::{CONFIG_LABEL, policy};
use crate::api::v1alpha1::PeerPodConfig;

/// The configurations in `namespace` whose policy or binding was made, changed or removed, while these are `served`.
pub(super) fn changes(
    client: &Client,
    served: &watch::Receiver<bool>,
    namespace: &str,
) -> impl Stream<Item = ObjectRef<PeerPodConfig>> + Send + 'static {
    let [policies, bindings] = policy::resources().map(|resource| of_kind(client, served, resource));
    let namespace = namespace.to_owned();
    stream::select(policies, bindings).filter_map(move |object| {
        let name = object.labels().get(CONFIG_LABEL);
        ready(name.map(|name| ObjectRef::new(name).within(&namespace)))
    })
}

fn of_kind(
    client: &Client,
    served: &watch::Receiver<bool>,
    resource: ApiResource,
) -> impl Stream<Item = DynamicObject> + Send + 'static {
    let (client, served) = (client.clone(), served.clone());
    let not_served = served.clone();
    stream::repeat(()).then(move |()| until(served.clone(), true)).flat_map(move |()| {
        let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
        watcher(api, watcher::Config::default().labels(CONFIG_LABEL))
            .default_backoff()
            .touched_objects()
            .take_until(until(not_served.clone(), false))
            .filter_map(|object| {
                ready(
                    object
                        .inspect_err(
                            |error| warn!(%error, "watching admission policies failed; trying again"),
                        )
                        .ok(),
                )
            })
    })
}

async fn until(mut served: watch::Receiver<bool>, expected: bool) {
    if served.wait_for(|served| *served == expected).await.is_err() {
        // Nobody will tell any more.
        pending::<()>().await;
    }
}
