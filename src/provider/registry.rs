//! Which provider answers for which cloud, under the settings in force.

use std::sync::{Arc, Mutex, PoisonError};

use futures::{Stream, stream};
use operator_kit::{Message, changes::changes};
use tokio::sync::{Notify, watch};
use uuid::Uuid;

use super::{
    Error, ErrorClass, Limits, Places, Provider, decorate,
    libvirt::{Expected, Libvirt},
    places::Known,
    previous_endpoints::{PreviousEndpoint, Seen, WithPrevious},
};
use crate::{
    metrics::Metrics,
    settings::{CloudProvider, Endpoint, ProviderSettings, Snapshot, State},
};

/// A cloud's name as a metric label: one of a fixed set, whatever a PeerPod says.
pub fn cloud_label(cloud: &str) -> &'static str {
    cloud.parse::<CloudProvider>().map_or("unknown", CloudProvider::as_str)
}

/// The clouds that the settings in force give access to. Cheap to clone; follows the settings by itself.
#[derive(Clone)]
pub struct Clouds(Arc<Inner>);

struct Inner {
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
    provider: Result<(CloudProvider, Arc<dyn Provider>), Error>,
}

impl Clouds {
    /// Clouds by these settings, each within `limits`; its VMs may be in these places.
    pub fn new(settings: watch::Receiver<State>, places: Places, limits: Limits, metrics: Metrics) -> Self {
        Self(Arc::new(Inner { settings, places, limits, metrics, built: Mutex::default() }))
    }

    /// Whether it is known, or known why not, in which places a VM may be. Until then nothing can be decided;
    /// [`changes`](Self::changes) tells when.
    pub fn are_known(&self) -> bool {
        let state = self.0.settings.borrow();
        let usable = state.current.as_ref().filter(|snapshot| snapshot.obstacle().is_none());
        let endpoint = usable.and_then(|snapshot| snapshot.provider.endpoint());
        endpoint.is_none_or(|endpoint| self.0.places.known(&endpoint).is_some())
    }

    /// The provider for a PeerPod's `spec.cloudProvider`, or why there is none.
    pub fn provider(&self, cloud: &str) -> Result<Arc<dyn Provider>, Error> {
        let Ok(wanted) = cloud.parse::<CloudProvider>() else {
            let known = CloudProvider::ALL.map(CloudProvider::as_str).join(", ");
            let message =
                format!("spec.cloudProvider {cloud:?} is not a cloud that cloud-api-adaptor knows ({known})");
            return Err(Error::new(ErrorClass::NotSupported, Message::public(message)));
        };
        let (served, provider) = self.built()?;
        if served == wanted {
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

    fn built(&self) -> Result<(CloudProvider, Arc<dyn Provider>), Error> {
        let state = self.0.settings.borrow().clone();
        let mut built = self.0.built.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(snapshot) = &state.current else {
            let rejected = state.rejected.as_ref();
            let problem = rejected.map_or("it has not read them yet".into(), |rejected| rejected.message());
            let message = problem.map(|problem| format!("the operator has no valid settings: {problem}"));
            return Err(Error::new(ErrorClass::Invalid, message));
        };
        if let Some(obstacle) = snapshot.obstacle() {
            return Err(Error::new(ErrorClass::Invalid, obstacle));
        }
        let Some(endpoint) = snapshot.provider.endpoint() else {
            return Err(Error::new(ErrorClass::Invalid, "the settings name no place"));
        };
        let Some(known) = self.0.places.known(&endpoint) else {
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
            it.endpoint == endpoint && it.known.host == known.host && it.known.moved == known.moved
        };
        let seen = built.as_ref().filter(same).map(|before| Arc::clone(&before.seen)).unwrap_or_default();
        let provider = self.build(snapshot, &endpoint, &known, &seen);
        let generation = state.generation;
        *built = Some(Built { generation, endpoint, known, seen, provider: provider.clone() });
        provider
    }

    fn build(
        &self,
        snapshot: &Snapshot,
        endpoint: &Endpoint,
        known: &Arc<Known>,
        seen: &Arc<Seen>,
    ) -> Result<(CloudProvider, Arc<dyn Provider>), Error> {
        let cloud = snapshot.provider.provider();
        let (limits, metrics) = (&self.0.limits, &self.0.metrics);
        let at = |address: &str, host: &Option<String>, moved| {
            let provider = connect(&snapshot.provider, address, host.as_deref(), moved, limits.most_calls())?;
            Ok::<_, Error>(decorate(provider, cloud.as_str(), limits.clone(), metrics.clone()))
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

/// The provider that these settings describe, without limits and metrics, for `calls` calls at once and as many that hang: more
/// of them may wait for one another. It connects when it is first used.
pub fn open(snapshot: &Snapshot, calls: usize) -> Result<Box<dyn Provider>, Error> {
    if let Some(obstacle) = snapshot.obstacle() {
        return Err(Error::new(ErrorClass::Invalid, obstacle));
    }
    match &snapshot.provider {
        ProviderSettings::Libvirt(settings) => {
            Ok(Box::new(Libvirt::new(&settings.uri, &settings.pool, calls)?))
        }
    }
}

/// The same at an address that these or other settings name, by the credentials of these. Where another host than `host` answers
/// there, `moved` is told.
fn connect(
    settings: &ProviderSettings,
    address: &str,
    host: Option<&str>,
    moved: Option<Arc<Notify>>,
    calls: usize,
) -> Result<Box<dyn Provider>, Error> {
    match settings {
        ProviderSettings::Libvirt(settings) => {
            let host = host.map(Uuid::try_parse).transpose().map_err(|_| {
                Error::new(
                    ErrorClass::Invalid,
                    "a host in the record of places is no UUID; delete that entry",
                )
            })?;
            let (uri, pool) = (&settings.uri, &settings.pool);
            Ok(Box::new(Libvirt::elsewhere(uri, address, pool, calls, Expected { host, moved })?))
        }
    }
}
