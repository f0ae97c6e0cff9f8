//! `drain`: prepares the operator's removal.

mod texts;

use std::{
    fmt::Debug,
    future::pending,
    io::{self, Write},
    pin::pin,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use clap::Args;
use futures::StreamExt;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Pod},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
    runtime::{WatchStreamExt, reflector, watcher},
};
use operator_kit::{
    Permission,
    api_call::is_served,
    client,
    crd::crd_name,
    metadata::Metadata,
    projection::{IDENTITY_ALONE, MOST, Part, Projection, reading},
    watch::{self, paged},
};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use self::texts::{names, with_finalizers, with_pods};
use super::{NamespaceArgs, patience, retry::Retry, serving::block_on, terminal};
use crate::{
    api::v1alpha1::{CRDS, PeerPod, PeerPodConfig},
    names::{COMPONENT_LABEL, NAME_LABEL, OPERATOR, OPERATOR_COMPONENT, PLACES},
    peerpod::{
        object::{has_finalizer, has_unread_finalizers},
        trim::trim,
    },
};

/// What is read of PeerPods: which Pods own them, and what holds them.
static OWNED: Projection = Projection {
    metadata: &[("ownerReferences", Part::All), ("finalizers", Part::All)],
    rest: &[],
    most: MOST,
};

/// For `--help`.
pub(super) const EXIT_CODES: &str = "\
Exit codes:
  0  the operator can be removed: there are no PeerPods, and in --namespace no PeerPodConfigs
  1  some exist, or the API server could not be asked
  2  the arguments are invalid";

/// Its permissions in the operator's namespace, beside those of the controller of PeerPods.
pub const PERMISSIONS: &[Permission] = &[
    Permission::new("confidentialcontainers.org", &["peerpodconfigs"], &["list", "watch", "delete"]),
    Permission::new("apps", &["deployments/scale"], &["patch"]).named(&[OPERATOR]),
    Permission::new("", &["configmaps"], &["delete"]).named(&[PLACES]),
];

/// How long operators may take to end: Kubernetes' grace period, and some more.
pub(super) const END_PATIENCE: Duration = Duration::from_secs(40);

/// How long the last questions to the API server may take, also after the time limit.
const CONFIRM_PATIENCE: Duration = Duration::from_secs(10);

/// Arguments of `drain`.
#[derive(Clone, Debug, Args)]
pub struct DrainArgs {
    /// Time limit, from 1s to 24h, such as 1h 30m
    #[arg(
        long,
        value_name = "DURATION",
        env = "PEERPOD_OPERATOR_TIMEOUT",
        default_value = "4m",
        value_parser = patience
    )]
    pub timeout: Duration,

    /// The operator, by its namespace.
    #[command(flatten)]
    pub operator: NamespaceArgs,

    /// Also stop the operator: scale its Deployment to 0
    #[arg(long, env = "PEERPOD_OPERATOR_STOP")]
    pub stop: bool,
}

pub(super) fn drain(args: &DrainArgs) -> ExitCode {
    block_on(prepare(args), |problem| terminal::problem("drain", problem))
}

fn print_progress(text: &str) {
    // A program that does not read the output has the exit code.
    let _ = writeln!(io::stdout(), "{text}");
}

async fn prepare(args: &DrainArgs) -> Result<(), String> {
    let deadline = Instant::now() + args.timeout;
    let client = client::infer().await.map_err(|problem| problem.to_string())?;
    let retry = Retry::new(|problem| terminal::problem("drain", problem));
    let mut drain = Drain { client, namespace: args.operator.namespace.clone(), retry };
    drain
        .wait_until_no_peerpods(deadline)
        .await
        .map_err(|problem| format!("{problem}. Drain removed nothing"))?;
    print_progress("There are no PeerPods.");
    drain.delete_configurations(deadline).await?;
    print_progress(&format!("There are no PeerPodConfigs in the namespace {}.", args.operator.namespace));
    // A peer pod may have been created meanwhile.
    drain.wait_until_no_peerpods(deadline).await.map_err(|problem| {
        format!("{problem}. Drain has already removed the PeerPodConfigs, and cloud-api-adaptor with them")
    })?;
    if args.stop {
        drain.stop(deadline).await?;
        // Operators that do not end, as on a lost node, may have taken all of the time.
        let deadline = deadline.max(Instant::now() + CONFIRM_PATIENCE);
        drain.finish(deadline).await?;
    }
    print_progress("The operator can be removed.");
    Ok(())
}

/// The steps of the command.
struct Drain {
    client: Client,
    /// The operator's.
    namespace: String,
    retry: Retry,
}

impl Drain {
    /// Stops the operators while they have the right to release their lease, so that a reinstalled operator need not wait for it.
    async fn stop(&mut self, deadline: Instant) -> Result<(), String> {
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), &self.namespace);
        let none = Patch::Merge(json!({ "spec": { "replicas": 0 } }));
        let params = PatchParams::default();
        let scaled = self
            .retry
            .call_of(OPERATOR, deadline, || deployments.patch_scale(OPERATOR, &params, &none))
            .await;
        if scaled.map_err(|problem| format!("scaling the Deployment {OPERATOR} failed: {problem}"))?.is_none()
        {
            // Without this Deployment, the program that runs the operators must stop them.
            print_progress(&format!(
                "There is no Deployment {OPERATOR} in the namespace {}: drain stopped nothing.",
                self.namespace
            ));
            return Ok(());
        }
        let pods: Api<Metadata<Pod>> = Api::namespaced(self.client.clone(), &self.namespace);
        // An evicted Pod stays although its Deployment has no replicas.
        let running = paged()
            .labels(&format!("{NAME_LABEL}={OPERATOR},{COMPONENT_LABEL}={OPERATOR_COMPONENT}"))
            .fields("status.phase!=Succeeded,status.phase!=Failed");
        let deadline = deadline.min(Instant::now() + END_PATIENCE);
        let left = self.until_of(pods, running, deadline, |_| (), |_| false).await?;
        match left.as_slice() {
            [] => print_progress("The operators have ended."),
            // Not on a node that is lost, for one.
            left => print_progress(&format!("These operators are ending: {}.", names(left))),
        }
        Ok(())
    }

    /// Forgets the places of VMs, once nothing is left that needs them.
    async fn finish(&mut self, deadline: Instant) -> Result<(), String> {
        self.confirm_none(deadline).await?;
        self.forget_places(deadline).await
    }

    /// The command that starts the operator again.
    fn start(&self) -> String {
        format!("kubectl -n {} scale deployment {OPERATOR} --replicas=2", self.namespace)
    }

    /// Confirms that nothing was created while the operators ended, as by a GitOps tool: without an operator it would stay for good.
    async fn confirm_none(&mut self, deadline: Instant) -> Result<(), String> {
        let left = self.until(self.configurations(), deadline, |_| true).await?;
        if !left.is_empty() {
            return Err(format!(
                "PeerPodConfigs were created while the operator was stopping: {}. Keep other programs from creating them. The operator \
                 is stopped: run `{}`, then run drain again",
                names(&left),
                self.start()
            ));
        }
        let left = self.peerpods_until(deadline, |_| true).await?;
        if !left.is_empty() {
            return Err(format!(
                "PeerPods were created while the operator was stopping: {}. Drain keeps the ConfigMap {PLACES}, which says where their VMs \
                 may be. The operator is stopped: run `{}`, delete these Pods, then run drain again",
                with_pods(&left),
                self.start()
            ));
        }
        Ok(())
    }

    /// Deletes the record of where VMs may be. A running operator would write it again.
    async fn forget_places(&mut self, deadline: Instant) -> Result<(), String> {
        let records: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let params = DeleteParams::default();
        let deleted = self.retry.call_of(PLACES, deadline, || records.delete(PLACES, &params)).await;
        deleted.map(drop).map_err(|problem| format!("the ConfigMap {PLACES} cannot be deleted: {problem}"))
    }

    /// All PeerPods.
    fn peerpods(&self) -> Api<PeerPod> {
        Api::all(reading(&self.client, &OWNED))
    }

    /// The PeerPodConfigs that the operator honours.
    fn configurations(&self) -> Api<PeerPodConfig> {
        Api::namespaced(reading(&self.client, &IDENTITY_ALONE), &self.namespace)
    }

    /// Waits for the deletions in progress. It does not touch living PeerPods.
    async fn wait_until_no_peerpods(&mut self, deadline: Instant) -> Result<(), String> {
        let is_going = |peerpod: &PeerPod| peerpod.metadata.deletion_timestamp.is_some();
        let left = self.peerpods_until(deadline, |it| !is_going(it)).await?;
        if left.is_empty() {
            return Ok(());
        }
        let going: Vec<_> = left.iter().filter(|peerpod| is_going(peerpod)).cloned().collect();
        if !going.is_empty() {
            return Err(format!(
                "the time limit is over, and {}. Then run drain again",
                self.unfinished(going)
            ));
        }
        Err(format!(
            "there are PeerPods of Pods that still exist, running or ended: {}. Delete these Pods first, then run \
             drain again: without the operator their VMs may never be deleted; if a PeerPod has no such Pod, delete the \
             PeerPod itself",
            with_pods(&left)
        ))
    }

    /// What these PeerPods, which are being deleted, wait for.
    fn unfinished(&self, going: Vec<Arc<PeerPod>>) -> String {
        let waits_for_operator = |it: &Arc<PeerPod>| has_finalizer(it) || has_unread_finalizers(it);
        let (waiting, held): (Vec<_>, Vec<_>) = going.into_iter().partition(waits_for_operator);
        let waiting = (!waiting.is_empty()).then(|| {
            format!(
                "these PeerPods are still being deleted: {}. `kubectl get peerpods -A` shows why. If it shows no STATE, no operator \
                 may be running, as after an earlier drain with --stop: `{}` starts it",
                names(&waiting),
                self.start()
            )
        });
        let held = (!held.is_empty()).then(|| {
            format!(
                "finalizers of other programs hold these PeerPods, for which the operator has nothing left to do: {}. Have these \
                 programs remove their finalizers",
                with_finalizers(&held)
            )
        });
        waiting.into_iter().chain(held).collect::<Vec<_>>().join(". Also, ")
    }

    /// Deletes every PeerPodConfig and waits until the operator has restored the nodes.
    async fn delete_configurations(&mut self, deadline: Instant) -> Result<(), String> {
        let api = self.configurations();
        for config in self.until(api.clone(), deadline, |_| true).await? {
            let name = config.name_any();
            print_progress(&format!("Deleting the PeerPodConfig {name}."));
            let params = DeleteParams::default();
            let deleted = self.retry.call_of(&name, deadline, || api.delete(&name, &params)).await;
            deleted.map_err(|problem| format!("deleting the PeerPodConfig {name} failed: {problem}"))?;
        }
        let left = self.until(api, deadline, |_| false).await?;
        if left.is_empty() {
            return Ok(());
        }
        Err(format!(
            "the time limit is over, and the operator has not finished the deletion of {}. Its log says why. \
             The operator must run with the controller peerpodconfig",
            names(&left)
        ))
    }

    /// Watches all objects until all of them are `settled`, or until the deadline. Returns the objects that exist then.
    async fn until<K>(
        &mut self,
        api: Api<K>,
        deadline: Instant,
        settled: impl Fn(&K) -> bool,
    ) -> Result<Vec<Arc<K>>, String>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    {
        self.until_of(api, paged(), deadline, |_| (), settled).await
    }

    /// The same for PeerPods, of which no more is kept than the operator keeps: tenants write them.
    async fn peerpods_until(
        &mut self,
        deadline: Instant,
        settled: impl Fn(&PeerPod) -> bool,
    ) -> Result<Vec<Arc<PeerPod>>, String> {
        self.until_of(self.peerpods(), paged(), deadline, trim, settled).await
    }

    /// The same for those that this watch selects, of which what `trim` drops is not kept.
    async fn until_of<K>(
        &mut self,
        api: Api<K>,
        watched: watcher::Config,
        deadline: Instant,
        trim: impl Fn(&mut K),
        settled: impl Fn(&K) -> bool,
    ) -> Result<Vec<Arc<K>>, String>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    {
        let unreadable = |problem| format!("reading {} failed: {problem}", K::plural(&()));
        // A watch would never end if the API server has no such objects, or does not show them.
        let client = self.client.clone();
        let params = ListParams::default().limit(1);
        // While an API server starts, it does not list the kind yet, but it answers a list of objects with another code than 404.
        let is_installed = async || match api.list(&params).await {
            Err(problem) if CRDS.missing::<K>(&problem).is_some() && !is_served::<K>(&client).await? => {
                Ok(false)
            }
            answer => answer.map(|_| true),
        };
        if !self.retry.call(deadline, is_installed).await.map_err(unreadable)? {
            print_progress(&format!("The CRD {} is not installed.", crd_name::<K>()));
            return Ok(Vec::new());
        }
        let (store, writer) = reflector::store();
        let changes = watcher(api, watched).default_backoff().modify(trim).reflect(writer);
        let mut changes = pin!(changes.chain(futures::stream::once(pending())));
        let (mut seen, mut problem) = (false, "the API server does not answer".to_owned());
        while let Ok(Some(change)) = timeout_at(deadline, changes.next()).await {
            match change {
                Ok(change) => seen |= matches!(change, watcher::Event::InitDone),
                Err(error) => {
                    let missing = watch::cause(&error).and_then(|it| CRDS.missing::<K>(it));
                    problem = missing.unwrap_or_else(|| watch::text(&error));
                    self.retry.again(&problem);
                }
            }
            let all = store.state();
            if seen && all.iter().all(|object| settled(object)) {
                return Ok(all);
            }
        }
        if seen { Ok(store.state()) } else { Err(unreadable(problem)) }
    }
}

#[cfg(test)]
mod tests;
