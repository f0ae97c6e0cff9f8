//! Rights for metrics that are served with TLS and a token: part of an installation with these options.

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use operator_kit::{
    http::secure::{PATH, PERMISSIONS},
    permission::bound_role,
};
use serde_json::{Error, Value, to_value};

use super::{Component, NAME, Options};
use crate::peerpodconfig::resources::webhook::SERVICE_ACCOUNT;

/// The role of programs that serve metrics. They ask the API server for the account of a token, and for its rights.
pub const REVIEWER: &str = "peerpod-metrics-reviewer";

/// The role of clients that read metrics. It has no binding until an administrator adds one.
pub const READER: &str = "peerpod-metrics-reader";

/// The webhook among the subjects of the binding of [`REVIEWER`], as a JSON pointer. Without the controller of `PeerPodConfig`s the
/// webhook has no account: leave it out there. Otherwise the right belongs to any account that gets this name.
pub const WEBHOOK_SUBJECT: &str = "/subjects/1";

/// The roles, and the operator and the webhook as reviewers.
pub fn objects(options: &Options) -> Result<[Value; 3], Error> {
    let metadata = Component::Operator.cluster_scoped(REVIEWER);
    let accounts = [NAME, SERVICE_ACCOUNT];
    let [reviewer, binding] = bound_role(metadata, &[PERMISSIONS], &accounts, &options.namespace)?;
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
