//! Whether the API server supports admission policies, and their changes *(client required)*. The answer is cached.

use std::{
    future::pending,
    time::{Duration, Instant},
};

use futures::{Stream, StreamExt, future::ready, stream};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject},
    runtime::{WatchStreamExt, watcher},
};
use operator_kit::{
    api_call::{self, ApiError},
    watch::{paged, retry_watch},
};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::super::{
    findings::SLOW_RESYNC,
    resources::{CONFIG_LABEL, policy},
};

/// For how long an answer is valid.
const BELIEVED: Duration = Duration::from_secs(200);

// Each slow resync asks again.
const _: () = assert!(BELIEVED.as_secs() < SLOW_RESYNC.as_secs());

/// Whether the API server supports admission policies, as far as is known.
#[derive(Default)]
pub(super) struct PolicySupport {
    supported: watch::Sender<bool>,
    /// When the last answer arrived; `None`: it is in doubt.
    answered: Mutex<Option<Instant>>,
}

impl PolicySupport {
    /// Asks the API server, unless the last answer is still valid.
    pub(super) async fn ask(&self, client: &Client) -> Result<bool, ApiError> {
        if self.is_believed(Instant::now()) {
            return Ok(*self.supported.borrow());
        }
        let resources = client.list_api_group_resources(policy::GROUP_VERSION);
        let served = policy::served(&api_call::bounded(resources).await?);
        self.learn(served, Instant::now());
        Ok(served)
    }

    /// Makes [`Self::ask`] ask again, because an object of these kinds was not found, or because the API server may have changed.
    pub(super) fn doubt(&self) {
        *self.answered.lock() = None;
    }

    /// The answers from now on.
    pub(super) fn subscribe(&self) -> watch::Receiver<bool> {
        self.supported.subscribe()
    }

    fn is_believed(&self, now: Instant) -> bool {
        self.answered.lock().is_some_and(|last| now.saturating_duration_since(last) < BELIEVED)
    }

    fn learn(&self, served: bool, now: Instant) {
        self.supported.send_if_modified(|known| std::mem::replace(known, served) != served);
        *self.answered.lock() = Some(now);
    }
}

/// The names of configurations whose policy or binding was created, changed or removed, while these are `served`.
pub(super) fn changes(
    client: &Client,
    served: &watch::Receiver<bool>,
) -> impl Stream<Item = String> + Send + use<> {
    let [policies, bindings] = policy::resources().map(|resource| of_kind(client, served, resource));
    stream::select(policies, bindings).filter_map(|object| ready(object.labels().get(CONFIG_LABEL).cloned()))
}

fn of_kind(
    client: &Client,
    served: &watch::Receiver<bool>,
    resource: ApiResource,
) -> impl Stream<Item = DynamicObject> + Send + use<> {
    let (client, served) = (client.clone(), served.clone());
    let not_served = served.clone();
    stream::repeat(()).then(move |()| until(served.clone(), true)).flat_map(move |()| {
        let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
        retry_watch("admission policies", watcher(api, paged().labels(CONFIG_LABEL)))
            .touched_objects()
            .take_until(until(not_served.clone(), false))
            .filter_map(|object| ready(object.ok()))
    })
}

async fn until(mut served: watch::Receiver<bool>, expected: bool) {
    if served.wait_for(|served| *served == expected).await.is_err() {
        // No further answer will arrive.
        pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_believed_for_a_while_and_until_it_is_in_doubt() {
        let (support, now) = (PolicySupport::default(), Instant::now());
        assert!(!support.is_believed(now));
        support.learn(true, now);
        assert!(*support.subscribe().borrow());
        assert!(support.is_believed(now + BELIEVED / 2));
        assert!(!support.is_believed(now + BELIEVED));
        support.doubt();
        assert!(!support.is_believed(now));
    }
}
