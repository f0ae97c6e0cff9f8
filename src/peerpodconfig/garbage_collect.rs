//! What is left of configurations that nobody took back *(client required)*: their finalizer was removed by force, perhaps
//! while no operator ran.
//!
//! What is in a namespace the garbage collector removes. Here goes what it does not know of: objects in no namespace, and
//! what stands on nodes and on the ServiceAccount. What might be for a configuration that exists, in whatever namespace,
//! stays.

use std::{convert::Infallible, future::pending, time::Duration};

use futures::{Stream, StreamExt};
use kube::{Api, ResourceExt, api::ListParams};
use operator_kit::{
    Backoff,
    api_call::{self, ApiError, is_served},
    metadata::Metadata,
    projection::reading,
};
use tokio::time::sleep;
use tracing::{info, warn};

use super::{Context, FINALIZER, apply, reconcile::ReconcileError, resources::CONFIG_LABEL, watches::CONFIG};
use crate::api::v1alpha1::PeerPodConfig;

impl Context {
    /// Sweeps whenever it is `asked` to while this process leads, and again after what failed.
    pub(super) async fn collect_garbage_when_asked(&self, asked: impl Stream<Item = ()>) -> Infallible {
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
            // One that does not lead is asked again when it does.
            again = match self.leadership.while_leading(self.garbage_collect()).await {
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

    /// Removes what is left of configurations that are gone. When to look again, if nothing happens before.
    async fn garbage_collect(&self) -> Result<Option<Duration>, ReconcileError> {
        self.capacity.nodes().wait_until_known().await;
        // Meanwhile no configuration gets what is taken for left behind.
        let _turn = self.turn.lock().await;
        let mut made = Vec::new();
        // What is not known of now stays until the next sweep.
        self.policies.doubt();
        // What leads API servers to the others goes first.
        for kind in self.admission_kinds(self.policies.ask(&self.client).await?).into_iter().rev() {
            if kind.namespace.is_none() {
                let objects = apply::made(&self.client, &kind).await?;
                made.extend(objects.into_iter().map(|object| (kind.clone(), object)));
            }
        }
        // Read after the objects, and not from the store, which may lag behind: whatever these were made for is there.
        let configs = self.all_configurations().await?;
        let is_here = |config: &Metadata<_>| config.namespace().as_ref() == Some(&self.options.namespace);
        for (kind, object) in made {
            let Some(config) = object.labels().get(CONFIG_LABEL) else { continue };
            let of_that_name = || configs.iter().filter(|it| it.name_any() == *config);
            if of_that_name().next().is_none() {
                apply::remove_unchanged(&self.client, &kind, &object).await?;
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
            // The nodes are theirs, and the next pass of any of them puts right those that are nobody's.
            return Ok(None);
        }
        self.annotate_service_account().await?;
        Ok(self.capacity.pass(&[]).await?.and_then(|pass| pass.again))
    }

    /// Without their definition there are none: whoever removed that by force left all that was made for them.
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
