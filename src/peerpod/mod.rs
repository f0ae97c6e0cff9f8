//! The PeerPod controller: when a Pod is gone and its VM is not, delete the VM, then release the finalizer.
//!
//! ```text
//! watch ─► store, index ─► observe ─► decide ─► apply ─► report
//!                          (reads)    (pure)    (one     (condition, event:
//!                                               effect)   only what changed)
//! ```
//!
//! [`decide`](decide::decide) holds every rule; `observe` and `apply` are thin. A normal deletion reads the owner Pod
//! once, asks the cloud, deletes, sees the machine absent and releases the finalizer by one JSON patch: the only write.
//! Nothing sleeps inside a reconcile: whatever has to be waited for is looked at again later, by a trigger where there
//! is one and by a timer in any case.
//!
//! Two processes that act at once, as after a suspension of the leader's host, do no harm: each proves for itself that it may
//! delete the VM, and a VM that is gone already is gone.

mod apply;
pub mod conditions;
pub mod decide;
mod endings;
mod index;
mod nudges;
mod object;
mod observe;
mod owners;
mod pass;
mod pauses;
mod pod;
mod progress;
mod relations;
mod report;

use std::{convert::Infallible, future::ready, sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use kube::{
    Api, Client,
    runtime::{
        Controller, WatchStreamExt,
        controller::{self, Action},
        reflector, watcher,
    },
};
use operator_kit::{
    Leadership, Permission,
    projection::{MOST, Part, Projection, reading},
    status::Publisher,
    watch::{paged, retry_crd_watch},
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, info, info_span};

use self::{
    conditions::Reason,
    decide::Decision,
    endings::Endings,
    index::{Change, Index},
    nudges::Nudges,
    object::owner,
    observe::Observer,
    owners::OwnerWatch,
    pauses::Pauses,
    progress::Progress,
    report::Reporter,
};
use crate::{
    api::v1alpha1::{CRDS, FIELD_MANAGER, PeerPod, RELEASE_ANNOTATION, RELEASE_VERB},
    metrics::Metrics,
    provider::{Clouds, Limits},
};

/// The controller's name, in `--controllers` and in metrics.
pub const NAME: &str = "peerpod";

/// What the controller may do in the cluster, and what for.
pub const PERMISSIONS: &[Permission] = &[
    Permission::new(
        "confidentialcontainers.org",
        &["peerpods"],
        &["list", "watch", "patch", "delete", RELEASE_VERB],
    ),
    Permission::new("confidentialcontainers.org", &["peerpods/status"], &["patch"]),
    Permission::new("", &["pods"], &["get", "list", "watch"]),
    Permission::new("events.k8s.io", &["events"], &["create", "patch"]),
];

/// How many PeerPods are worked on at once: more than a cloud gets calls, so that calls that hang never keep all of them,
/// and few enough that thousands found at start cost no memory to speak of.
const CONCURRENCY: u16 = 256;
const _: () = assert!(Limits::MOST_CALLS + Limits::MOST_CALLS / 2 < CONCURRENCY);

/// What is read of a PeerPod.
static PEERPOD: Projection = Projection {
    metadata: &[
        ("annotations", Part::Only(&[(RELEASE_ANNOTATION, Part::All)])),
        ("finalizers", Part::All),
        ("ownerReferences", Part::All),
    ],
    rest: &[("spec", Part::All), ("status", Part::All)],
    most: MOST,
};

/// What one reconcile needs.
struct Context {
    observer: Observer,
    reporter: Reporter,
    owners: OwnerWatch,
    nudges: Nudges,
    index: Arc<Index>,
    pauses: Pauses,
    progress: Progress,
    leadership: Leadership,
    metrics: Metrics,
}

/// Runs the controller until `shutdown`, then ends after the reconciles under way. Calls `synced` once, when every
/// PeerPod there is has been seen.
///
/// PeerPods are watched all the time and reconciled while this process leads. With the end of its leadership whatever is
/// under way is dropped; with the next one every PeerPod is looked at anew. A deletion that takes longer than `slow_after`
/// is told of.
pub async fn run(
    client: Client,
    clouds: Clouds,
    leadership: Leadership,
    metrics: Metrics,
    slow_after: Duration,
    synced: impl FnOnce() + Send + 'static,
    shutdown: CancellationToken,
) {
    metrics
        .expect(Decision::LABELS.map(|(label, _)| label), Reason::ALL.iter().map(|reason| reason.as_str()));
    let index = Arc::new(Index::default());
    let nudges = Nudges::default();
    let (store, writer) = reflector::store();
    let circumstances = stream::select(clouds.changes(), leadership.changes());
    let context = Arc::new(Context {
        observer: Observer {
            client: reading(&client, &pod::POD),
            clouds,
            index: index.clone(),
            store: store.clone(),
            endings: Endings::default(),
        },
        reporter: Reporter { publisher: Publisher::new(&client, &PEERPOD, FIELD_MANAGER, "Reaping") },
        owners: OwnerWatch::new(nudges.clone()),
        nudges: nudges.clone(),
        index: index.clone(),
        pauses: Pauses::default(),
        progress: Progress::new(slow_after, metrics.clone()),
        leadership,
        metrics,
    });

    let api: Api<PeerPod> = Api::all(reading(&client, &PEERPOD));
    let (observer, tell) = (context.clone(), nudges.clone());
    let watch = watcher::watcher(api, paged());
    let peerpods = retry_crd_watch::<PeerPod, _>(CRDS, watch).modify(trim).reflect(writer).try_filter_map(
        move |event| {
            let Change { matters, others } = index.apply(&event);
            tell.add(others);
            observer.seen(&event);
            ready(Ok(match event {
                watcher::Event::Apply(peerpod) if matters => Some(peerpod),
                _ => None,
            }))
        },
    );

    let peerpods_seen = store.clone();
    let all_seen = async move {
        if peerpods_seen.wait_until_ready().await.is_ok() {
            info!(peerpods = peerpods_seen.len(), "the operator has listed every PeerPod");
            synced();
        }
        std::future::pending::<Infallible>().await
    };
    let index = context.index.clone();
    let restless = circumstances.flat_map(move |()| stream::iter(index.restless()).map(|key| (*key).clone()));
    let controller = Controller::for_stream(peerpods, store)
        .with_config(controller::Config::default().concurrency(CONCURRENCY))
        .reconcile_on(nudges.stream())
        .reconcile_on(restless)
        .graceful_shutdown_on(shutdown.cancelled_owned())
        .run(reconcile, |_, never, _| match *never {}, context.clone())
        .for_each(|_| ready(()));
    let owners = context.owners.run(client);
    futures::pin_mut!(all_seen, controller, owners);
    futures::select_biased! {
        () = controller.fuse() => {}
        never = all_seen.fuse() => match never {},
        never = owners.fuse() => match never {},
    }
}

/// Keeps no more than what decisions read: of all owners the Pod that counts.
fn trim(peerpod: &mut PeerPod) {
    peerpod.metadata.owner_references = owner(peerpod).cloned().map(|owner| vec![owner]);
}

async fn reconcile(peerpod: Arc<PeerPod>, context: Arc<Context>) -> Result<Action, Infallible> {
    let span = info_span!(
        "reconcile",
        namespace = peerpod.metadata.namespace,
        peerpod = peerpod.metadata.name,
        cloud = peerpod.cloud_provider(),
        instance = peerpod.instance_id(),
    );
    let started = std::time::Instant::now();
    context.index.looked_at(&index::key(&peerpod), &context.metrics);
    let work = context.look(&peerpod).instrument(span);
    let Some((result, action)) = context.leadership.while_leading(work).await else {
        // Nothing is waited for by one who would not act on it. What comes next, a new term brings.
        context.owners.settled(&peerpod);
        context.progress.forget(&index::key(&peerpod));
        return Ok(Action::await_change());
    };
    context.metrics.reconciled(NAME, result, started.elapsed());
    if !context.index.contains(&index::key(&peerpod)) {
        // It went meanwhile, and nobody else forgets what this pass remembered of it.
        context.forget(&peerpod);
    }
    Ok(action)
}

impl Context {
    /// Forgets PeerPods that are gone, and counts those that are there.
    fn seen(&self, event: &watcher::Event<PeerPod>) {
        match event {
            watcher::Event::Delete(gone) => self.forget(gone),
            // What went while nobody watched shows in no event.
            watcher::Event::InitDone => {
                self.pauses.retain(|key| self.index.contains(key));
                self.owners.retain(|key| self.index.contains(key));
                self.progress.retain(|key| self.index.contains(key));
                self.observer.endings.retain(|key| self.index.contains(key));
            }
            watcher::Event::Init | watcher::Event::InitApply(_) => return,
            watcher::Event::Apply(_) => {}
        }
        self.index.publish(&self.metrics);
    }

    fn forget(&self, gone: &PeerPod) {
        self.pauses.settled(&index::key(gone));
        self.owners.settled(gone);
        self.progress.forget(&index::key(gone));
        self.observer.endings.forget(&index::key(gone));
    }
}

#[cfg(test)]
mod tests {
    use operator_kit::testing::read_and_projected;
    use serde_json::json;

    use super::*;

    #[test]
    fn of_a_peerpod_what_decisions_read_is_kept() {
        let pod = |name: &str, controller| json!({ "apiVersion": "v1", "kind": "Pod", "name": name, "uid": name, "controller": controller });
        let set = json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "set", "uid": "s" });
        let condition = json!({
            "type": "Stalled", "status": "True", "reason": "r", "message": "m", "observedGeneration": 1,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let mut written = json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPod",
            "metadata": {
                "name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7", "generation": 2,
                "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-02T00:00:00Z",
                "finalizers": ["peer.pod/finalizer", "x/y"], "annotations": { (RELEASE_ANNOTATION): "abandon", "fat": "x" },
                "ownerReferences": [set, pod("first", false), pod("own", true)],
                "labels": { "fat": "x" }, "managedFields": [{ "manager": "m", "fieldsV1": { "f:spec": {} } }],
            },
            "spec": { "cloudProvider": "libvirt", "instanceID": "i" },
            "status": { "conditions": [condition], "observedGeneration": 2 },
        });
        let [_, mut kept] = read_and_projected::<PeerPod>(&PEERPOD, &written);
        trim(&mut kept);
        let metadata = written["metadata"].as_object_mut().unwrap();
        metadata.retain(|name, _| !["labels", "managedFields"].contains(&name.as_str()));
        metadata["annotations"] = json!({ (RELEASE_ANNOTATION): "abandon" });
        metadata["ownerReferences"] = json!([pod("own", true)]);
        assert_eq!(json!(kept), written);
    }
}
