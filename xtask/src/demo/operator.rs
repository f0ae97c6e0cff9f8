//! The operator of the stories.

use anyhow::Result;
use peerpod_operator::NAMESPACE;
use testbed::{Metrics, OperatorPods};

/// How it runs.
pub(super) enum Operator {
    /// As users run it: two Pods of its own image, on the real node.
    Pods(OperatorPods),
    /// As a process of this machine, if there can be no real node.
    Process(Box<testbed::Operator>),
}

impl Operator {
    /// The metrics of each replica.
    pub(super) async fn metrics(&self) -> Result<Vec<Metrics>> {
        match self {
            Self::Pods(pods) => Ok(pods.metrics().await?.into_values().collect()),
            Self::Process(operator) => Ok(vec![operator.metrics().await?]),
        }
    }

    /// The last lines of its log.
    pub(super) async fn log_tail(&self) -> String {
        match self {
            Self::Pods(pods) => pods.log_tail().await,
            Self::Process(operator) => operator.log_tail(),
        }
    }

    /// Tells a user where to find its log.
    pub(super) fn log(&self) -> String {
        match self {
            Self::Pods(_) => format!("kubectl -n {NAMESPACE} logs deployment/peerpod-operator --all-pods"),
            Self::Process(operator) => operator.process().log().display().to_string(),
        }
    }
}
