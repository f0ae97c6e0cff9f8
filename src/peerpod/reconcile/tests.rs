//! One reconcile against a scripted API server and a cloud in memory.

use async_trait::async_trait;
use operator_kit::{
    Leadership,
    testing::{Answer, ApiServer, Call, not_of},
};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{
    decide::tests::dangling,
    observe::tests::{answers, failing},
    *,
};
use crate::{
    api::v1alpha1::{RELEASE_ABANDON, RELEASE_ANNOTATION},
    metrics::Metrics,
    peerpod::{Options, reasons::Blocked},
    provider::{
        Claim, Clouds, Finding, InstanceId, NAME_LIMIT, Pages, Vm, clouds_in_memory, clouds_under,
        contract::{Behavior, Example, Kind, Peer, memory::Memory},
        ownership, state_in_memory,
    },
    settings::State,
};

const POD: &str = "/api/v1/namespaces/shop/pods/web";
const PEERPOD: &str = "/apis/confidentialcontainers.org/v1alpha1/namespaces/shop/peerpods/web";
const STATUS: &str = "/apis/confidentialcontainers.org/v1alpha1/namespaces/shop/peerpods/web/status";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/shop/events";

/// A PeerPod of the Pod `web` that is being deleted and records this VM.
fn deleted(vm: &Example) -> PeerPod {
    serde_json::from_value(json!({
        "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPod",
        "metadata": {
            "name": "web", "namespace": "shop", "uid": "u-1", "resourceVersion": "7", "finalizers": ["peer.pod/finalizer"],
            "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": Timestamp::now(),
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "p-1", "controller": true }],
        },
        "spec": { "cloudProvider": "gcp", "instanceID": vm.id },
    }))
    .unwrap()
}

/// The Pod `web`, in this phase.
fn pod(phase: &str) -> Value {
    let metadata = json!({ "name": "web", "namespace": "shop", "uid": "p-1" });
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": { "phase": phase } })
}

/// Reconciles it once, with an API server that expects these calls and no others. Gives the result, and whether a timer starts the
/// next reconcile.
async fn reconcile(
    cloud: &Memory,
    peerpod: &PeerPod,
    calls: impl IntoIterator<Item = Call>,
) -> (&'static str, bool) {
    reconcile_in(clouds_in_memory("gcp", cloud), peerpod, calls).await
}

/// The same with these clouds.
async fn reconcile_in(
    clouds: Clouds,
    peerpod: &PeerPod,
    calls: impl IntoIterator<Item = Call>,
) -> (&'static str, bool) {
    let server = ApiServer::expecting(calls);
    let (store, _) = kube::runtime::reflector::store();
    let options = Options { concurrency: 4, ..Options::new("operator") };
    let metrics = Metrics::new(&mut Registry::default());
    let context = Context::new(&server.client(), clouds, Leadership::unlimited(), metrics, &options, store);
    let (result, action) = context.reconcile(peerpod).await;
    (result, action != Action::await_change())
}

/// The write of a condition of this reason, and its event.
fn reports(reason: &str) -> [Call; 2] {
    [Call::patch(STATUS).answer(Answer::as_sent()), Call::post(EVENTS).body_with(json!({ "reason": reason }))]
}

#[tokio::test]
async fn an_abandoned_peerpod_is_released_without_a_look_at_its_pod() {
    let cloud = Memory::default();
    let mut peerpod = deleted(&cloud.vm("web"));
    peerpod.metadata.annotations = Some([(RELEASE_ANNOTATION.into(), RELEASE_ABANDON.into())].into());
    let outcome = reconcile(&cloud, &peerpod, [Call::patch(PEERPOD), Call::post(EVENTS)]).await;
    assert_eq!((outcome, cloud.count()), (("ok", false), 1));
}

#[tokio::test]
async fn the_vm_of_a_deleted_pod_is_deleted_before_its_finalizer() {
    let cloud = Memory::default();
    let peerpod = deleted(&cloud.vm("web"));
    let calls = [
        Call::get(POD).answer(Answer::not_found("pods", "web")),
        Call::patch(PEERPOD).body(json!([
            { "op": "test", "path": "/metadata/uid", "value": "u-1" },
            { "op": "test", "path": "/metadata/finalizers", "value": ["peer.pod/finalizer"] },
            { "op": "remove", "path": "/metadata/finalizers" },
        ])),
    ];
    assert_eq!(reconcile(&cloud, &peerpod, calls).await, ("ok", false));
    assert_eq!(cloud.count(), 0);
}

#[tokio::test]
async fn while_it_is_not_known_whether_the_pod_runs_nothing_is_asked_of_the_cloud() {
    for unclear in
        not_of("web").into_iter().chain([Answer::dropped(), Answer::error(500, "InternalError", "")])
    {
        let cloud = Memory::default();
        let peerpod = deleted(&cloud.vm("web"));
        let outcome = reconcile(&cloud, &peerpod, [Call::get(POD).answer(unclear)]).await;
        assert_eq!((outcome, cloud.count()), (("error", true), 1));
    }
}

#[tokio::test]
async fn a_pod_that_runs_keeps_its_vm() {
    let cloud = Memory::default();
    let peerpod = deleted(&cloud.vm("web"));
    let calls = [Call::get(POD).answer(Answer::object(&pod("Running")))];
    let outcome = reconcile(&cloud, &peerpod, calls.into_iter().chain(reports("WaitingForPod"))).await;
    assert_eq!((outcome, cloud.count()), (("ok", true), 1));
}

/// A cloud whose answers come when developer mode has just been turned on.
#[derive(Clone)]
struct Slow {
    memory: Memory,
    settings: watch::Sender<State>,
}

#[async_trait]
impl Provider for Slow {
    async fn describe(&self, id: &InstanceId, claim: &Claim) -> Result<Vm, Error> {
        self.settings.send_replace(state_in_memory("gcp", true));
        self.memory.describe(id, claim).await
    }

    async fn delete(&self, vm: &OwnVm) -> Result<Accepted, Error> {
        self.memory.delete(vm).await
    }

    async fn list(&self, pages: Pages<'_>) -> Result<(), Error> {
        self.memory.list(pages).await
    }

    async fn identity(&self) -> Result<Option<String>, Error> {
        Ok(None)
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        self.memory.examine().await
    }
}

#[tokio::test]
async fn developer_mode_that_is_turned_on_during_a_look_keeps_the_vm() {
    let (settings, state) = watch::channel(state_in_memory("gcp", false));
    let slow = Slow { memory: Memory::default(), settings };
    let (memory, peerpod) = (slow.memory.clone(), deleted(&slow.memory.vm("web")));
    let clouds = clouds_under(state, "gcp", move || Box::new(slow.clone()));
    let calls = [Call::get(POD).answer(Answer::not_found("pods", "web"))];
    let outcome = reconcile_in(clouds, &peerpod, calls.into_iter().chain(reports("DeveloperMode"))).await;
    assert_eq!((outcome, memory.count()), (("ok", true), 1));
}

#[tokio::test]
async fn a_vm_of_another_pod_and_the_finalizer_stay() {
    let cloud = Memory::default();
    let peerpod = deleted(&cloud.vm("database"));
    let calls = [Call::get(POD).answer(Answer::not_found("pods", "web"))];
    let outcome = reconcile(&cloud, &peerpod, calls.into_iter().chain(reports("NotThisPodsVM"))).await;
    assert_eq!((outcome, cloud.count()), (("ok", true), 1));
}

#[tokio::test]
async fn a_finalizer_stays_while_the_cloud_proves_nothing() {
    for (behavior, reason) in [
        (Behavior::Unauthorized, Some("Unauthorized")),
        (Behavior::Throttled, Some("CloudThrottled")),
        (Behavior::HoldsBelongings, Some("CloudUnavailable")),
        (Behavior::DeletesLater, None),
    ] {
        let cloud = Memory::default();
        let vm = cloud.make(Kind::Running, "web").await.unwrap();
        cloud.behave(behavior, &vm).await.unwrap();
        let calls = [Call::get(POD).answer(Answer::not_found("pods", "web"))];
        let calls = calls.into_iter().chain(reason.into_iter().flat_map(reports));
        assert_eq!(reconcile(&cloud, &deleted(&vm), calls).await, ("ok", true), "{behavior:?}");
    }
}

#[tokio::test]
async fn a_peerpod_that_changed_since_it_was_read_is_reconciled_again() {
    let cloud = Memory::default();
    let vm = cloud.vm("web");
    let calls = [
        Call::get(POD).answer(Answer::object(&pod("Succeeded"))),
        Call::patch(PEERPOD).answer(Answer::error(422, "Invalid", "the test failed")),
    ];
    assert_eq!(reconcile(&cloud, &deleted(&vm), calls).await, ("ok", true));
}

/// The decision after a request to this cloud to delete a dangling VM.
async fn after(provider: &Result<Arc<dyn Provider>, Error>) -> Decision {
    let facts = dangling();
    let Decision::Delete(own) = decide(&facts) else { panic!("there is nothing to delete") };
    let spec = json!({ "cloudProvider": "docker", "instanceID": own.vm().id.as_str() });
    let peerpod = PeerPod::new("web", serde_json::from_value(spec).unwrap());
    delete(&peerpod, provider, &own, &facts).await
}

#[tokio::test]
async fn a_deletion_that_the_cloud_does_not_accept_releases_nothing() {
    for (class, provider) in failing() {
        let expected = match class {
            ErrorClass::NotFound => Decision::Release(Release::Absent),
            class => decide::unanswered(Error::new(class, "fixed answer")),
        };
        assert_eq!(after(&provider).await, expected);
        // Whatever the cloud would answer about the VM.
        let error = Error::new(class, "fixed answer");
        let gone = Error::new(ErrorClass::NotFound, "");
        assert_eq!(after(&Ok(answers(Err(error), Err(gone)))).await, expected);
    }
}

#[tokio::test]
async fn after_an_accepted_deletion_only_a_vm_that_is_seen_to_be_absent_is_released() {
    let Decision::Delete(own) = decide(&dangling()) else { panic!("there is nothing to delete") };
    let vm = own.vm();
    let goes = Decision::Wait(Wait::VmDeletion(Duration::ZERO));
    let gone = || Error::new(ErrorClass::NotFound, "");
    let busy = Error::new(ErrorClass::Transient, "busy");
    let another = Vm { name: "database".to_owned(), ..vm.clone() };
    let blocked = Blocked::NotOwn(ownership::verify(another.clone(), "web-0", NAME_LIMIT).unwrap_err());
    for (shown, expected) in [
        (Err(gone()), Decision::Release(Release::Absent)),
        (Ok(vm.clone()), goes.clone()),
        (Err(busy.clone()), Decision::Retry(busy)),
        (Ok(another), Decision::Refuse(blocked)),
    ] {
        assert_eq!(after(&Ok(answers(Ok(Accepted::default()), shown))).await, expected);
    }
    // The deletion finds no VM, and the next question finds one.
    assert_eq!(after(&Ok(answers(Err(gone()), Ok(vm.clone())))).await, goes);
}
