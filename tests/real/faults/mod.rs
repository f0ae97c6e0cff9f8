//! Faults in the middle of a hundred deletions: no machine is lost, nothing else is touched, and no loop spins.
//!
//! A test makes a hundred machines of Pods that have ended, and deletes their PeerPods. It waits until the first few are gone and
//! the others are in progress ([`Hundred::until_the_middle`]). Then it lets something fail. In the end the hundred machines are gone
//! with all their volumes, everything else of the daemon is as before ([`Hundred::reaped`]), and the cost is within bounds
//! ([`Hundred::cost`]).
//!
//! The tests of [`all_clouds`], [`clouds`], [`several_clouds`] and [`sweep`] have machines of their own, on clouds of which some fail.
//! Some of them wait for minutes. The harness begins tests in the order of their names, so these begin early and none is left for the
//! end. The test of [`random`] has machines of Pods that come and go.

mod all_clouds;
mod clouds;
mod conflicts;
mod control_plane;
mod crash;
mod libvirtd;
mod random;
mod replicas;
mod settings;
mod several_clouds;
mod sweep;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ops::Range,
};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt as _,
    api::{DeleteParams, ListParams, PartialObjectMeta, Patch, PatchParams, PostParams},
};
use libvirt_client::Domain;
use peerpod_operator::api::v1alpha1::PeerPod;
use peers::libvirt::{BASE_VOLUME, POOL};
use serde_json::{Value, json};
use testbed::{
    Operator, Request, Vm,
    wait::{self, DEADLINE},
};

use crate::support::{Alone, condition};

const COUNT: usize = 100;
/// Objects made or deleted at the same time.
const CONCURRENCY: usize = 16;
/// The domain that libvirt's test driver starts with.
const DRIVERS_OWN: &str = "test";
/// How many machines are gone in the middle, at least.
const FIRST_FEW: usize = 5;

/// A hundred machines that are to be deleted, and others that are to stay.
struct Hundred {
    /// Of Pods that have ended, each with a PeerPod.
    doomed: Vec<Vm>,
    /// Of a Pod that runs.
    living: Vm,
    /// A domain that belongs to no Pod.
    foreign: Domain,
    /// The position in the audit log at the start.
    logged: u64,
}

impl Hundred {
    async fn start(alone: &Alone<'_>) -> Result<Self> {
        let logged = alone.testbed.audit()?.end()?;
        let scene = alone.scene();
        let living = scene.pod_with_vm("living").await?;
        let data = scene.host.volume("data.qcow2", "qcow2", "").await?;
        let foreign = scene.host.start_domain("database", "", &[&data]).await?;
        let doomed = stream::iter(0..COUNT).map(|_| ended(alone)).buffer_unordered(CONCURRENCY);
        Ok(Self { doomed: doomed.try_collect().await?, living, foreign, logged })
    }

    /// Deletes the hundred PeerPods. Returns when the first few machines are gone, and the operator is about to delete the others.
    async fn until_the_middle(&self, alone: &Alone<'_>) -> Result<()> {
        self.until_the_middle_of(alone, 0..COUNT).await
    }

    /// The same with some of the hundred.
    async fn until_the_middle_of(&self, alone: &Alone<'_>, some: Range<usize>) -> Result<()> {
        let client = alone.libvirtd.host().client();
        let all = client.domains().await?.len();
        let (few, others) = (some.start..some.start + FIRST_FEW, some.start + FIRST_FEW..some.end);
        self.delete(alone, few).await?;
        wait::eventually("the first machines are gone", DEADLINE, async || {
            let gone = all - client.domains().await?.len();
            ensure!(gone >= FIRST_FEW, "{gone} are gone");
            Ok(())
        })
        .await?;
        // No machine may be gone before the last PeerPod is deleted, however slow this test is.
        alone.libvirtd.pause()?;
        let deleted = self.delete(alone, others).await;
        alone.libvirtd.resume()?;
        deleted
    }

    /// Deletes some of the hundred PeerPods.
    async fn delete(&self, alone: &Alone<'_>, some: Range<usize>) -> Result<()> {
        let api = alone.scene().peerpods;
        stream::iter(&self.doomed[some])
            .map(|vm| async { api.delete(&vm.name(), &DeleteParams::background()).await })
            .buffer_unordered(CONCURRENCY)
            .try_collect::<Vec<_>>()
            .await?;
        Ok(())
    }

    /// Those of the hundred PeerPods that are there.
    async fn left(&self, alone: &Alone<'_>) -> Result<Vec<PartialObjectMeta<PeerPod>>> {
        let mut peerpods = alone.scene().peerpods.list_metadata(&ListParams::default()).await?.items;
        peerpods.retain(|peerpod| peerpod.name_any() != self.living.name());
        Ok(peerpods)
    }

    /// Waits until all hundred PeerPods are gone. Fails unless their machines are gone, too, and nothing else is.
    async fn reaped(&self, alone: &Alone<'_>) -> Result<()> {
        self.until_left(alone, 0).await?;
        self.others_stay(alone).await
    }

    /// Waits until no more than so many of the hundred PeerPods are there.
    async fn until_left(&self, alone: &Alone<'_>, count: usize) -> Result<()> {
        let what = format!("{count} of the hundred PeerPods are left");
        let waited = wait::eventually(&what, DEADLINE, async || {
            let left = self.left(alone).await?;
            ensure!(left.len() <= count, "{} are left, such as {}", left.len(), left[count].name_any());
            Ok(())
        });
        let Err(error) = waited.await else { return Ok(()) };
        let there = alone.scene().peerpods.list(&ListParams::default()).await;
        let said = there.iter().flat_map(|list| &list.items).find_map(condition);
        Err(error.context(format!("one of the PeerPods says {said:?}")))
    }

    /// Fails unless everything that was to stay is there unchanged, and nothing more.
    async fn others_stay(&self, alone: &Alone<'_>) -> Result<()> {
        let scene = alone.scene();
        scene.lives(&self.living).await?;
        let living = scene.peerpods.get(&self.living.name()).await?;
        ensure!(living.metadata.deletion_timestamp.is_none() && living.status.is_none(), "{living:?}");
        let virsh = scene.host.virsh();
        let state = virsh.run(&["domstate", &self.foreign.name]).await?;
        ensure!(state.trim() == "running", "the domain {} is {state}", self.foreign.name);
        let living = &self.living.machine;
        let mut domains = [&living.domain.name, &self.foreign.name, DRIVERS_OWN];
        domains.sort_unstable();
        ensure!(virsh.domains().await? == domains, "{:?}", virsh.domains().await?);
        let mut volumes = [&living.root.name, &living.cloudinit.name, BASE_VOLUME, "data.qcow2"];
        volumes.sort_unstable();
        let there = virsh.volumes(POOL).await?;
        ensure!(there == volumes, "{there:?}");
        Ok(())
    }

    /// The cost that these operators caused until now; the fault struck at `struck`.
    async fn cost(&self, alone: &Alone<'_>, operators: &[&Operator], struck: Timestamp) -> Result<Cost> {
        let mut position = self.logged;
        let audit = alone.testbed.audit()?;
        let mut requests = audit.requests(&mut position)?;
        requests.retain(Request::is_operators);
        let begun = HashMap::new();
        let mut cost = Cost { struck, requests, passes: 0.0, describes: 0.0, deletes: 0.0, begun };
        for operator in operators {
            cost.add(operator).await?;
        }
        Ok(cost)
    }
}

/// Waits until the operator holds so many PeerPods back for this reason.
async fn until_held(alone: &Alone<'_>, reason: &str, count: usize) -> Result<()> {
    wait::eventually(&format!("the operator says {reason}"), DEADLINE, async || {
        let held =
            alone.operator.metrics().await?.sum("peerpod_operator_peerpods_held", &[("reason", reason)]);
        ensure!(held > f64::from(u32::try_from(count)?) - 0.5, "it says so of {held} PeerPods");
        Ok(())
    })
    .await
}

/// The machine of a Pod that has ended. The operator reaps it once its PeerPod is deleted.
async fn ended(alone: &Alone<'_>) -> Result<Vm> {
    let scene = alone.scene();
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "generateName": "ended-" },
        "spec": { "schedulerName": "nobody", "containers": [{ "name": "main", "image": "any" }] },
    }))?;
    let pod = scene.pods.api().create(&PostParams::default(), &pod).await?;
    let failed = Patch::Merge(json!({ "status": { "phase": "Failed" } }));
    scene.pods.api().patch_status(&pod.name_any(), &PatchParams::default(), &failed).await?;
    scene.caa.start_vm(&pod, scene.host).await
}

/// The cost of a hundred deletions.
struct Cost {
    /// When the fault struck.
    struck: Timestamp,
    /// The requests that the API server logged. It does not log those that it died over.
    requests: Vec<Request>,
    /// Reconciles of PeerPods, also those that ended with an error.
    passes: f64,
    /// Calls that looked a machine up, whatever their outcome.
    describes: f64,
    /// Calls that deleted a machine, and that the cloud answered with success.
    deletes: f64,
    /// How often the operator began to delete each machine.
    begun: HashMap<String, usize>,
}

impl Cost {
    async fn add(&mut self, operator: &Operator) -> Result<()> {
        let log = operator.log()?;
        let lines = log.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
        for line in lines.iter().filter(|line| line["message"] == "deleting the VM") {
            let vm = line["vm"].as_str().context("the log names the VM")?;
            *self.begun.entry(vm.to_owned()).or_default() += 1;
        }
        if operator.process().is_running() {
            let metrics = operator.metrics().await?;
            let calls =
                |labels: &[(&str, &str)]| metrics.sum("peerpod_operator_provider_calls_total", labels);
            self.passes += metrics.sum("peerpod_operator_reconciles_total", &[]);
            self.describes += calls(&[("call", "describe")]);
            self.deletes += calls(&[("call", "delete"), ("result", "ok")]);
        }
        Ok(())
    }

    /// Fails unless the fault struck in the middle. Also fails if the operator asked for anything more than this many times per machine
    /// on average, or twice as many times for a single one. A loop that spins asks hundreds of times.
    fn within(&self, times: u32) -> Result<()> {
        let answered = || self.requests.iter().filter(|request| is_release(request) && request.code == 200);
        let afterwards = answered().filter(|request| request.time > self.struck).count();
        ensure!(afterwards > 0, "the fault struck when all was over");
        let mut released = HashSet::new();
        for request in answered() {
            ensure!(released.insert(&request.name), "{} was released twice", request.name);
        }

        let most_calls = f64::from(times * 100);
        ensure!(self.passes <= most_calls, "PeerPods were looked at {} times", self.passes);
        ensure!(self.describes <= most_calls, "machines were asked for {} times", self.describes);
        ensure!(self.deletes <= 100.0, "{} deletions succeeded", self.deletes);
        let most_for_one = usize::try_from(2 * times)?;
        for (machine, begun) in &self.begun {
            ensure!(*begun <= most_for_one, "the deletion of {machine} was begun {begun} times");
        }

        let (mut of_kind, mut of_one) = (BTreeMap::new(), HashMap::new());
        for request in &self.requests {
            let kind = (request.verb.as_str(), request.resource.as_str());
            *of_kind.entry(kind).or_insert(0_usize) += 1;
            *of_one.entry((kind, &request.namespace, &request.name)).or_insert(0_usize) += 1;
        }
        for ((verb, resource), count) in &of_kind {
            let most = match *verb {
                "list" | "watch" => most_for_one,
                _ => most_for_one * COUNT / 2,
            };
            ensure!(*count <= most, "{count} requests to {verb} {resource}: {of_kind:?}");
        }
        // The operator renews its lease as time passes, so the number of renewals does not count.
        let is_bounded = |kind: &(&str, &str), name: &str| !name.is_empty() && kind.1 != "leases";
        for (((verb, resource), _, name), count) in
            of_one.iter().filter(|((kind, _, name), _)| is_bounded(kind, name))
        {
            ensure!(*count <= most_for_one, "{count} requests to {verb} the {resource} {name}");
        }
        Ok(())
    }
}

/// Whether this request releases a PeerPod, the operator's last one for it.
fn is_release(request: &Request) -> bool {
    request.verb == "patch" && request.resource == "peerpods"
}
