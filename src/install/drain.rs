//! What prepares the operator's removal where something runs it before: helm.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    batch::v1::{Job, JobSpec},
    core::v1::{Container, PodSpec, PodTemplateSpec},
};
use kube::api::ObjectMeta;

use super::{Component, NAME, Options, deployment};
use crate::peerpodconfig::build::own_pods;

/// The name of the Job.
pub const DRAIN_JOB: &str = "peerpod-operator-drain";

/// Runs `drain` once, as the operator. A failed one stays for its log.
pub fn drain_job(options: &Options) -> Job {
    let operator = deployment::container(options);
    Job {
        metadata: Component::Operator.namespaced(DRAIN_JOB, options),
        spec: Some(JobSpec {
            backoff_limit: Some(0),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    // None of those by which the operators' Pods are selected.
                    labels: Some(BTreeMap::from([(
                        "app.kubernetes.io/name".to_owned(),
                        DRAIN_JOB.to_owned(),
                    )])),
                    ..ObjectMeta::default()
                }),
                spec: Some(PodSpec {
                    restart_policy: Some("Never".to_owned()),
                    service_account_name: Some(NAME.to_owned()),
                    security_context: Some(deployment::pod_security()),
                    containers: vec![Container {
                        name: "drain".to_owned(),
                        image: operator.image,
                        image_pull_policy: operator.image_pull_policy,
                        args: Some(vec!["drain".to_owned()]),
                        env: Some(vec![own_pods::namespace_variable()]),
                        resources: operator.resources,
                        security_context: operator.security_context,
                        ..Container::default()
                    }],
                    ..PodSpec::default()
                }),
            },
            ..JobSpec::default()
        }),
        status: None,
    }
}
