//! The watch of all DaemonSets: the owners and the nodes of those that may conflict *(client required)*.

pub(super) mod view;

use std::future::ready;

use futures::{Stream, StreamExt, TryStreamExt};
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::{
    Api, Client,
    runtime::{
        WatchStreamExt,
        reflector::{ObjectRef, Store, store::Writer},
        watcher::{self, Event, watcher},
    },
};
use operator_kit::{
    changes::changes,
    projection::reading,
    watch::{paged, retry_watch},
};
use tokio::{sync::watch, time::sleep};

use self::view::{DAEMON_SET, DaemonSetView};
use super::super::{
    findings::UNWATCHED_RESYNC,
    resources::{has_pods, may_conflict},
};

/// Stores the owner and the nodes of each DaemonSet that matters to configurations in `namespace`. Yields those in that namespace that
/// changed, and an item after changes of those elsewhere. The first stream must be polled, or the second one yields nothing.
pub(super) fn watch(
    client: &Client,
    writer: Writer<DaemonSet>,
    namespace: String,
) -> (
    impl Stream<Item = Result<DaemonSet, watcher::Error>> + Send + use<>,
    impl Stream<Item = ()> + Send + use<>,
) {
    let (elsewhere_tx, elsewhere_rx) = watch::channel(());
    let (stored, own) = (writer.as_reader(), namespace.clone());
    let events = watcher(Api::<DaemonSetView>::all(reading(client, &DAEMON_SET)), paged());
    let changed = retry_watch("DaemonSets", events)
        .try_filter_map(move |event| ready(Ok(reduced(event, &namespace, &stored))))
        .reflect(writer)
        .touched_objects()
        .try_filter(move |it: &DaemonSet| {
            let is_own = it.metadata.namespace.as_deref() == Some(&*own);
            if !is_own {
                elsewhere_tx.send_replace(());
            }
            ready(is_own)
        });
    (changed, at_intervals(elsewhere_rx))
}

/// An item after changes, at most one in each [`UNWATCHED_RESYNC`]. Tenants may change their DaemonSets at any rate.
fn at_intervals(changed: watch::Receiver<()>) -> impl Stream<Item = ()> + Send + use<> {
    changes(changed).then(|()| sleep(UNWATCHED_RESYNC))
}

/// The event for the store. A DaemonSet that does not matter is none, or is none any more. There is no event about one that never
/// mattered.
fn reduced(
    event: Event<DaemonSetView>,
    namespace: &str,
    stored: &Store<DaemonSet>,
) -> Option<Event<DaemonSet>> {
    let matters = |it: &DaemonSet| {
        it.metadata.namespace.as_deref() == Some(namespace) || may_conflict(it, Some(namespace))
    };
    let reduce = |it: DaemonSetView| {
        let mut it = DaemonSet::from(it);
        if it.metadata.namespace.as_deref() != Some(namespace) {
            // The operator reads its own annotations alone.
            it.metadata.annotations = None;
        }
        // A rollout has no Pod for a moment. What had Pods counts as long as it wants some.
        let had = stored.get(&ObjectRef::from_obj(&it)).filter(|had| had.metadata.uid == it.metadata.uid);
        if let Some(had) = had.filter(|had| has_pods(had) && !has_pods(&it) && wants_pods(&it)) {
            it.status.clone_from(&had.status);
        }
        it
    };
    let removed = |it: DaemonSet| {
        let is_stored = stored.get(&ObjectRef::from_obj(&it)).is_some();
        is_stored.then_some(Event::Delete(it))
    };
    match event {
        Event::Apply(it) => {
            let it = reduce(it);
            if matters(&it) { Some(Event::Apply(it)) } else { removed(it) }
        }
        Event::Delete(it) => removed(reduce(it)),
        Event::Init => Some(Event::Init),
        Event::InitApply(it) => Some(reduce(it)).filter(matters).map(Event::InitApply),
        Event::InitDone => Some(Event::InitDone),
    }
}

fn wants_pods(daemon_set: &DaemonSet) -> bool {
    daemon_set.status.as_ref().is_some_and(|status| status.desired_number_scheduled > 0)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::FutureExt;
    use kube::runtime::reflector;
    use operator_kit::testing::read_and_projected;
    use serde_json::{Value, json};
    use tokio::time::Instant;

    use super::{super::settings, *};

    fn view(namespace: &str, labels: &Value, pod: &Value, pods: i32) -> DaemonSetView {
        let annotations = json!({ (settings::SETTINGS): "s" });
        let [_, view] = read_and_projected(
            &DAEMON_SET,
            &json!({
                "metadata": { "name": "a", "namespace": namespace, "labels": labels, "annotations": annotations },
                "spec": { "template": { "spec": pod } },
                "status": { "currentNumberScheduled": pods, "numberMisscheduled": 0 },
            }),
        );
        view
    }

    #[test]
    fn only_what_may_conflict_is_stored_of_other_namespaces() {
        let (adaptor, other) = (json!({ "app": "cloud-api-adaptor" }), json!({}));
        let harmless = json!({ "containers": [], "volumes": [{ "name": "a", "emptyDir": {} }] });
        let on_host = json!({ "containers": [], "hostNetwork": true });
        for (namespace, labels, pod, pods, is_stored) in [
            ("own", &other, &harmless, 0, true),
            ("own", &adaptor, &harmless, 0, true),
            ("shop", &adaptor, &on_host, 1, true),
            ("shop", &adaptor, &on_host, 0, false),
            ("shop", &adaptor, &harmless, 1, false),
            ("shop", &other, &on_host, 1, false),
        ] {
            let view = view(namespace, labels, pod, pods);
            let case = format!("{namespace} {labels} {pod} {pods}");
            let (store, mut writer) = reflector::store();
            let event = |event| reduced(event, "own", &store);
            assert_eq!(event(Event::InitApply(view.clone())).is_some(), is_stored, "{case}");
            assert_eq!(event(Event::Apply(view.clone())).is_some(), is_stored, "{case}");
            assert!(event(Event::Delete(view.clone())).is_none(), "{case}: it never mattered");
            writer.apply_watcher_event(&Event::Apply(DaemonSet::from(view.clone())));
            let Some(changed) = event(Event::Apply(view.clone())) else { panic!("{case}") };
            let (Event::Apply(stored) | Event::Delete(stored)) = &changed else { panic!("{case}") };
            assert_eq!(stored.metadata.annotations.is_some(), namespace == "own", "{case}");
            assert_eq!(matches!(changed, Event::Apply(_)), is_stored, "{case}");
            assert!(matches!(event(Event::Delete(view)), Some(Event::Delete(_))), "{case}");
        }
    }

    #[test]
    fn a_daemon_set_counts_while_a_rollout_leaves_it_without_pods() {
        let (labels, pod) =
            (json!({ "app": "cloud-api-adaptor" }), json!({ "containers": [], "hostNetwork": true }));
        let (store, mut writer) = reflector::store();
        writer.apply_watcher_event(&Event::Apply(DaemonSet::from(view("shop", &labels, &pod, 1))));
        let without = |desired_number_scheduled| {
            let mut view = view("shop", &labels, &pod, 0);
            view.status.desired_number_scheduled = desired_number_scheduled;
            reduced(Event::Apply(view), "own", &store)
        };
        assert!(matches!(without(1), Some(Event::Apply(it)) if has_pods(&it)));
        assert!(matches!(without(0), Some(Event::Delete(_))), "it wants none");
    }

    #[tokio::test(start_paused = true)]
    async fn changes_in_other_namespaces_are_reported_at_intervals() {
        let (changed_tx, changed_rx) = watch::channel(());
        let mut reported = pin!(at_intervals(changed_rx));
        let start = Instant::now();
        for round in 1..=3 {
            for _ in 0..100 {
                changed_tx.send_replace(());
            }
            assert_eq!(reported.next().await, Some(()));
            assert!(start.elapsed() >= UNWATCHED_RESYNC * round, "{:?}", start.elapsed());
        }
        assert!(reported.next().now_or_never().is_none(), "nothing changed since");
    }

    #[test]
    fn an_affinity_of_many_empty_terms_takes_little_memory() {
        let terms = vec![json!({}); 100_000];
        let pod = json!({
            "containers": [], "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": terms,
            } } },
        });
        let view = view("shop", &json!({ "app": "cloud-api-adaptor" }), &pod, 1);
        let spec = DaemonSet::from(view).spec.unwrap();
        let affinity = spec.template.spec.unwrap().affinity.unwrap().node_affinity.unwrap();
        let terms = affinity.required_during_scheduling_ignored_during_execution.unwrap().node_selector_terms;
        assert!(terms.len() < 128, "{} terms", terms.len());
    }
}
