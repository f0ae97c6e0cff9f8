//! What happens to admission policies *(client required)*. An API server that has none is not asked for them again and again.

use std::{
    future::pending,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures::{Stream, StreamExt, future::ready, stream};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject},
    runtime::{WatchStreamExt, reflector::ObjectRef, watcher},
};
use tokio::sync::watch;

use super::build::{CONFIG_LABEL, policy};
use crate::{
    api::v1alpha1::PeerPodConfig,
    runtime::{
        api_call::{self, ApiError},
        watch::steady,
    },
};

/// For how long an answer is believed. Less than between two looks that nothing asked for, so that each of these asks again.
const BELIEVED: Duration = Duration::from_secs(200);

/// Whether the API server has admission policies, as far as is known.
#[derive(Default)]
pub(super) struct Served {
    told: watch::Sender<bool>,
    asked: Mutex<Option<Instant>>,
}

impl Served {
    /// Asks the API server, if it was not asked of late.
    pub(super) async fn ask(&self, client: &Client) -> Result<bool, ApiError> {
        if self.is_believed(Instant::now()) {
            return Ok(*self.told.borrow());
        }
        let resources = client.list_api_group_resources(policy::GROUP_VERSION);
        let served = policy::served(&api_call::bounded(resources).await?);
        self.learn(served, Instant::now());
        Ok(served)
    }

    /// Has it asked again: it knew something of them no more.
    pub(super) fn doubt(&self) {
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// What is told of it from now on.
    pub(super) fn told(&self) -> watch::Receiver<bool> {
        self.told.subscribe()
    }

    fn is_believed(&self, now: Instant) -> bool {
        let asked = *self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.is_some_and(|asked| now.saturating_duration_since(asked) < BELIEVED)
    }

    fn learn(&self, served: bool, now: Instant) {
        self.told.send_if_modified(|known| std::mem::replace(known, served) != served);
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }
}

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
        steady("admission policies", watcher(api, watcher::Config::default().labels(CONFIG_LABEL)))
            .touched_objects()
            .take_until(until(not_served.clone(), false))
            .filter_map(|object| ready(object.ok()))
    })
}

async fn until(mut served: watch::Receiver<bool>, expected: bool) {
    if served.wait_for(|served| *served == expected).await.is_err() {
        // Nobody will tell any more.
        pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_believed_for_a_while_and_until_it_is_in_doubt() {
        let (served, now) = (Served::default(), Instant::now());
        assert!(!served.is_believed(now));
        served.learn(true, now);
        assert!(*served.told().borrow());
        assert!(served.is_believed(now + BELIEVED / 2));
        assert!(!served.is_believed(now + BELIEVED));
        served.doubt();
        assert!(!served.is_believed(now));
    }
}
