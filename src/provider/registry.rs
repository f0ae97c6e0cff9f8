//! Which provider answers for which cloud, under the settings in force.

use std::sync::{Arc, Mutex, PoisonError};

use futures::{Stream, stream};
use operator_kit::{Message, changes::changes};
use tokio::sync::watch;

use super::{
    CLOUDS, Cloud, Error, ErrorClass, Limits, Openers, Places, Provider,
    cloud::{Opening, Recorded},
    decorate,
    places::Known,
    previous_endpoints::{PreviousEndpoint, Seen, WithPrevious},
};
use crate::{
    metrics::Metrics,
    settings::{Endpoint, Snapshot, State},
};

/// A cloud's name as a metric label: one of a fixed set, whatever a PeerPod says.
pub fn cloud_label(cloud: &str) -> &'static str {
    Cloud::named(cloud).map_or("unknown", Cloud::name)
}

/// The clouds that the settings in force give access to. Cheap to clone; follows the settings by itself.
#[derive(Clone)]
pub struct Clouds(Arc<Inner>);

struct Inner {
    openers: Openers,
    settings: watch::Receiver<State>,
    places: Places,
    limits: Limits,
    metrics: Metrics,
    built: Mutex<Option<Built>>,
}

/// What was made of one generation of settings and of what was known of the places.
struct Built {
    generation: u64,
    endpoint: Endpoint,
    known: Arc<Known>,
    /// What was seen at that endpoint, on that host.
    seen: Arc<Seen>,
    provider: Result<(&'static str, Arc<dyn Provider>), Error>,
}

impl Clouds {
    /// Clouds by these settings, each within `limits`; its VMs may be in these places, which were kept with the same `openers`.
    pub fn new(
        openers: Openers,
        settings: watch::Receiver<State>,
        places: Places,
        limits: Limits,
        metrics: Metrics,
    ) -> Self {
        Self(Arc::new(Inner { openers, settings, places, limits, metrics, built: Mutex::default() }))
    }

    /// Whether it is known, or known why not, in which places a VM may be. Until then nothing can be decided;
    /// [`changes`](Self::changes) tells when.
    pub fn are_known(&self) -> bool {
        let state = self.0.settings.borrow();
        let endpoint = state.current.as_ref().and_then(|snapshot| snapshot.endpoint().ok());
        endpoint.is_none_or(|endpoint| self.0.places.known(endpoint).is_some())
    }

    /// The provider for a PeerPod's `spec.cloudProvider`, or why there is none.
    pub fn provider(&self, cloud: &str) -> Result<Arc<dyn Provider>, Error> {
        let Some(wanted) = Cloud::named(cloud) else {
            let known = CLOUDS.map(Cloud::name).join(", ");
            let message =
                format!("spec.cloudProvider {cloud:?} is not a cloud that cloud-api-adaptor knows ({known})");
            return Err(Error::new(ErrorClass::NotSupported, Message::public(message)));
        };
        let (served, provider) = self.built()?;
        if served == wanted.name() {
            return Ok(provider);
        }
        let message = format!(
            "the PeerPod is on {wanted}, but this operator's settings are for {served} (CLOUD_PROVIDER)"
        );
        Err(Error::new(ErrorClass::NotSupported, Message::public(message)))
    }

    /// Whether the settings in force turn on developer mode, in which no VM is deleted.
    pub fn developer_mode(&self) -> bool {
        self.0.settings.borrow().current.as_ref().is_some_and(|it| it.common.is_developer_mode())
    }

    /// Yields whenever other settings come into force, or something else is known of the places.
    pub fn changes(&self) -> impl Stream<Item = ()> + Send + use<> {
        let mut settings = self.0.settings.clone();
        settings.mark_unchanged();
        stream::select(changes(settings), self.0.places.changes())
    }

    fn built(&self) -> Result<(&'static str, Arc<dyn Provider>), Error> {
        let state = self.0.settings.borrow().clone();
        let mut built = self.0.built.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(snapshot) = &state.current else {
            let rejected = state.rejected.as_ref();
            let problem = rejected.map_or("it has not read them yet".into(), |rejected| rejected.message());
            let message = problem.map(|problem| format!("the operator has no valid settings: {problem}"));
            return Err(Error::new(ErrorClass::Invalid, message));
        };
        let endpoint = snapshot.endpoint().map_err(|obstacle| Error::new(ErrorClass::Invalid, obstacle))?;
        let Some(known) = self.0.places.known(endpoint) else {
            let message = "the operator does not know yet in which places the VM may be";
            return Err(Error::new(ErrorClass::Transient, message));
        };
        let known = known?;
        if let Some(built) =
            built.as_ref().filter(|it| it.generation == state.generation && Arc::ptr_eq(&it.known, &known))
        {
            return built.provider.clone();
        }
        let same = |it: &&Built| {
            it.endpoint == *endpoint && it.known.host == known.host && it.known.moved == known.moved
        };
        let seen = built.as_ref().filter(same).map(|before| Arc::clone(&before.seen)).unwrap_or_default();
        let provider = self.build(snapshot, endpoint, &known, &seen);
        let (generation, endpoint) = (state.generation, endpoint.clone());
        *built = Some(Built { generation, endpoint, known, seen, provider: provider.clone() });
        provider
    }

    fn build(
        &self,
        snapshot: &Snapshot,
        endpoint: &Endpoint,
        known: &Arc<Known>,
        seen: &Arc<Seen>,
    ) -> Result<(&'static str, Arc<dyn Provider>), Error> {
        let cloud = snapshot.cloud();
        let (limits, metrics) = (&self.0.limits, &self.0.metrics);
        let at = |address: &str, host: &Option<String>, moved| {
            let recorded = Some(Recorded { address, host: host.as_deref(), moved });
            let opening = Opening { calls: limits.most_calls(), recorded };
            let provider = self.0.openers.open(snapshot, opening)?;
            Ok::<_, Error>(decorate(provider, cloud, limits.clone(), metrics.clone()))
        };
        let current = at(&endpoint.address, &known.host, Some(self.0.places.moved()))?;
        let previous = known.former.iter().map(|former| PreviousEndpoint {
            former: former.clone(),
            provider: at(&former.address, &former.host, None),
        });
        let (previous, known, seen) = (previous.collect(), Arc::clone(known), Arc::clone(seen));
        Ok((cloud, Arc::new(WithPrevious { current, endpoint: endpoint.clone(), known, seen, previous })))
    }
}

#[cfg(test)]
mod tests;
