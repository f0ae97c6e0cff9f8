//! What runs once, if a tool runs it at the right time: helm, by its hooks.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    batch::v1::{Job, JobSpec},
    core::v1::{ConfigMap, ConfigMapVolumeSource, Container, PodSpec, PodTemplateSpec, Volume, VolumeMount},
};
use kube::api::ObjectMeta;
use operator_kit::pod;

use super::{Component, NAME, Options, Rights, deployment, samples::CONFIG};
use crate::{
    cli::{APPLY_PERMISSION, ROLLOUT_PERMISSION},
    names::NAME_LABEL,
    own_pods,
};

/// The name of the Job that drains.
pub const DRAIN_JOB: &str = "peerpod-operator-drain";

/// The name of the Job that applies a `PeerPodConfig`, of the `ConfigMap` that has it, and of the Job's ServiceAccount.
pub const APPLY_JOB: &str = "peerpod-operator-apply";

/// How long the program of the Job that applies may take, in seconds: as long as the rollout of the operator, which it waits for.
const APPLY_SECONDS: i64 = 180;

/// How long a Job may take until its program runs, in seconds: time to pull the image. Helm has given up after both. A late Job must not
/// act on an installation that has changed since.
const START_SECONDS: i64 = 60;

/// Where the Job finds the `ConfigMap`.
const APPLY_DIR: &str = "/etc/peerpod-operator/apply";

/// The key of the `ConfigMap`.
const APPLY_KEY: &str = "peerpodconfig.yaml";

/// The rights of the Job that applies a `PeerPodConfig` called [`CONFIG`]. The operator itself may create none.
pub const APPLY_RIGHTS: Rights = Rights {
    name: APPLY_JOB,
    component: Component::Operator,
    cluster: &[],
    namespaces: &[(None, &[APPLY_PERMISSION.named(&[CONFIG]), ROLLOUT_PERMISSION.named(&[NAME])])],
};

/// Runs `drain` once, as the operator, and stops the operators. The removal deletes their rights at the same time, and then they
/// could not release their lease. A failed Job stays for its log. The chart adds how long it may take.
pub fn drain_job(options: &Options) -> Job {
    let container = Container {
        name: "drain".to_owned(),
        args: Some(vec!["drain".to_owned(), "--stop".to_owned()]),
        ..Container::default()
    };
    job(DRAIN_JOB, NAME, container, None, None, options)
}

/// Runs `apply` once, for the `PeerPodConfig` in the `ConfigMap`, after the rollout of the operator. A former operator would
/// deploy its own release of cloud-api-adaptor, and the present one would replace it at once. A failed Job stays for its log.
pub fn apply_job(options: &Options) -> Job {
    const VOLUME: &str = "peerpodconfig";
    let container = Container {
        name: "apply".to_owned(),
        args: Some(vec![
            "apply".to_owned(),
            format!("{APPLY_DIR}/{APPLY_KEY}"),
            format!("--after-rollout={NAME}"),
            format!("--timeout={APPLY_SECONDS}s"),
        ]),
        volume_mounts: Some(vec![VolumeMount {
            name: VOLUME.to_owned(),
            mount_path: APPLY_DIR.to_owned(),
            read_only: Some(true),
            ..VolumeMount::default()
        }]),
        ..Container::default()
    };
    let volume = Volume {
        name: VOLUME.to_owned(),
        config_map: Some(ConfigMapVolumeSource {
            name: APPLY_JOB.to_owned(),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    };
    job(APPLY_JOB, APPLY_JOB, container, Some(volume), Some(APPLY_SECONDS + START_SECONDS), options)
}

/// What the Job applies: a `PeerPodConfig` as YAML.
pub fn apply_config_map(config: &str, options: &Options) -> ConfigMap {
    ConfigMap {
        metadata: Component::Operator.namespaced(APPLY_JOB, options),
        data: Some(BTreeMap::from([(APPLY_KEY.to_owned(), config.to_owned())])),
        ..ConfigMap::default()
    }
}

/// Runs this container once, with the operator's image.
fn job(
    name: &str,
    service_account: &str,
    container: Container,
    volume: Option<Volume>,
    seconds: Option<i64>,
    options: &Options,
) -> Job {
    let operator = deployment::container(options);
    Job {
        metadata: Component::Operator.namespaced(name, options),
        spec: Some(JobSpec {
            active_deadline_seconds: seconds,
            backoff_limit: Some(0),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    // Without the labels that select the operators' Pods.
                    labels: Some(BTreeMap::from([(NAME_LABEL.to_owned(), name.to_owned())])),
                    ..ObjectMeta::default()
                }),
                spec: Some(PodSpec {
                    restart_policy: Some("Never".to_owned()),
                    service_account_name: Some(service_account.to_owned()),
                    node_selector: Some(deployment::node_selector()),
                    security_context: Some(pod::security()),
                    containers: vec![Container {
                        image: operator.image,
                        image_pull_policy: operator.image_pull_policy,
                        env: Some(vec![own_pods::namespace_variable()]),
                        resources: operator.resources,
                        security_context: operator.security_context,
                        ..container
                    }],
                    volumes: volume.map(|volume| vec![volume]),
                    ..PodSpec::default()
                }),
            },
            ..JobSpec::default()
        }),
        status: None,
    }
}
