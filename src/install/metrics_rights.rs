//! Rights around metrics that are served with TLS and a token: part of an installation where that is asked for.

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use operator_kit::http::secure::{PATH, PERMISSIONS};
use serde_json::{Error, Value, to_value};

use super::{
    Component, NAME, Options,
    rbac::{account, cluster_wide},
};
use crate::peerpodconfig::resources::webhook::SERVICE_ACCOUNT;

/// The role of those who serve metrics: they ask whose a token is, and what that one may do.
pub const REVIEWER: &str = "peerpod-metrics-reviewer";

/// The role of those who read metrics. Nobody has it until an administrator gives it.
pub const READER: &str = "peerpod-metrics-reader";

/// The roles, and the operator and the webhook as reviewers.
pub fn objects(options: &Options) -> Result<[Value; 3], Error> {
    let subjects = [NAME, SERVICE_ACCOUNT].map(|name| account(name, options)).to_vec();
    let [reviewer, binding] = cluster_wide(Component::Operator, REVIEWER, PERMISSIONS, subjects)?;
    let rule = PolicyRule {
        non_resource_urls: Some(vec![PATH.to_owned()]),
        verbs: vec!["get".to_owned()],
        ..PolicyRule::default()
    };
    let reader = ClusterRole {
        metadata: Component::Operator.cluster_scoped(READER),
        rules: Some(vec![rule]),
        ..ClusterRole::default()
    };
    Ok([reviewer, binding, to_value(reader)?])
}
