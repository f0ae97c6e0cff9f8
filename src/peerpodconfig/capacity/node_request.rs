//! What one configuration requests of the nodes. Pure *(no client)*.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Toleration;
use kube::ResourceExt;
use operator_kit::conditions::is_true;

use super::{
    limit::{self, BadLimit},
    node::{Node, is_extended},
    taints,
};
use crate::{
    api::v1alpha1::{Distribution, PeerPodConfig},
    peerpodconfig::{
        conditions::ConditionType,
        selection::{BadSelector, Selection},
    },
};

/// What one configuration requests of the nodes.
#[derive(Clone, Debug)]
pub struct NodeRequest {
    /// The configuration's name.
    pub name: String,
    /// When it was created. Of two that select a node, the older one gets it.
    pub created: Option<Timestamp>,
    /// Whether it is being deleted. Then it selects no nodes.
    pub deleted: bool,
    /// Whether it stays, and the last report says that all of it is ready. For the metrics alone.
    pub ready: bool,
    /// The nodes.
    pub selection: Result<Selection, BadSelector>,
    /// The number of VMs; `None`: the nodes advertise nothing.
    pub limit: Result<Option<u32>, BadLimit>,
    /// What the limit counts.
    pub distribution: Distribution,
    /// The extended resource of which one unit is one VM.
    pub resource: String,
    /// The taints that its cloud-api-adaptor tolerates.
    pub tolerations: Vec<Toleration>,
    /// Why its cloud-api-adaptor is not deployed. Then the operator advertises nothing for it, and leaves what another program
    /// advertises.
    pub withheld: Option<String>,
}

/// The name of a resource that is not an extended one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "spec.admission.extendedResource is \"{0}\": it must have a domain that is not Kubernetes' own, such as kata.peerpods.io/vm"
)]
pub struct BadResource(pub String);

impl NodeRequest {
    /// The request of this configuration.
    pub fn of(config: &PeerPodConfig) -> Self {
        let spec = &config.spec;
        let deleted = config.metadata.deletion_timestamp.is_some();
        let reported = config.status.as_ref();
        Self {
            name: config.name_any(),
            created: config.metadata.creation_timestamp.as_ref().map(|time| time.0),
            deleted,
            ready: !deleted
                && reported.is_some_and(|it| is_true(&it.conditions, ConditionType::Ready.as_str())),
            selection: Selection::of(spec),
            limit: limit::parse(spec.limit.as_ref()),
            distribution: spec.distribution,
            resource: spec.admission.extended_resource.clone(),
            tolerations: spec.adaptor.tolerations.clone(),
            withheld: None,
        }
    }

    /// Why no node can advertise its resource; `None` if nodes can.
    pub(super) fn bad_resource(&self) -> Option<BadResource> {
        (!is_extended(&self.resource)).then(|| BadResource(self.resource.clone()))
    }

    /// Whether its nodes get shares of a limit.
    pub(super) fn shares_out(&self) -> bool {
        self.withheld.is_none() && self.bad_resource().is_none() && matches!(self.limit, Ok(Some(1..)))
    }

    /// Whether it may have any node that cloud-api-adaptor runs on: an edit made its selector invalid. If its cloud-api-adaptor is not
    /// deployed, it never had one.
    pub(super) fn may_have_any_node(&self) -> bool {
        !self.deleted && self.withheld.is_none() && self.selection.is_err()
    }

    /// The taint that keeps its cloud-api-adaptor off a node; `None` if it may run there.
    pub(super) fn kept_off<'a>(&self, node: &'a Node) -> Option<&'a Arc<str>> {
        node.taints().iter().find(|taint| !taints::tolerated(taint, &self.tolerations))
    }
}
