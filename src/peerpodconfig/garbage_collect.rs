//! Removes what is left of configurations whose finalizer was removed by force, perhaps while no operator ran *(client
//! required)*.
//!
//! Kubernetes' garbage collector removes what is in a namespace. This removes the rest: cluster-scoped objects, and what the
//! operator wrote to nodes and to the ServiceAccount. It keeps what may belong to a configuration that exists in any namespace.

use std::{convert::Infallible, future::pending, sync::Arc, time::Duration};

use futures::{Stream, StreamExt};
use kube::{Api, Client, ResourceExt, api::ListParams};
use operator_kit::{
    Backoff, Leadership,
    api_call::{self, ApiError, is_served},
    metadata::Metadata,
    projection::reading,
};
use tokio::time::sleep;
use tracing::{info, warn};

use super::{
    FINALIZER, configs::Configs, findings::ReconcileError, resources::CONFIG_LABEL, rooms::Rooms,
    watches::CONFIG,
};
use crate::api::v1alpha1::PeerPodConfig;

/// Collects the garbage.
pub(super) struct GarbageCollector {
    client: Client,
    rooms: Arc<Rooms>,
    /// The operator's own namespace.
    namespace: String,
    leadership: Leadership,
}

impl GarbageCollector {
    pub(super) fn new(client: Client, rooms: Arc<Rooms>, configs: &Configs, leadership: Leadership) -> Self {
        Self { client, rooms, namespace: configs.namespace().to_owned(), leadership }
    }

    /// Collects garbage at each item of `asked` while this process leads, and again after a failure.
    pub(super) async fn run(self, asked: impl Stream<Item = ()>) -> Infallible {
        let backoff = Backoff::default();
        let mut again: Option<Duration> = None;
        let mut asked = std::pin::pin!(asked);
        loop {
            let wait = async {
                match again {
                    Some(time) => sleep(time).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                Some(()) = asked.next() => {}
                () = wait => {}
            }
            // A process that does not lead gets another request when it begins to lead.
            again = match self.leadership.while_leading(self.collect()).await {
                None => None,
                Some(Ok(again)) => {
                    backoff.succeeded(&());
                    again
                }
                Some(Err(error)) => {
                    let again = backoff.failed(&());
                    warn!(%error, ?again, "removing objects of deleted PeerPodConfigs failed; the operator tries again");
                    Some(again)
                }
            };
        }
    }

    /// Removes what is left of configurations that no longer exist. Returns when to collect again without an event.
    async fn collect(&self) -> Result<Option<Duration>, ReconcileError> {
        self.rooms.capacity.nodes().wait_until_known().await;
        // Meanwhile no reconcile creates objects that would seem to be left behind.
        let _turn = self.rooms.turn.lock().await;
        let made = self.rooms.admission.cluster_scoped_objects().await?;
        // Read after the objects, and not from the store, which may lag: so every configuration that has objects is in the list.
        let configs = self.all_configurations().await?;
        let is_here = |config: &Metadata<_>| config.namespace().as_ref() == Some(&self.namespace);
        for (kind, object) in made {
            let Some(config) = object.labels().get(CONFIG_LABEL) else { continue };
            let of_that_name = || configs.iter().filter(|it| it.name_any() == *config);
            if of_that_name().next().is_none() {
                self.rooms.objects.remove_unchanged(&kind, &object).await?;
            } else if !of_that_name().any(is_here) {
                let (kind, name) = (kind.resource.kind, object.name_any());
                info!(
                    kind,
                    name,
                    "the operator keeps this object: a PeerPodConfig {config} exists in another namespace"
                );
            }
        }
        let is_held = |config: &Metadata<PeerPodConfig>| config.finalizers().iter().any(|it| it == FINALIZER);
        if configs.iter().any(|config| is_here(config) || is_held(config)) {
            // The next reconcile of any of these configurations corrects all nodes.
            return Ok(None);
        }
        self.rooms.adaptor.annotate_service_account(&[]).await?;
        Ok(self.rooms.capacity.pass(&[]).await?.and_then(|pass| pass.again))
    }

    /// All configurations; none if their definition was removed by force, which leaves everything that was created for them.
    async fn all_configurations(&self) -> Result<Vec<Metadata<PeerPodConfig>>, ApiError> {
        let api = Api::<Metadata<PeerPodConfig>>::all(reading(&self.client, &CONFIG));
        let mut configs = Vec::new();
        match api_call::for_each(&api, &ListParams::default(), |config| configs.push(config)).await {
            Err(error)
                if error.code() == Some(404)
                    && !api_call::bounded(is_served::<PeerPodConfig>(&self.client)).await? =>
            {
                Ok(Vec::new())
            }
            listed => listed.map(|()| configs),
        }
    }
}

#[cfg(test)]
mod tests {
    use operator_kit::testing::{Answer, ApiServer, Call};
    use serde_json::{Value, json};

    use super::{super::options::Options, *};

    const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";

    fn list(path: impl Into<String>, items: &Value) -> Call {
        let list = json!({
            "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "1" }, "items": items,
        });
        Call::get(path).answer(Answer::json(200, &list))
    }

    #[tokio::test]
    async fn nodes_and_service_account_are_left_to_a_configuration_that_has_no_finalizer_yet() {
        let no_policies = json!({ "kind": "APIResourceList", "groupVersion": "v1", "resources": [] });
        let config = json!({ "metadata": { "name": "config", "namespace": "ns" } });
        let server = ApiServer::expecting([
            list("/api/v1/nodes", &json!([])),
            Call::get(ADMISSION).answer(Answer::json(200, &no_policies)),
            list(format!("{ADMISSION}/mutatingwebhookconfigurations"), &json!([])),
            list("/apis/confidentialcontainers.org/v1alpha1/peerpodconfigs", &json!([config])),
        ]);
        let client = server.client();
        let (rooms, mut changes) = Rooms::watch(&client, &Arc::new(Options::new("ns")));
        changes.nodes.next().await.unwrap();
        let collector = GarbageCollector {
            client,
            rooms: Arc::new(rooms),
            namespace: "ns".to_owned(),
            leadership: Leadership::unlimited(),
        };
        assert_eq!(collector.collect().await.unwrap(), None);
    }
}
