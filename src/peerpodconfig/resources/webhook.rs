//! The admission webhook: the operator's own image in its own Deployment, and its registration.

use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::{
            MatchCondition, MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations,
            ServiceReference, WebhookClientConfig,
        },
        apps::v1::{Deployment, DeploymentSpec},
        core::v1::{
            Container, Lifecycle, LifecycleHandler, PodSpec, PodTemplateSpec, Service, ServiceSpec,
            SleepAction, TopologySpreadConstraint,
        },
        policy::v1::PodDisruptionBudget,
    },
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{LabelSelector, LabelSelectorRequirement},
    },
};
use kube::api::ObjectMeta;
use operator_kit::pod::{self, HEALTH_PORT, METRICS_PORT, port, probe};

use super::{Names, Owner, names::Part, program::Program};
use crate::{
    api::v1alpha1::{Resources, Sizing},
    names::{KUBE_SYSTEM, NAMESPACE_LABEL},
    own_pods,
    settings::tls::TlsOptions,
    webhook::{PATH, server},
};

mod tls;

pub use tls::{tls_of_deployment, tls_of_settings};

/// The name of the webhook within its configuration, the same as upstream's.
pub const WEBHOOK: &str = "mwebhook.peerpods.io";

/// The identity that the webhook runs under. It is part of the installation: the operator gives no rights.
pub const SERVICE_ACCOUNT: &str = "peerpod-webhook";

/// The one container of each Pod.
const CONTAINER: &str = "webhook";

/// Where reviews are served.
pub const PORT: i32 = 9443;

/// How long the API server waits for an answer, which takes milliseconds. The creation of a Pod waits as long.
const TIMEOUT_SECONDS: i32 = 5;

/// How long a terminating Pod continues to serve, until every API server has learnt that it is no endpoint.
const SERVES_ON_SECONDS: i64 = 5;

/// The grace period of a Pod: the time that it continues to serve, the time that its connections may take to end, and a reserve.
const GRACE_SECONDS: i64 = SERVES_ON_SECONDS + server::LONGEST_STOP.as_secs().cast_signed() + 5;

/// The webhook's Pods. They are spread over nodes, and a new one is ready before an old one is removed.
///
/// `tls`: the options for their clients. They are in the Pod template, so a change replaces the Pods. `program`: the image and the
/// placement.
pub fn deployment(owner: &Owner, tls: &TlsOptions, program: &Program) -> Deployment {
    let config = owner.config;
    let admission = &config.spec.admission;
    let mut labels = admission.pod_labels.clone();
    labels.extend(Part::Webhook.labels(config));
    let annotations = Some(admission.pod_annotations.clone()).filter(|it| !it.is_empty());
    let metadata = Part::Webhook.metadata(owner, Names::of(config).webhook);
    Deployment {
        metadata: ObjectMeta { labels: Some(labels.clone()), ..metadata },
        spec: DeploymentSpec {
            replicas: Some(admission.replicas),
            selector: Part::Webhook.selector(config),
            strategy: Some(own_pods::strategy()),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta { labels: Some(labels), annotations, ..ObjectMeta::default() }),
                spec: Some(pod(owner, tls, program)),
            },
            ..DeploymentSpec::default()
        }
        .into(),
        status: None,
    }
}

/// Where the API server finds the webhook's Pods.
pub fn service(owner: &Owner) -> Service {
    Service {
        metadata: Part::Webhook.metadata(owner, Names::of(owner.config).webhook),
        spec: Some(ServiceSpec {
            selector: Some(Part::Webhook.selector_labels(owner.config)),
            ports: Some(vec![own_pods::service_port("webhook", 443)]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// One Pod at a time may be evicted.
pub fn disruption_budget(owner: &Owner) -> PodDisruptionBudget {
    PodDisruptionBudget {
        metadata: Part::Webhook.metadata(owner, Names::of(owner.config).webhook),
        spec: Some(own_pods::disruption_budget(Part::Webhook.selector(owner.config))),
        status: None,
    }
}

/// Registers the webhook with API servers, for peer pods alone: while it is down, no other Pod is affected.
///
/// `ca_bundle`: the authorities whose certificates the webhook may show, in PEM, once they are known.
pub fn configuration(owner: &Owner, ca_bundle: Option<ByteString>) -> MutatingWebhookConfiguration {
    let strings = |texts: &[&str]| Some(texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
    let webhook = MutatingWebhook {
        name: WEBHOOK.to_owned(),
        admission_review_versions: vec!["v1".to_owned()],
        client_config: WebhookClientConfig {
            ca_bundle,
            service: Some(ServiceReference {
                name: Names::of(owner.config).webhook,
                namespace: owner.namespace.to_owned(),
                path: Some(PATH.to_owned()),
                port: Some(443),
            }),
            url: None,
        },
        failure_policy: Some("Fail".to_owned()),
        match_conditions: Some(vec![MatchCondition {
            name: "runtime-class".to_owned(),
            expression: runtime_class_condition(&owner.config.spec.admission.runtime_class_name),
        }]),
        namespace_selector: Some(other_namespaces(owner)),
        reinvocation_policy: Some("IfNeeded".to_owned()),
        rules: Some(vec![RuleWithOperations {
            api_groups: strings(&[""]),
            api_versions: strings(&["v1"]),
            operations: strings(&["CREATE"]),
            resources: strings(&["pods"]),
            scope: Some("Namespaced".to_owned()),
        }]),
        side_effects: "None".to_owned(),
        timeout_seconds: Some(TIMEOUT_SECONDS),
        ..MutatingWebhook::default()
    };
    let mut metadata = Part::Webhook.cluster_scoped(owner);
    let admission = &owner.config.spec.admission;
    for (own, further) in [
        (&mut metadata.labels, &admission.webhook_labels),
        (&mut metadata.annotations, &admission.webhook_annotations),
    ] {
        let own = own.get_or_insert_default();
        for (key, value) in further {
            own.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
    MutatingWebhookConfiguration { metadata, webhooks: Some(vec![webhook]) }
}

/// A Pod of this runtime class, in CEL. Most Pods have no runtime class, and asking for a field that is not there would
/// fail.
pub fn runtime_class_condition(runtime_class: &str) -> String {
    // Strings of JSON are strings of CEL.
    format!("object.spec.?runtimeClassName.orValue(\"\") == {}", serde_json::Value::from(runtime_class))
}

/// Every namespace but the operator's own, `kube-system` and those that the configuration excludes.
pub fn other_namespaces(owner: &Owner) -> LabelSelector {
    let mut excluded = owner.config.spec.admission.excluded_namespaces.clone();
    excluded.extend([owner.namespace.to_owned(), KUBE_SYSTEM.to_owned()]);
    excluded.sort();
    excluded.dedup();
    LabelSelector {
        match_expressions: Some(vec![LabelSelectorRequirement {
            key: NAMESPACE_LABEL.to_owned(),
            operator: "NotIn".to_owned(),
            values: Some(excluded),
        }]),
        ..LabelSelector::default()
    }
}

fn pod(owner: &Owner, tls: &TlsOptions, program: &Program) -> PodSpec {
    program.placement.place(PodSpec {
        service_account_name: Some(SERVICE_ACCOUNT.to_owned()),
        topology_spread_constraints: Some(vec![TopologySpreadConstraint {
            // Former Pods are being replaced, and must not influence where new ones run.
            match_label_keys: Some(vec!["pod-template-hash".to_owned()]),
            ..own_pods::spread(Part::Webhook.selector(owner.config))
        }]),
        security_context: Some(pod::security()),
        termination_grace_period_seconds: Some(GRACE_SECONDS),
        image_pull_secrets: Some(program.pull_secrets.clone()).filter(|it| !it.is_empty()),
        containers: vec![container(owner, tls, program)],
        ..PodSpec::default()
    })
}

fn container(owner: &Owner, tls: &TlsOptions, program: &Program) -> Container {
    let admission = &owner.config.spec.admission;
    let sizing = match admission.sizing {
        Sizing::Kubernetes => "kubernetes",
        Sizing::Sum => "sum",
    };
    let mut args = vec![
        "webhook".to_owned(),
        format!("--addr=:{PORT}"),
        format!("--health-addr=:{HEALTH_PORT}"),
        format!("--metrics-addr=:{METRICS_PORT}"),
        format!("--runtime-class={}", admission.runtime_class_name),
        "--refuse-other-classes=true".to_owned(),
        format!("--extended-resource={}", admission.extended_resource),
        format!("--sizing={sizing}"),
        "--log-format=json".to_owned(),
    ];
    args.extend(program.secure_metrics.then(|| "--metrics-secure=true".to_owned()));
    args.extend(tls::arguments(tls));
    Container {
        name: CONTAINER.to_owned(),
        image: Some(program.image.clone()),
        image_pull_policy: Some(program.pull_policy.clone()),
        args: Some(args),
        env: Some(vec![own_pods::namespace_variable(), own_pods::name_variable()]),
        ports: Some([vec![port("webhook", PORT)], pod::ports()].concat()),
        liveness_probe: Some(probe("/healthz", 10)),
        readiness_probe: Some(probe("/readyz", 5)),
        lifecycle: Some(Lifecycle {
            pre_stop: Some(LifecycleHandler {
                sleep: Some(SleepAction { seconds: SERVES_ON_SECONDS }),
                ..LifecycleHandler::default()
            }),
            ..Lifecycle::default()
        }),
        resources: Some(admission.resources.clone().unwrap_or_else(default_resources).into()),
        security_context: Some(pod::container_security()),
        ..Container::default()
    }
}

/// Without a limit on cpu: throttling a process that idles saves nothing and delays every peer pod.
fn default_resources() -> Resources {
    let quantity = |name: &str, value: &str| (name.to_owned(), Quantity(value.to_owned()));
    Resources {
        limits: [quantity("memory", "64Mi")].into(),
        requests: [quantity("cpu", "10m"), quantity("memory", "16Mi")].into(),
    }
}

#[cfg(test)]
mod tests;
