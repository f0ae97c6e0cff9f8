use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use async_trait::async_trait;
use operator_kit::{
    Leadership,
    testing::{Answer, ApiServer, Call},
};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};

use super::*;
use crate::{
    peerpod::{self, PeerPods},
    provider::{
        Accepted, CATALOGUE, Cloud, Finding, Openers, OwnVm, Pages, PowerState, Resource, Vm,
        contract::memory::{CLOUD, Memory},
    },
    settings::{Raw, Snapshot},
    sweep::{Options, Sweeper},
};

/// A cloud with one page, and perhaps another one that fails.
struct Paged {
    fails: bool,
}

#[async_trait]
impl Provider for Paged {
    async fn describe(&self, _: &InstanceId, _: &Claim) -> Result<Vm, Error> {
        Err(Error::new(ErrorClass::Transient, "not asked here"))
    }

    async fn delete(&self, _: &OwnVm) -> Result<Accepted, Error> {
        Err(Error::new(ErrorClass::Transient, "not asked here"))
    }

    async fn list(&self, pages: Pages<'_>) -> Result<(), Error> {
        pages(vec![Listed::new(Resource::Vm, "i-1", "podvm-web-1a2b3c4d")]);
        if self.fails { Err(Error::new(ErrorClass::Transient, "the second page fails")) } else { Ok(()) }
    }

    async fn identity(&self) -> Result<Option<String>, Error> {
        Ok(None)
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        Ok(Vec::new())
    }
}

/// A cloud that shows the tag of its VMs when it is asked for one of them, and not yet in its list.
#[derive(Clone)]
struct Tagged {
    memory: Memory,
    tag: &'static str,
}

#[async_trait]
impl Provider for Tagged {
    async fn describe(&self, id: &InstanceId, claim: &Claim) -> Result<Vm, Error> {
        let vm = self.memory.describe(id, claim).await?;
        Ok(Vm { cluster_uid: Some(self.tag.to_owned()), ..vm })
    }

    async fn delete(&self, vm: &OwnVm) -> Result<Accepted, Error> {
        self.memory.delete(vm).await
    }

    async fn list(&self, pages: Pages<'_>) -> Result<(), Error> {
        self.memory.list(pages).await
    }

    async fn identity(&self) -> Result<Option<String>, Error> {
        self.memory.identity().await
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        self.memory.examine().await
    }
}

/// Settings for libvirt with these, too.
pub(in crate::sweep) fn settings(more: &[(&str, &str)]) -> Arc<Snapshot> {
    let all = [("CLOUD_PROVIDER", "libvirt")].iter().chain(more);
    let settings = all.map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
    Arc::new(Snapshot::parse(&Raw { settings, ..Raw::default() }, CATALOGUE).unwrap())
}

pub(in crate::sweep) fn target(
    cloud: &'static Cloud,
    settings: Arc<Snapshot>,
    provider: impl Provider + 'static,
) -> Target {
    Target { cloud, settings, provider: Ok(Arc::new(provider)), may_miss_vms: false, has_moved: false }
}

/// A sweep beside a controller without settings.
pub(in crate::sweep) fn sweeper(client: Client, options: Options) -> Sweeper {
    let metrics = Metrics::new(&mut Registry::default());
    let beside = peerpod::Options::new("operator");
    let (openers, leadership) = (Openers::default(), Leadership::unlimited());
    Sweeper::beside(&PeerPods::new(client, [], openers, leadership, metrics, &beside), options)
}

fn search(calls: impl IntoIterator<Item = Call>) -> (Search, ApiServer) {
    let server = ApiServer::expecting(calls);
    (Search::new(server.client(), Metrics::new(&mut Registry::default())), server)
}

/// The cluster is that with the UID `uid-1`.
fn cluster() -> Call {
    let namespace = json!({ "metadata": { "name": "kube-system", "uid": "uid-1" } });
    Call::get("/api/v1/namespaces/kube-system").answer(Answer::object(&namespace))
}

/// The last look at the cluster before deletions: there is no PeerPod, and these are the Pods.
fn last_look(pods: &[&str]) -> [Call; 2] {
    let list = |kind: &str, items: Vec<Value>| {
        Answer::object(&json!({ "apiVersion": "v1", "kind": kind, "metadata": {}, "items": items }))
    };
    let pods =
        pods.iter().map(|name| json!({ "metadata": { "name": name, "namespace": "shop", "uid": name } }));
    [
        Call::get("/apis/confidentialcontainers.org/v1alpha1/peerpods")
            .answer(list("PeerPodList", Vec::new())),
        Call::get("/api/v1/pods").answer(list("PodList", pods.collect())),
    ]
}

/// A cloud with a VM for each of these Pods.
fn cloud(pods: &[&str]) -> Memory {
    let cloud = Memory::default();
    for pod in pods {
        cloud.vm(pod);
    }
    cloud
}

/// What this cloud has. All of it is provably this cluster's.
async fn all(cloud: &impl Provider) -> Vec<Found> {
    let (mut found, claims) = (Vec::new(), ClusterClaims::exclusive());
    let take = &mut |page: Vec<Listed>| {
        found.extend(page.into_iter().map(|listed| {
            let proof = claims.proof(&listed);
            Found { listed, proof, is_of_another: false }
        }));
    };
    cloud.list(take).await.unwrap();
    found
}

/// The names of the VMs that are being deleted.
async fn leaving(cloud: &Memory) -> Vec<String> {
    let all = all(cloud).await.into_iter().map(|it| it.listed);
    all.filter(|it| it.state == PowerState::Leaving).map(|it| it.name).collect()
}

#[tokio::test]
async fn once_the_settings_have_changed_nothing_more_is_deleted() {
    // Each VM is one question before it is looked at, and one before its deletion.
    for (valid, deleted) in [(0, 0), (1, 0), (2, 1), (3, 1), (6, 3)] {
        let cloud = cloud(&["a", "b", "c"]);
        let (search, _server) = search(last_look(&[]));
        let target = target(&CLOUD, settings(&[]), cloud.clone());
        let asked = AtomicUsize::new(0);
        let are_in_force = || asked.fetch_add(1, Relaxed) < valid;
        let tally = search.delete(&target, all(&cloud).await, &are_in_force).await;
        assert_eq!((tally.deleted, leaving(&cloud).await.len()), (deleted, deleted), "{valid}");
    }
}

#[tokio::test]
async fn a_pod_that_appeared_since_the_listing_keeps_its_vm() {
    let cloud = cloud(&["a", "b", "c"]);
    let found = all(&cloud).await;
    let (search, _server) = search(last_look(&["b"]));
    let target = target(&CLOUD, settings(&[]), cloud.clone());
    assert_eq!(search.delete(&target, found, &|| true).await.deleted, 2);
    let leaving = leaving(&cloud).await;
    assert!(leaving.len() == 2 && !leaving.iter().any(|name| name.starts_with("podvm-b-")), "{leaving:?}");
}

#[tokio::test]
async fn without_a_last_look_at_the_cluster_nothing_is_deleted() {
    let cloud = cloud(&["a"]);
    let [_, pods] = last_look(&[]);
    let (search, _server) =
        search([last_look(&[])[0].clone(), pods.answer(Answer::error(500, "InternalError", "no"))]);
    let target = target(&CLOUD, settings(&[]), cloud.clone());
    let tally = search.delete(&target, all(&cloud).await, &|| true).await;
    assert!(matches!(tally.problem, Some(Problem::Cluster(_))), "{:?}", tally.problem);
    assert!(tally.deleted == 0 && leaving(&cloud).await.is_empty());
}

#[tokio::test]
async fn in_developer_mode_nothing_is_deleted() {
    let cloud = cloud(&["a"]);
    let (search, _server) = search([]);
    let target = target(&CLOUD, settings(&[("PODVM_DEVELOPER_MODE", "true")]), cloud.clone());
    let tally = search.delete(&target, all(&cloud).await, &|| true).await;
    assert_eq!((tally.deleted, tally.failed.len()), (0, 1));
    assert!(leaving(&cloud).await.is_empty());
}

#[tokio::test]
async fn a_vm_whose_own_tag_names_another_cluster_stays_although_the_list_had_no_tag() {
    for (tag, deleted) in [("uid-1", 1), ("uid-2", 0)] {
        let cloud = Tagged { memory: cloud(&["a"]), tag };
        let (search, _server) = search(last_look(&[]).into_iter().chain([cluster()]));
        let target = target(&CLOUD, settings(&[]), cloud.clone());
        let tally = search.delete(&target, all(&cloud).await, &|| true).await;
        assert_eq!((tally.deleted, tally.failed.len()), (deleted, 1 - deleted), "{tag}");
        assert_eq!(leaving(&cloud.memory).await.len(), deleted, "{tag}");
    }
}

#[tokio::test]
async fn what_the_settings_declare_of_another_account_proves_nothing() {
    let exclusive = settings(&[("SWEEP_EXCLUSIVE", "true"), ("SWEEP_CLUSTER", "uid-1")]);
    for has_moved in [false, true] {
        let (search, _server) = search([cluster()]);
        let target = Target { has_moved, ..target(&CLOUD, Arc::clone(&exclusive), cloud(&["a"])) };
        let found = search.list(&target).await.unwrap();
        assert_eq!(found[0].proof.is_some(), !has_moved, "{found:?}");
    }
}

#[tokio::test]
async fn a_list_that_breaks_off_shows_nothing() {
    let list = async |fails| {
        let (search, _server) = search([cluster()]);
        let target = target(Cloud::named("libvirt").unwrap(), settings(&[]), Paged { fails });
        search.list(&target).await.map(|listing| listing.len())
    };
    assert_eq!(list(false).await.unwrap(), 1);
    assert!(matches!(list(true).await, Err(Problem::Cloud(_))));
}
