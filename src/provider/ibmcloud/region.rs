//! Which region's VPC API is called *(client required)*.
//!
//! If the settings name no endpoint, cloud-api-adaptor creates VMs in the region of its own node. The operator then takes the region
//! of the nodes, and refuses to work unless all nodes are in the same one: a PeerPod records a VM without its region, and in another
//! region that VM does not exist. A node of another region may join later, so the nodes are read again before a VM counts as absent.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Node;
use kube::{Api, Resource as _, api::ListParams};
use operator_kit::{
    Message, Permission,
    api_call::{self, ApiError},
    metadata::Metadata,
    projection::{MOST, Part, Projection, reading},
};
use tokio::{
    sync::{Notify, OnceCell},
    time::timeout,
};

use super::settings::{self, OF_THE_NODES};
use crate::provider::{
    Error, ErrorClass,
    cloud::{ClusterAccess, Opening, RecordedPlace},
    single_flight::{Latest, SingleFlight},
};

/// What reading the nodes takes.
pub(super) const PERMISSIONS: &[Permission] = &[Permission::new("", &["nodes"], &["list"])];

/// The label from which cloud-api-adaptor takes the region of its node.
const REGION: &str = "topology.kubernetes.io/region";

/// The fields of nodes that are read.
static LABEL: Projection =
    Projection { metadata: &[("labels", Part::Only(&[(REGION, Part::All)]))], rest: &[], most: MOST };

/// How long the nodes may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Nodes that were read longer ago do not prove that a VM is absent: a node in another region may have joined since. From the
/// start of such a node to the deletion of a VM that cloud-api-adaptor created there, more time than this passes.
const FRESH: Duration = Duration::from_secs(10);

/// After a failure, the nodes are not read again for this long.
const AFTER_FAILURE: Duration = Duration::from_secs(2);

/// The VPC API of one region.
pub(super) enum Vpc {
    /// At this base URL, without a slash at the end.
    At(String),
    /// That of the region of the nodes.
    OfNodes(Box<NodeRegion>),
}

/// The region of the nodes.
pub(super) struct NodeRegion {
    nodes: Api<Metadata<Node>>,
    /// The region that is recorded. None for any.
    recorded: Option<String>,
    /// Notified if the nodes are in another region than the recorded one.
    identity_changed: Option<Arc<Notify>>,
    /// The region in which this process looks for VMs.
    region: OnceCell<String>,
    /// What the nodes said when they were read last.
    reading: SingleFlight<String>,
}

impl Vpc {
    /// The API at this address, and what is recorded with it. In the returned record the identity is the account alone, without
    /// the region.
    pub(super) fn new<'a>(
        address: &str,
        opening: &Opening<'a>,
    ) -> Result<(Self, Option<RecordedPlace<'a>>), Error> {
        let recorded = opening.recorded.clone();
        if address != OF_THE_NODES {
            let base = settings::base(address).map_err(|_| Error::unreadable_place("endpoint of VPC"))?;
            return Ok((Self::At(base), recorded));
        }
        let identity = recorded.as_ref().and_then(|recorded| recorded.identity);
        let (account, region) = match identity.map(|identity| identity.split_once('/')) {
            Some(Some((account, region))) if is_region(region) => (Some(account), Some(region)),
            None => (None, None),
            Some(_) => return Err(Error::unreadable_place("region")),
        };
        let vpc = match (&recorded, &opening.cluster) {
            // The settings named this place before: its VMs are in the recorded region, wherever the nodes are now.
            (Some(recorded), _) if recorded.is_former() => {
                let unknown = "it was never known in which region that place was";
                Self::At(url(region.ok_or_else(|| Error::new(ErrorClass::Invalid, unknown))?))
            }
            (_, Some(cluster)) => {
                let changed = recorded.as_ref().and_then(RecordedPlace::identity_changed);
                Self::OfNodes(Box::new(NodeRegion::new(cluster, region.map(str::to_owned), changed)))
            }
            (_, None) => {
                let problem = "there is no access to the cluster, whose nodes have the region";
                return Err(unknown(ErrorClass::Transient, problem, ""));
            }
        };
        Ok((vpc, recorded.map(|recorded| RecordedPlace { identity: account, ..recorded })))
    }

    /// The base URL, without a slash at the end.
    pub(super) async fn base(&self) -> Result<String, Error> {
        match self {
            Self::At(base) => Ok(base.clone()),
            Self::OfNodes(nodes) => Ok(url(nodes.region().await?)),
        }
    }

    /// Fails unless a VM of cloud-api-adaptor can be in no other region than the one that is asked.
    pub(super) async fn ensure_only(&self) -> Result<(), Error> {
        match self {
            Self::At(_) => Ok(()),
            Self::OfNodes(nodes) => nodes.ensure_unchanged().await,
        }
    }

    /// What distinguishes this place from another one at the same address: the account, and the region if the settings do not
    /// name it.
    pub(super) async fn identity(&self, account: String) -> Result<String, Error> {
        match self {
            Self::At(_) => Ok(account),
            Self::OfNodes(nodes) => Ok(format!("{account}/{}", nodes.region().await?)),
        }
    }
}

impl NodeRegion {
    fn new(cluster: &ClusterAccess, recorded: Option<String>, identity_changed: Option<Arc<Notify>>) -> Self {
        let nodes = Api::all(reading(&cluster.client, &LABEL));
        Self { nodes, recorded, identity_changed, region: OnceCell::new(), reading: SingleFlight::default() }
    }

    /// The region of the nodes, as they were when it was needed first.
    async fn region(&self) -> Result<&str, Error> {
        let first = async || {
            let region = self.read().await?;
            let expected = self.recorded.as_ref().unwrap_or(&region);
            self.ensure_same(expected, &region)?;
            Ok(region)
        };
        self.region.get_or_try_init(first).await.map(String::as_str)
    }

    async fn ensure_unchanged(&self) -> Result<(), Error> {
        let region = self.region().await?;
        self.ensure_same(region, &self.read().await?)
    }

    fn ensure_same(&self, before: &str, now: &str) -> Result<(), Error> {
        if before == now {
            return Ok(());
        }
        self.identity_changed.iter().for_each(|it| it.notify_one());
        Err(unknown(
            ErrorClass::Invalid,
            "the nodes are in another region than before",
            &format!("{now} instead of {before}"),
        ))
    }

    /// The region of all nodes, read a moment ago at most. Of many callers at once, one reads the nodes.
    async fn read(&self) -> Result<String, Error> {
        let known = |last: Option<&Latest<String>>| {
            let last = last?;
            let counts = if last.result.is_ok() { FRESH } else { AFTER_FAILURE };
            (last.since().elapsed() < counts).then(|| last.result.clone())
        };
        // Boxed, as a future this large would be held twice.
        self.reading.get(known, Box::pin(self.list())).await
    }

    async fn list(&self) -> Result<String, Error> {
        let (mut regions, params) = (BTreeMap::new(), ListParams::default());
        let list = api_call::for_each(&self.nodes, &params, |node| {
            let meta = node.meta();
            let region = meta.labels.as_ref().and_then(|labels| labels.get(REGION)).cloned();
            regions.entry(region).or_insert_with(|| meta.name.clone().unwrap_or_default());
        });
        let listed = timeout(PATIENCE, list).await.unwrap_or(Err(ApiError::TimedOut));
        listed.map_err(|error| unreadable(&error))?;
        common(&regions)
    }
}

/// The region that all nodes have. `regions` has a node's name for each region.
fn common(regions: &BTreeMap<Option<String>, String>) -> Result<String, Error> {
    let problem = match regions.first_key_value() {
        None => "the cluster has no node",
        Some((None, _)) => "a node has no label topology.kubernetes.io/region",
        Some(_) if regions.len() > 1 => "the nodes are in several regions",
        Some((Some(region), _)) if is_region(region) => return Ok(region.clone()),
        Some(_) => "the label topology.kubernetes.io/region of a node names no region",
    };
    let nodes = regions.iter().map(|(region, node)| match region {
        Some(region) => format!("node {node} in {region}"),
        None => format!("node {node} in none"),
    });
    Err(unknown(ErrorClass::Invalid, problem, &nodes.collect::<Vec<_>>().join(", ")))
}

/// The error that the region of VMs is not known. `details` are for the log.
fn unknown(class: ErrorClass, problem: &str, details: &str) -> Error {
    let public = format!(
        "IBMCLOUD_VPC_ENDPOINT is empty, and {problem}, so the region of the VMs is not known; set IBMCLOUD_VPC_ENDPOINT to \
         https://REGION.iaas.cloud.ibm.com/v1"
    );
    let full = if details.is_empty() { public.clone() } else { format!("{public} ({details})") };
    Error::new(class, Message::new(public, full))
}

/// The error that the nodes cannot be read.
fn unreadable(error: &ApiError) -> Error {
    let (class, advice) = match error.code() {
        Some(403) => (
            ErrorClass::Unauthorized,
            " (give the operator the right to list nodes, as the overlay and the chart of this provider do)",
        ),
        Some(401) => (ErrorClass::Unauthorized, ""),
        _ => (ErrorClass::Transient, ""),
    };
    let problem = format!("the operator cannot read the nodes{advice}");
    unknown(class, &problem, &error.to_string())
}

fn url(region: &str) -> String {
    format!("https://{region}.iaas.cloud.ibm.com/v1")
}

/// Whether this can be a region. It becomes part of a host's name, to which credentials are sent.
fn is_region(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(is_part) && !text.starts_with('-')
}

#[cfg(test)]
mod tests;
