//! Watches that continue after failures.
//!
//! A `Controller` has one pause for all that it watches. After any failure it hears of nothing for a while, and for ever longer
//! while other watches fail, too. After an outage of seconds that can be minutes. So errors are handled where they occur.

use std::{
    collections::HashMap,
    fmt::Display,
    future::ready,
    hash::{BuildHasher, Hash, RandomState},
    mem::take,
    sync::Arc,
    time::Duration,
};

use futures::{Stream, StreamExt, TryStreamExt, stream};
use kube::{
    Resource,
    runtime::{
        WatchStreamExt,
        reflector::{ObjectRef, Store},
        utils::Backoff,
        watcher::{self, DefaultBackoff},
    },
};
use tracing::warn;

use crate::{api_call, crd::Crds};

/// How many objects one page of the first list has: enough for few round trips, few enough for little memory.
const PAGE: u32 = 100;

/// The same where only names are read.
pub const NAMES_PAGE: u32 = 1000;

/// The longest pause after an error. An outage delays what follows it by as much, deletions of VMs among it.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A watch whose first list comes page by page.
pub fn paged() -> watcher::Config {
    watcher::Config::default().page_size(PAGE)
}

/// A watch without its errors: they are logged, and only this watch pauses before it continues. The items are `Result`s anyway,
/// as combinators and controllers expect. `what`: the kind of objects, for the log.
pub fn retry_watch<T: Send>(
    what: impl Display + Send,
    watch: impl Stream<Item = Result<T, watcher::Error>> + Send,
) -> impl Stream<Item = Result<T, watcher::Error>> + Send {
    without_errors(watch, move |error| {
        warn!("the watch of {what} failed; the operator tries again: {}", text(error));
    })
}

/// A watch without its errors, as [`retry_watch`] makes it, of a kind whose CRD may not be installed yet. If that is why it failed, the
/// log gives the command of `crds`.
pub fn retry_crd_watch<K: Resource<DynamicType = ()>, T: Send>(
    crds: &'static [Crds],
    watch: impl Stream<Item = Result<T, watcher::Error>> + Send,
) -> impl Stream<Item = Result<T, watcher::Error>> + Send {
    without_errors(watch, move |error| {
        let missing = cause(error).and_then(|error| crds.iter().find_map(|it| it.missing::<K>(error)));
        let problem = missing.unwrap_or_else(|| text(error));
        warn!("the watch of {} failed; the operator tries again: {problem}", K::plural(&()));
    })
}

/// The objects of which `part` changed, new ones among them, and the deleted ones: enough for a reconcile that reads no more of
/// them. When the watch lists anew, it gives every object again, once the list is whole: a cache of kube has them only then. It
/// also gives what was deleted while the watch was down, of which no event tells: the objects of the cache that are not on the list.
///
/// `cache`: what `watch` fills by `reflect`.
///
/// kube's `predicate_filter` compares a deleted object with what it was before, and so hides a deletion that changes nothing else.
pub(crate) fn changed_objects<K, H: Hash>(
    cache: Store<K>,
    watch: impl Stream<Item = Result<watcher::Event<K>, watcher::Error>> + Send,
    part: impl Fn(&K) -> H + Send,
) -> impl Stream<Item = Result<K, watcher::Error>> + Send
where
    K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
{
    let (hasher, mut seen) = (RandomState::new(), HashMap::new());
    let (mut known, mut listed) = (Vec::new(), Vec::new());
    let key = |object: &K| object.meta().uid.clone().unwrap_or_default();
    let given = watch.map(move |event| {
        let given = match event {
            Ok(watcher::Event::Apply(object)) => {
                let hash = hasher.hash_one(part(&object));
                let before = seen.insert(key(&object), hash);
                (before != Some(hash)).then(|| Arc::new(object)).into_iter().collect()
            }
            Ok(watcher::Event::Delete(object)) => {
                seen.remove(&key(&object));
                vec![Arc::new(object)]
            }
            Ok(watcher::Event::Init) => {
                seen.clear();
                listed.clear();
                // The cache keeps them until the new list is whole.
                known = cache.state();
                Vec::new()
            }
            Ok(watcher::Event::InitApply(object)) => {
                seen.insert(key(&object), hasher.hash_one(part(&object)));
                // Until the list is whole, the cache's writer has the object.
                listed.push(ObjectRef::from_obj(&object));
                Vec::new()
            }
            Ok(watcher::Event::InitDone) => {
                let deleted = take(&mut known).into_iter().filter(|object| !seen.contains_key(&key(object)));
                take(&mut listed).iter().filter_map(|listed| cache.get(listed)).chain(deleted).collect()
            }
            Err(error) => return vec![Err(error)],
        };
        given.into_iter().map(Ok).collect()
    });
    // Each is copied when it is taken: copies of all objects of a list would take as much memory as the cache.
    given.flat_map(|given: Vec<_>| stream::iter(given).map_ok(Arc::unwrap_or_clone))
}

/// The HTTP status by which a watch failed, if it did.
pub fn code(error: &watcher::Error) -> Option<u16> {
    match (cause(error), error) {
        (Some(kube::Error::Api(status)), _) | (None, watcher::Error::WatchError(status)) => Some(status.code),
        _ => None,
    }
}

/// Why a watch failed, as a short text.
pub fn text(error: &watcher::Error) -> String {
    match error {
        watcher::Error::WatchError(status) => status.to_string(),
        error => cause(error).map_or_else(|| error.to_string(), api_call::text),
    }
}

/// The error of the call that failed, if one did.
pub fn cause(error: &watcher::Error) -> Option<&kube::Error> {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => Some(error),
        watcher::Error::WatchError(_) | watcher::Error::NoResourceVersion => None,
    }
}

/// A watch that pauses after an error: for longer each time, up to 10 s, and for 2 s at most again after 2 minutes without one.
///
/// kube's own `default_backoff` begins anew at every item, and a watch gives an item before each list. So while lists fail, its pauses
/// stay short. `watch_object` hides that item: then they grow to 30 s, and an outage delays what follows it by as much.
pub fn backing_off<T: Send>(
    watch: impl Stream<Item = Result<T, watcher::Error>> + Send,
) -> impl Stream<Item = Result<T, watcher::Error>> + Send {
    watch.backoff(ByTime(DefaultBackoff::default()))
}

/// A backoff that time alone resets.
struct ByTime(DefaultBackoff);

impl Iterator for ByTime {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next().map(|pause| pause.min(LONGEST_PAUSE))
    }
}

impl Backoff for ByTime {
    fn reset(&mut self) {}
}

fn without_errors<T: Send>(
    watch: impl Stream<Item = Result<T, watcher::Error>> + Send,
    log: impl Fn(&watcher::Error) + Send,
) -> impl Stream<Item = Result<T, watcher::Error>> + Send {
    backing_off(watch).filter(move |item| {
        if let Err(error) = item {
            log(error);
        }
        ready(item.is_ok())
    })
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, stream};
    use k8s_openapi::api::core::v1::Pod;
    use kube::{
        core::Status,
        runtime::{reflector, watcher::Event},
    };
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;

    #[test]
    fn a_watch_that_failed_is_reported_in_a_short_text() {
        let status = Status::failure("nodes is forbidden", "Forbidden").with_code(403).boxed();
        let failed = watcher::Error::InitialListFailed(kube::Error::Api(status));
        let text = text(&failed);
        assert_eq!(text.matches("nodes is forbidden").count(), 1, "{text}");
        assert!(!text.contains("Status {"), "{text}");
    }

    #[test]
    fn an_object_is_emitted_on_a_relevant_change_on_deletion_and_on_a_new_list() {
        let pod = |phase: &str, version: u32| -> Pod {
            let metadata = json!({ "name": "a", "uid": "u", "resourceVersion": version.to_string() });
            serde_json::from_value(json!({ "metadata": metadata, "status": { "phase": phase } })).unwrap()
        };
        let events = vec![
            Event::Init,
            Event::InitApply(pod("Pending", 1)),
            Event::InitDone,
            Event::Apply(pod("Pending", 2)),
            Event::Apply(pod("Running", 3)),
            Event::Apply(pod("Running", 4)),
            Event::Init,
            Event::InitApply(pod("Running", 5)),
            Event::InitDone,
            Event::Delete(pod("Running", 6)),
            Event::Apply(pod("Running", 7)),
        ];
        let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone());
        let (cache, writer) = reflector::store::<Pod>();
        let given = changed_objects(cache, stream::iter(events.into_iter().map(Ok)).reflect(writer), phase);
        let given = given.map(|pod| pod.unwrap().metadata.resource_version.unwrap());
        let given: Vec<_> = given.collect().now_or_never().unwrap();
        assert_eq!(given, ["1", "3", "5", "6", "7"]);
    }

    /// A cache of kube lacks the objects of a list until all pages are read.
    #[tokio::test]
    async fn no_object_is_given_before_the_list_is_whole() {
        let pod = |uid: &str| -> Pod {
            serde_json::from_value(json!({ "metadata": { "name": uid, "uid": uid } })).unwrap()
        };
        let (events, received) = futures::channel::mpsc::unbounded();
        let (cache, writer) = reflector::store::<Pod>();
        let mut given = changed_objects(cache, received.reflect(writer), |_| ()).boxed();
        // A list that was begun and failed is forgotten.
        for event in [Event::Init, Event::InitApply(pod("a")), Event::Init, Event::InitApply(pod("b"))] {
            events.unbounded_send(Ok(event)).unwrap();
        }
        assert!(given.next().now_or_never().is_none());
        events.unbounded_send(Ok(Event::InitDone)).unwrap();
        assert_eq!(given.next().await.unwrap().unwrap().metadata.uid.as_deref(), Some("b"));
        assert!(given.next().now_or_never().is_none());
    }

    #[test]
    fn objects_deleted_during_an_outage_are_emitted_with_the_next_list() {
        let pod = |name: &str, uid: &str| -> Pod {
            serde_json::from_value(json!({ "metadata": { "name": name, "uid": uid } })).unwrap()
        };
        let events = vec![
            Event::Init,
            Event::InitApply(pod("a", "1")),
            Event::InitApply(pod("b", "2")),
            Event::InitDone,
            Event::Apply(pod("c", "3")),
            Event::Delete(pod("b", "2")),
            // A list that failed, and one without "a", with another "c".
            Event::Init,
            Event::InitApply(pod("d", "4")),
            Event::Init,
            Event::InitApply(pod("c", "5")),
            Event::InitDone,
            Event::Init,
            Event::InitDone,
        ];
        let (cache, writer) = reflector::store::<Pod>();
        let given = changed_objects(cache, stream::iter(events.into_iter().map(Ok)).reflect(writer), |_| ());
        let given = given.map(|pod| pod.unwrap().metadata.uid.unwrap());
        let mut given: Vec<_> = given.collect().now_or_never().unwrap();
        assert_eq!(given[..4], ["1", "2", "3", "2"]);
        // A cache has no order.
        given[5..7].sort_unstable();
        assert_eq!(given[4..], ["5", "1", "3", "5"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_watch_resumes_after_a_pause_and_others_do_not_wait() {
        let failing = stream::iter([Err(watcher::Error::NoResourceVersion), Ok("late")]);
        let others = stream::iter([Ok("a"), Ok("b")]);
        let start = Instant::now();
        let mut all =
            stream::select(retry_watch("one", failing).boxed(), retry_watch("others", others).boxed());
        for expected in ["a", "b"] {
            assert_eq!(all.next().now_or_never().unwrap().unwrap().unwrap(), expected);
        }
        assert_eq!(all.next().await.unwrap().unwrap(), "late");
        assert!(start.elapsed() > Duration::from_millis(400), "it did not wait");
        assert!(all.next().await.is_none());
    }

    /// kube's watch gives `Init` before each list.
    #[tokio::test(start_paused = true)]
    async fn the_pauses_grow_while_every_list_fails() {
        let lists = (0..40).flat_map(|_| [Ok(Event::<Pod>::Init), Err(watcher::Error::NoResourceVersion)]);
        let start = Instant::now();
        let given = retry_watch("Pods", stream::iter(lists)).count().await;
        assert_eq!(given, 40);
        let average = start.elapsed() / 40;
        assert!(average > LONGEST_PAUSE / 2 && average <= LONGEST_PAUSE, "{average:?}");
    }
}
