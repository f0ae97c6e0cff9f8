//! Which provider answers for which cloud, under the settings in force.

use std::{convert::Infallible, sync::Arc, time::Duration};

use futures::{
    FutureExt, Stream, StreamExt,
    future::{BoxFuture, join_all, pending},
    stream,
};
use kube::Client;
use operator_kit::{Leadership, Message, changes::changes};
use parking_lot::Mutex;

use super::{
    CLOUDS, Cloud, CloudSettings, Error, ErrorClass, Limits, Openers, Provider,
    cloud::{Opening, RecordedPlace},
    decorate,
    former_places::{FormerProvider, WithFormerPlaces},
    places::{KnownPlaces, Places},
    sightings::Sightings,
};
use crate::{
    metrics::Metrics,
    settings::{Endpoint, Snapshot},
};

/// A cloud's name as a metric label: one of a fixed set, whatever a PeerPod says.
pub fn cloud_label(cloud: &str) -> &'static str {
    Cloud::named(cloud).map_or("unknown", Cloud::name)
}

/// What all clouds of a process share.
pub(crate) struct CloudsContext {
    /// The client of the API server.
    pub(crate) client: Client,
    /// The operator's namespace, which has the record of the places of VMs.
    pub(crate) namespace: String,
    /// How providers are opened.
    pub(crate) openers: Openers,
    /// Whether this process keeps that record.
    pub(crate) leadership: Leadership,
    /// Where the calls to the clouds are counted.
    pub(crate) metrics: Metrics,
    /// On how many VMs of one cloud the operator works at once.
    pub(crate) concurrency: usize,
}

/// The clouds that the settings in force give access to. Cheap to clone; follows the settings by itself.
#[derive(Clone)]
pub(crate) struct Clouds(Arc<Vec<Source>>);

/// One source of settings, and the provider made from them.
struct Source {
    settings: CloudSettings,
    /// The places of this cloud's VMs, kept by these settings.
    places: Places,
    openers: Openers,
    calls: usize,
    metrics: Metrics,
    built: Mutex<Option<Built>>,
    /// Held while the provider is opened, which reads certificates and other files. So it is opened once, and no thread is blocked
    /// by those that wait for it.
    opening: tokio::sync::Mutex<()>,
}

/// The provider made from one generation of settings and from the places known then.
struct Built {
    generation: u64,
    endpoint: Endpoint,
    known: Arc<KnownPlaces>,
    /// What was seen and missed at that endpoint, by that identity.
    sightings: Arc<Sightings>,
    provider: Result<Arc<dyn Provider>, Error>,
}

/// What the provider is to be made from now.
struct Recipe {
    generation: u64,
    snapshot: Arc<Snapshot>,
    endpoint: Endpoint,
    known: Arc<KnownPlaces>,
}

impl Built {
    /// Whether it was made from the same.
    fn is_of(&self, recipe: &Recipe) -> bool {
        self.generation == recipe.generation && Arc::ptr_eq(&self.known, &recipe.known)
    }

    /// Whether it was made for the same endpoint, where the same identity answers.
    fn is_at_place_of(&self, Recipe { endpoint, known, .. }: &Recipe) -> bool {
        let is_same = self.known.identity == known.identity && self.known.moved_at == known.moved_at;
        self.endpoint == *endpoint && is_same
    }
}

impl Clouds {
    /// The clouds of these settings, and the work of keeping the places of their VMs, which has no end of its own. Only the leader does
    /// it, and nothing [is known](Self::are_known) without it.
    pub(crate) fn serve(
        settings: impl IntoIterator<Item = CloudSettings>,
        context: &CloudsContext,
    ) -> (Self, BoxFuture<'static, Infallible>) {
        let serve = |settings: CloudSettings| {
            let (places, keeping) = Places::keep(settings.clone(), context);
            let source = Source {
                settings,
                places,
                openers: context.openers.clone(),
                calls: context.concurrency,
                metrics: context.metrics.clone(),
                built: Mutex::default(),
                opening: tokio::sync::Mutex::default(),
            };
            (source, keeping)
        };
        let (sources, keeping): (Vec<_>, Vec<_>) = settings.into_iter().map(serve).unzip();
        let keeping = async move {
            join_all(keeping).await;
            // A program may give no settings, and then nothing is kept.
            pending::<Infallible>().await
        };
        (Self(Arc::new(sources)), keeping.boxed())
    }

    /// The number of sources of settings.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the places of this cloud's VMs are known, or the reason why they are not. Until then the operator decides nothing.
    /// [`changes`](Self::changes) yields when that changes.
    pub(crate) fn are_known(&self, cloud: &str) -> bool {
        self.source(cloud).is_none_or(Source::is_known)
    }

    /// The provider for a PeerPod's `spec.cloudProvider`, or why there is none.
    pub(crate) async fn provider(&self, cloud: &str) -> Result<Arc<dyn Provider>, Error> {
        let Some(wanted) = Cloud::named(cloud) else {
            let known = CLOUDS.map(Cloud::name).join(", ");
            let message =
                format!("spec.cloudProvider {cloud:?} is not a cloud that cloud-api-adaptor knows ({known})");
            return Err(Error::new(ErrorClass::NotSupported, Message::public(message)));
        };
        if let Some(refused) = self.refused_for(cloud) {
            return Err(refused);
        }
        let mut sources = self.0.iter().filter(|source| source.cloud() == Some(cloud));
        match (sources.next(), sources.next()) {
            (Some(source), None) => return source.provider(Some(cloud)).await,
            (Some(_), Some(_)) => {
                let message = format!("two settings of this operator are for {cloud} (CLOUD_PROVIDER)");
                return Err(Error::new(ErrorClass::Invalid, Message::public(message)));
            }
            (None, _) => {}
        }
        // Settings that cannot be used might be for this cloud.
        if let Some(unusable) = self.0.iter().find(|source| source.cloud().is_none()) {
            return unusable.provider(None).await;
        }
        let served: Vec<_> = self.0.iter().filter_map(Source::cloud).collect();
        let message = format!(
            "the PeerPod is on {wanted}, but this operator's settings are for {} (CLOUD_PROVIDER); it deletes \
             the VM if its settings are for {wanted} again, or also (--provider)",
            served.join(", ")
        );
        Err(Error::new(ErrorClass::NotSupported, Message::public(message)))
    }

    /// Whether the settings in force turn on developer mode for this cloud. Then no VM is deleted there.
    pub(crate) fn developer_mode(&self, cloud: &str) -> bool {
        let current = self.source(cloud).and_then(|source| source.settings.current().ok());
        current.is_some_and(|(_, snapshot)| snapshot.common.is_developer_mode())
    }

    /// How long cloud-api-adaptor may still return the VM of a Pod that has ended, whichever Pod has that VM by then. Zero at a cloud
    /// that gives no identifier to another VM.
    pub(crate) fn clean_up_time(&self, cloud: &str) -> Duration {
        let current = self.source(cloud).and_then(|source| source.settings.current().ok());
        let current = current.filter(|_| Cloud::named(cloud).is_some_and(|cloud| cloud.reuses_ids));
        current.map_or(Duration::ZERO, |(_, snapshot)| snapshot.common.clean_up_time())
    }

    /// The cloud of the source with this number, to be listed at the place that its settings name. `None` if no settings name
    /// one.
    pub(crate) async fn target(&self, source: usize) -> Option<Target> {
        let target = self.0.get(source)?.target().await?;
        let may_miss_vms = target.may_miss_vms || self.refused_for(target.cloud.name()).is_some();
        Some(Target { may_miss_vms, ..target })
    }

    /// Whether these are still the settings in force of the source with this number.
    pub(crate) fn has_settings(&self, source: usize, settings: &Arc<Snapshot>) -> bool {
        let current = self.0.get(source).and_then(|source| source.settings.current().ok());
        current.is_some_and(|(_, current)| Arc::ptr_eq(&current, settings))
    }

    /// Yields when other settings come into force, and when the known places change.
    pub(crate) fn changes(&self) -> impl Stream<Item = ()> + Send + use<> {
        stream::select_all(self.0.iter().map(|source| {
            let mut settings = source.settings.state.clone();
            settings.mark_unchanged();
            stream::select(changes(settings), source.places.changes()).boxed()
        }))
    }

    /// Why settings for this cloud cannot be used, whether or not other settings for it can.
    fn refused_for(&self, cloud: &str) -> Option<Error> {
        self.0.iter().find_map(|source| source.settings.refused_for(cloud))
    }

    /// The first source that is for this cloud.
    fn source(&self, cloud: &str) -> Option<&Source> {
        self.0.iter().find(|source| source.cloud() == Some(cloud))
    }
}

/// A cloud to be listed.
pub(crate) struct Target {
    pub(crate) cloud: &'static Cloud,
    /// The settings in force.
    pub(crate) settings: Arc<Snapshot>,
    /// The provider of these settings.
    pub(crate) provider: Result<Arc<dyn Provider>, Error>,
    /// Whether VMs may also be in places that the settings named before, or that newer ones name which cannot be used. A listing does
    /// not show these.
    pub(crate) may_miss_vms: bool,
    /// Whether another host, account or pool answers here than before. What the settings declare was said of the former one.
    pub(crate) has_moved: bool,
}

impl Target {
    /// The cloud of these settings, with a provider of its own for this many calls at once. The operator's namespace has the record of the
    /// places. `None`: this version does not know the cloud.
    ///
    /// # Errors
    ///
    /// If the provider cannot be opened, or it cannot be found out whether its place has moved.
    #[cfg(feature = "cli")]
    pub(crate) async fn open(
        settings: Snapshot,
        (client, namespace): (Client, &str),
        calls: usize,
        metrics: Metrics,
    ) -> Result<Option<Self>, Error> {
        let Some(cloud) = Cloud::named(settings.cloud()) else { return Ok(None) };
        let openers = Openers::default().in_cluster(client.clone(), namespace);
        let provider = openers.open(&settings, Opening::new(calls))?;
        let provider = decorate(provider, cloud.name(), Limits::default(), metrics);
        let has_moved = super::places::has_moved(client, namespace, &settings, &*provider).await?;
        let (settings, provider) = (Arc::new(settings), Ok(provider));
        // A command does not conclude that a VM is gone.
        Ok(Some(Self { cloud, settings, provider, may_miss_vms: true, has_moved }))
    }
}

impl Source {
    async fn target(&self) -> Option<Target> {
        let (generation, settings) = self.settings.current().ok()?;
        let cloud = Cloud::named(settings.cloud())?;
        let unknown = || {
            let message = "the operator does not know yet in which places the VMs of this cloud are";
            Err(Error::new(ErrorClass::Transient, message))
        };
        let provider = if self.is_known() { self.provider(Some(cloud.name())).await } else { unknown() };
        let built = self.built.lock();
        let built = built.as_ref().filter(|it| it.generation == generation);
        // If the provider could not be built, nothing is known about it.
        let has_moved = built.is_none_or(|it| it.known.moved_at.is_some());
        // VMs may be where newer settings point, too.
        let is_behind = self.settings.state.borrow().rejected.is_some();
        let may_miss_vms = has_moved || is_behind || built.is_none_or(|it| !it.known.former.is_empty());
        Some(Target { cloud, settings, provider, may_miss_vms, has_moved })
    }

    fn cloud(&self) -> Option<&'static str> {
        self.settings.cloud()
    }

    fn is_known(&self) -> bool {
        let Ok((_, snapshot)) = self.settings.current() else { return true };
        let endpoint = snapshot.endpoint().ok();
        endpoint.is_none_or(|endpoint| self.places.known(endpoint).is_some())
    }

    /// The provider. It is for the `wanted` cloud, if one is named: the settings may just have changed to another one.
    async fn provider(&self, wanted: Option<&str>) -> Result<Arc<dyn Provider>, Error> {
        if let Some(provider) = self.provider_of(&self.recipe(wanted)?) {
            return provider;
        }
        let _alone = self.opening.lock().await;
        // Another call may have opened it meanwhile.
        let recipe = self.recipe(wanted)?;
        if let Some(provider) = self.provider_of(&recipe) {
            return provider;
        }
        let before = self
            .built
            .lock()
            .as_ref()
            .filter(|it| it.is_at_place_of(&recipe))
            .map(|it| Arc::clone(&it.sightings));
        let sightings = before.unwrap_or_default();
        let provider = self.build(&recipe, &sightings);
        let Recipe { generation, endpoint, known, .. } = recipe;
        // If the settings have changed meanwhile, the next call finds this one outdated.
        *self.built.lock() =
            Some(Built { generation, endpoint, known, sightings, provider: provider.clone() });
        provider
    }

    /// What the provider for the `wanted` cloud is to be made from under the settings in force.
    fn recipe(&self, wanted: Option<&str>) -> Result<Recipe, Error> {
        let (generation, snapshot) = self.settings.current()?;
        if wanted != Some(snapshot.cloud()) {
            return Err(Error::new(
                ErrorClass::Transient,
                "the operator's settings have just changed to another cloud",
            ));
        }
        let endpoint =
            snapshot.endpoint().map_err(|obstacle| Error::new(ErrorClass::Invalid, obstacle))?.clone();
        let Some(known) = self.places.known(&endpoint) else {
            let message = "the operator does not know yet in which places the VM may be";
            return Err(Error::new(ErrorClass::Transient, message));
        };
        Ok(Recipe { generation, snapshot, endpoint, known: known? })
    }

    /// The provider that was made from this.
    fn provider_of(&self, recipe: &Recipe) -> Option<Result<Arc<dyn Provider>, Error>> {
        self.built.lock().as_ref().filter(|it| it.is_of(recipe)).map(|it| it.provider.clone())
    }

    fn build(&self, recipe: &Recipe, sightings: &Arc<Sightings>) -> Result<Arc<dyn Provider>, Error> {
        let Recipe { snapshot, endpoint, known, .. } = recipe;
        let cloud = snapshot.cloud();
        let open = |recorded: RecordedPlace<'_>, limits| {
            let opening = Opening { recorded: Some(recorded), ..Opening::new(self.calls) };
            let provider = self.openers.open(snapshot, opening)?;
            Ok::<_, Error>(decorate(provider, cloud, limits, self.metrics.clone()))
        };
        let identity_changed = self.places.identity_changed();
        let current = RecordedPlace::current(&endpoint.address, known.identity.as_deref(), identity_changed);
        let current = open(current, self.places.limits())?;
        let former = known.former.iter().map(|place| FormerProvider {
            place: place.clone(),
            // A place that asks for fewer calls does not stop the calls to another one.
            provider: open(
                RecordedPlace::former(&place.address, place.identity.as_deref()),
                Limits::default(),
            ),
        });
        Ok(Arc::new(WithFormerPlaces {
            current,
            endpoint: endpoint.clone(),
            former: former.collect(),
            known: Arc::clone(known),
            settings: self.settings.state.clone(),
            sightings: Arc::clone(sightings),
            settles_late: Cloud::named(cloud).is_some_and(|cloud| cloud.settles_late),
        }))
    }
}

#[cfg(test)]
pub(crate) mod tests;
