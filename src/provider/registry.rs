//! Which provider answers for which cloud, under the settings in force.

use std::sync::{Arc, Mutex, PoisonError};

use futures::{Stream, stream};
use tokio::sync::watch;

use super::{
    Error, ErrorClass, Limits, Provider, decorate,
    earlier::{EarlierPlace, Seen, WithEarlier},
    libvirt::Libvirt,
};
use crate::{
    runtime::{Message, Metrics},
    settings::{CloudProvider, Earlier, Place, ProviderSettings, Snapshot, State},
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
    limits: Limits,
    metrics: Metrics,
    built: Mutex<Option<Built>>,
}

/// What was made of one generation of settings.
struct Built {
    generation: u64,
    place: Option<Place>,
    /// What was seen in that place.
    seen: Arc<Seen>,
    provider: Result<(CloudProvider, Arc<dyn Provider>), Error>,
}

impl Clouds {
    /// Clouds by these settings, each within `limits`.
    pub fn new(settings: watch::Receiver<State>, limits: Limits, metrics: Metrics) -> Self {
        Self(Arc::new(Inner { settings, limits, metrics, built: Mutex::default() }))
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

    /// Yields whenever other settings come into force.
    pub fn changes(&self) -> impl Stream<Item = ()> + Send + use<> {
        let mut settings = self.0.settings.clone();
        settings.mark_unchanged();
        stream::unfold(settings, |mut settings| async move {
            settings.changed().await.ok().map(|()| ((), settings))
        })
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
        match &*built {
            Some(built) if built.generation == state.generation => built.provider.clone(),
            before => {
                let place = snapshot.provider.place();
                let before = before.as_ref().filter(|before| before.place == place);
                let seen = before.map(|before| Arc::clone(&before.seen)).unwrap_or_default();
                let provider = self.build(snapshot, &state.earlier, &seen);
                let generation = state.generation;
                *built = Some(Built { generation, place, seen, provider: provider.clone() });
                provider
            }
        }
    }

    fn build(
        &self,
        snapshot: &Snapshot,
        earlier: &[Earlier],
        seen: &Arc<Seen>,
    ) -> Result<(CloudProvider, Arc<dyn Provider>), Error> {
        let cloud = snapshot.provider.provider();
        let (limits, metrics) = (&self.0.limits, &self.0.metrics);
        let decorated = |provider| decorate(provider, cloud.as_str(), limits.clone(), metrics.clone());
        let current = decorated(open(snapshot, limits.most_calls())?);
        let Some(place) = snapshot.provider.place() else { return Ok((cloud, current)) };
        let earlier = earlier.iter().filter(|earlier| earlier.settings.provider() == cloud).map(|earlier| {
            let Earlier { place, settings, until } = earlier.clone();
            let provider = decorated(connect(&settings, limits.most_calls())?);
            Ok(EarlierPlace { place, until, provider })
        });
        let earlier = earlier.collect::<Result<Vec<_>, Error>>()?;
        if earlier.is_empty() {
            return Ok((cloud, current));
        }
        Ok((cloud, Arc::new(WithEarlier { current, place: place.name, seen: Arc::clone(seen), earlier })))
    }
}

/// The provider that these settings describe, without limits and metrics, for `calls` calls at once and as many that hang: more
/// of them may wait for one another. It connects when it is first used.
pub fn open(snapshot: &Snapshot, calls: usize) -> Result<Box<dyn Provider>, Error> {
    if let Some(obstacle) = snapshot.obstacle() {
        return Err(Error::new(ErrorClass::Invalid, obstacle));
    }
    connect(&snapshot.provider, calls)
}

/// The same without asking whether something speaks against deletions.
fn connect(settings: &ProviderSettings, calls: usize) -> Result<Box<dyn Provider>, Error> {
    match settings {
        ProviderSettings::Libvirt(settings) => {
            Ok(Box::new(Libvirt::new(&settings.uri, &settings.pool, calls)?))
        }
    }
}
