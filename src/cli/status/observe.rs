//! Reads the cluster *(client required)*.

use std::collections::{BTreeMap, BTreeSet};

use futures::join;
use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::ConfigMap},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, Client, Resource, ResourceExt, api::ListParams};
use operator_kit::{
    api_call::{self, ApiError},
    metadata,
    projection::{MOST, Part, Projection, reading},
};
use serde::Deserialize;

use super::{
    InstallationArgs,
    capacity::{self, Usage},
    leader,
    peer_pods::Row,
    report::{Leader, Observed, Settings},
};
use crate::{
    api::v1alpha1::{CRDS, PeerPod, PeerPodConfig},
    names::CONFIG_MAP,
    peerpod::PEERPOD,
    peerpodconfig::capacity::{POD, PodView, list_nodes},
    sweep::Snapshot,
};

/// The number of objects on one page of a list: few enough for little memory, and enough that the pages of 20,000 objects take
/// little time.
const PAGE: u32 = 500;

/// The setting that names the cloud.
const CLOUD_PROVIDER: &str = "CLOUD_PROVIDER";

/// The only value that is read of the settings.
static SETTINGS: Projection = Projection {
    metadata: &[("managedFields", Part::Only(&[("time", Part::All)]))],
    rest: &[("data", Part::Only(&[(CLOUD_PROVIDER, Part::All)]))],
    most: MOST,
};

#[derive(Clone, Debug, Resource, Deserialize)]
#[resource(inherit = ConfigMap)]
struct SettingsView {
    #[serde(default, with = "metadata::Stored")]
    metadata: ObjectMeta,
    data: Option<BTreeMap<String, String>>,
}

/// Reads everything for the report, PeerPods only in this namespace. A failure does not keep the rest from being read.
pub(super) async fn observe(
    client: &Client,
    installation: &InstallationArgs,
    namespace: Option<&str>,
) -> Observed {
    let configs = configs(client).await;
    let known = configs.as_deref().unwrap_or_default();
    let resources = capacity::resources(known);
    let operator = async {
        let leader = leader(client, installation).await;
        let sweep = sweep(client, installation, leader.as_ref()).await;
        (leader, sweep)
    };
    let (peer_pods, pods, nodes, settings, (leader, sweep)) = join!(
        peer_pods(client, namespace),
        pods(client, &resources, namespace),
        list_nodes(client),
        settings(client, installation, known),
        operator
    );
    let nodes = nodes.map_err(|error| error.to_string());
    Observed { peer_pods, configs, nodes, pods, leader, settings, sweep }
}

/// Objects of this kind, in this namespace or in all.
fn api<K>(client: &Client, namespace: Option<&str>, projection: &'static Projection) -> Api<K>
where
    K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
{
    let client = reading(client, projection);
    match namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    }
}

/// Why objects of this kind could not be read.
fn why<K: Resource<DynamicType = ()>>(error: &ApiError) -> String {
    error.cause().and_then(|cause| CRDS.missing::<K>(cause)).unwrap_or_else(|| error.to_string())
}

async fn peer_pods(client: &Client, namespace: Option<&str>) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    let take = |peerpod: PeerPod| rows.push(Row::of(peerpod));
    let listed =
        api_call::for_each(&api(client, namespace, &PEERPOD), &ListParams::default().limit(PAGE), take).await;
    listed.map_err(|error| why::<PeerPod>(&error))?;
    Ok(rows)
}

async fn configs(client: &Client) -> Result<Vec<PeerPodConfig>, String> {
    let mut configs = Vec::new();
    let api: Api<PeerPodConfig> = Api::all(client.clone());
    let listed = api_call::for_each(&api, &ListParams::default(), |config| configs.push(config)).await;
    listed.map_err(|error| why::<PeerPodConfig>(&error))?;
    Ok(configs)
}

/// What Pods take, and what could not be read. A caller that may not list all Pods still learns the nodes of those in the
/// namespace.
async fn pods(
    client: &Client,
    resources: &BTreeSet<String>,
    namespace: Option<&str>,
) -> (Usage, Option<String>) {
    let params = ListParams::default().fields("spec.nodeName!=").limit(PAGE);
    let mut usage = Usage::new(true);
    let all: Api<PodView> = api(client, None, &POD);
    let Err(problem) = api_call::for_each(&all, &params, |pod| usage.add(&pod, resources)).await else {
        return (usage, None);
    };
    let mut usage = Usage::new(false);
    let unread = format!("how many VMs are used is not known: {problem}");
    if problem.code() == Some(403) && namespace.is_some() {
        let some: Api<PodView> = api(client, namespace, &POD);
        if let Err(problem) = api_call::for_each(&some, &params, |pod| usage.add(&pod, resources)).await {
            return (usage, Some(format!("{unread}; nor are the nodes of Pods: {problem}")));
        }
    }
    (usage, Some(unread))
}

/// The leader, if there is one.
async fn leader(client: &Client, installation: &InstallationArgs) -> Result<Option<Leader>, String> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), installation.lease_namespace());
    let lease =
        api_call::get_opt(&leases, &installation.lease_name).await.map_err(|error| error.to_string())?;
    Ok(lease.and_then(|lease| lease.spec).and_then(|spec| {
        Some(Leader {
            identity: spec.holder_identity.filter(|holder| !holder.is_empty())?,
            since: spec.acquire_time.map(|time| time.0),
            renewed: spec.renew_time.map(|time| time.0),
        })
    }))
}

/// What the leading operator has seen of the clouds.
async fn sweep(
    client: &Client,
    installation: &InstallationArgs,
    leader: Result<&Option<Leader>, &String>,
) -> Result<Snapshot, String> {
    match leader {
        Ok(Some(leader)) => {
            leader::snapshot(client, &installation.namespace, leader.pod(), installation.port).await
        }
        Ok(None) | Err(_) => {
            Err("what they have is not known: no operator leads, or it cannot be found".to_owned())
        }
    }
}

/// The settings that the operator and the configurations name.
async fn settings(
    client: &Client,
    installation: &InstallationArgs,
    configs: &[PeerPodConfig],
) -> Result<Vec<Settings>, String> {
    let namespace = &*installation.namespace;
    let own = configs.iter().filter(|config| config.namespace().as_deref() == Some(namespace));
    let named: BTreeSet<_> = own.map(|config| &*config.spec.config_map_name).chain([CONFIG_MAP]).collect();
    let config_maps: Api<SettingsView> = api(client, Some(namespace), &SETTINGS);
    let mut settings = Vec::new();
    for name in named {
        let found = api_call::get_opt(&config_maps, name).await.map_err(|error| error.to_string())?;
        settings.extend(found.map(shown));
    }
    Ok(settings)
}

fn shown(view: SettingsView) -> Settings {
    let written = view.managed_fields().iter().filter_map(|entry| entry.time.as_ref()).max();
    Settings {
        name: view.name_any(),
        changed: written.or(view.metadata.creation_timestamp.as_ref()).map(|time| time.0),
        provider: view.data.and_then(|mut data| data.remove(CLOUD_PROVIDER)),
    }
}
