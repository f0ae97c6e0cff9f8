//! `kustomize/`: the installation as a base, an overlay for each provider, and components for options.
//!
//! ```text
//! base/                  everything but the namespace, and the settings
//! namespace/             the namespace
//! overlays/PROVIDER/     both, peer-pods-cm and peer-pods-secret from two files that people fill in, and rights for it alone
//! components/NAME/       an option each
//! ```

use anyhow::Result;
use peerpod_operator::{
    install::{self, Component, Manifest, Options, guard, metrics_rights, monitoring, samples},
    names::{CONFIG_MAP, SECRET},
    peerpodconfig::resources::token_volumes,
    provider::{CLOUDS, Cloud},
};
use serde::Serialize;
use serde_json::{Value, json, to_value};

use super::{
    Files, HEADER,
    settings::{Place, caveat, env_file, wrap},
    yaml,
};

/// A `kustomization.yaml`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Kustomization {
    api_version: &'static str,
    kind: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    resources: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    generator_options: Option<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    config_map_generator: Vec<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    secret_generator: Vec<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    patches: Vec<Value>,
}

impl Kustomization {
    fn new() -> Self {
        Self {
            api_version: "kustomize.config.k8s.io/v1beta1",
            kind: "Kustomization",
            resources: Vec::new(),
            generator_options: None,
            config_map_generator: Vec::new(),
            secret_generator: Vec::new(),
            patches: Vec::new(),
        }
    }

    fn component() -> Self {
        Self { api_version: "kustomize.config.k8s.io/v1alpha1", kind: "Component", ..Self::new() }
    }

    /// The file's text, with a comment on its purpose.
    fn print(&self, about: &str) -> Result<String> {
        Ok(format!("{HEADER}#\n{}{}", wrap(about), serde_yaml::to_string(self)?))
    }
}

/// Every file.
pub(super) fn files(options: &Options) -> Result<Files> {
    let objects = install::objects(options)?;
    let mut files = base(&objects)?;
    for provider in CLOUDS {
        files.extend(overlay(provider, options)?);
    }
    for component in components(options)? {
        files.extend(component.files()?);
    }
    Ok(files)
}

/// One file for each group of objects, in the order of each group's first object.
fn base(objects: &[Manifest]) -> Result<Files> {
    let mut files = Files::new();
    let mut groups: Vec<(&str, Vec<&Value>)> = Vec::new();
    for Manifest { file, object } in objects {
        match groups.iter_mut().find(|(name, _)| name == file) {
            Some((_, group)) => group.push(object),
            None => groups.push((file, vec![object])),
        }
    }
    let mut resources = Vec::new();
    for (name, group) in groups {
        let file = format!("{name}.yaml");
        let namespace = name == "namespace";
        let folder = if namespace { "namespace" } else { "base" };
        files.insert(format!("kustomize/{folder}/{file}").into(), yaml(group.into_iter())?);
        if !namespace {
            resources.push(file);
        }
    }
    let namespace = Kustomization { resources: vec!["namespace.yaml".to_owned()], ..Kustomization::new() };
    let about = "The namespace of the installation. Its Pod security level allows cloud-api-adaptor's privileged \
         Pods.";
    files.insert("kustomize/namespace/kustomization.yaml".into(), namespace.print(about)?);
    let about = "Everything except the namespace and the settings. The policies that protect other objects from \
         deletion are last, because kubectl also deletes in this order.";
    let base = Kustomization { resources, ..Kustomization::new() };
    files.insert("kustomize/base/kustomization.yaml".into(), base.print(about)?);
    Ok(files)
}

fn overlay(provider: &Cloud, options: &Options) -> Result<Files> {
    let generator =
        |name: &str, file: &str| json!({ "name": name, "namespace": options.namespace, "envs": [file] });
    let rights = install::cloud_rights(provider, options)?;
    let further = (!rights.is_empty()).then(|| "rights.yaml".to_owned());
    let resources = ["../../namespace".to_owned(), "../../base".to_owned()].into_iter().chain(further);
    let kustomization = Kustomization {
        resources: resources.collect(),
        // With a hash of the content in its name, each change would make a new object, which no running Pod reads.
        generator_options: Some(
            json!({ "disableNameSuffixHash": true, "labels": Component::Adaptor.labels() }),
        ),
        config_map_generator: vec![generator(CONFIG_MAP, "settings.env")],
        secret_generator: vec![generator(SECRET, "credentials.env")],
        patches: tokens(provider)?,
        ..Kustomization::new()
    };
    let about = format!(
        "The installation for the provider {provider}: fill in settings.env and credentials.env. Options \
         are in ../../components: add `components: [../../components/NAME]`. The namespace is {}. It \
         cannot be changed here, not even with `namespace:`; use the helm chart for another namespace.{}",
        options.namespace,
        caveat(provider)
    );
    let folder = format!("kustomize/overlays/{provider}");
    let mut files = Files::from([
        (format!("{folder}/kustomization.yaml").into(), kustomization.print(&about)?),
        (format!("{folder}/settings.env").into(), env_file(provider, Place::ConfigMap)),
        (format!("{folder}/credentials.env").into(), env_file(provider, Place::Secret)),
    ]);
    if !rights.is_empty() {
        files.insert(format!("{folder}/rights.yaml").into(), yaml(rights.iter())?);
    }
    Ok(files)
}

/// Gives the operator's Pods the tokens that identify them to this cloud.
fn tokens(provider: &Cloud) -> Result<Vec<Value>> {
    let mut patches = Vec::new();
    for (volume, mount) in token_volumes(provider) {
        patches.push(added("volumes", &to_value(volume)?)?);
        patches.push(added("containers/0/volumeMounts", &to_value(mount)?)?);
    }
    Ok(patches)
}

/// An option.
#[derive(Default)]
struct Choice {
    name: &'static str,
    about: &'static str,
    objects: Vec<Value>,
    patches: Vec<Value>,
}

impl Choice {
    fn files(self) -> Result<Files> {
        let folder = format!("kustomize/components/{}", self.name);
        let mut files = Files::new();
        let mut kustomization = Kustomization { patches: self.patches, ..Kustomization::component() };
        if !self.objects.is_empty() {
            let file = format!("{}.yaml", self.name);
            files.insert(format!("{folder}/{file}").into(), yaml(self.objects.iter())?);
            kustomization.resources.push(file);
        }
        files.insert(format!("{folder}/kustomization.yaml").into(), kustomization.print(self.about)?);
        Ok(files)
    }
}

fn components(options: &Options) -> Result<Vec<Choice>> {
    let mut components = vec![
        Choice {
            name: "cert-manager",
            about: "cert-manager creates the webhook's certificate, for the webhook of the PeerPodConfig \
                 `config`. Without this component the webhook creates its own.",
            objects: install::certificate(options, samples::CONFIG).into(),
            ..Choice::default()
        },
        Choice {
            name: "pod-monitor",
            about: "Lets the Prometheus operator scrape operators and webhooks.",
            objects: vec![monitoring::pod_monitor(options)],
            ..Choice::default()
        },
        Choice {
            name: "secure-metrics",
            about: "Operator and webhook serve metrics with TLS, and only to clients with a token whose account may get the path \
                    /metrics: give it the ClusterRole peerpod-metrics-reader. List this component after pod-monitor: it \
                    changes the PodMonitor, so that Prometheus uses TLS and shows the token in the Secret peerpod-metrics-token.",
            objects: metrics_rights::objects(options)?.into(),
            patches: secure_metrics()?,
        },
        Choice {
            name: "alerts",
            about: "Alerts for the Prometheus operator.",
            objects: vec![monitoring::prometheus_rule(options)],
            ..Choice::default()
        },
        Choice {
            name: "dashboard",
            about: "A dashboard of Grafana, with the label by which its sidecar finds dashboards.",
            objects: vec![dashboard(options)?],
            ..Choice::default()
        },
        Choice {
            name: "disruption-budget",
            about: "Evictions keep one operator running. (kubectl apply reports any budget as changed each time.)",
            objects: vec![to_value(install::disruption_budget(options))?],
            ..Choice::default()
        },
        Choice {
            name: "network-policies",
            about: "Closes the ports of operators and webhooks except those for metrics and reviews.",
            objects: install::network_policies(options).iter().map(to_value).collect::<Result<_, _>>()?,
            ..Choice::default()
        },
        Choice {
            name: "evict-lost-pods",
            about: "The operator evicts Pods whose VM is gone or off, as disruption budgets allow.",
            objects: install::evictions::objects(options)?.into(),
            patches: vec![argument(install::evictions::ARGUMENT)?],
        },
        Choice {
            name: "peerpodconfig",
            about: "A PeerPodConfig. For it the operator deploys cloud-api-adaptor and the admission, and \
                 advertises the nodes' capacity. Its CRD must exist first: apply manifests/crd before, or \
                 apply this twice.",
            objects: vec![samples::peer_pod_config(options)?],
            ..Choice::default()
        },
    ];
    components.extend(guard_and_rights(options)?);
    Ok(components)
}

/// The options about the guard, and the one without the rights of the controller of PeerPodConfigs.
fn guard_and_rights(options: &Options) -> Result<[Choice; 3]> {
    let guards = [to_value(guard::binding(guard::Action::Warn))?, to_value(guard::policy())?];
    let deny = to_value(guard::binding(guard::Action::Deny))?;
    let deny = operation("replace", "/spec/validationActions", &deny["spec"]["validationActions"])?;
    let webhook = install::WEBHOOK_RIGHTS.objects(options)?.into_iter().map(|manifest| manifest.object);
    let rights: Vec<_> = install::peerpodconfig_rights(options)?.into_iter().chain(webhook).collect();
    Ok([
        Choice {
            name: "deny-guard",
            about: "The guard refuses writes that it otherwise only warns about.",
            patches: vec![patch("ValidatingAdmissionPolicyBinding", guard::NAME, &deny)],
            ..Choice::default()
        },
        Choice {
            name: "no-guard",
            about: "Without the guard: anyone with RBAC rights may write PeerPods.",
            patches: guards.iter().map(delete).collect::<Result<_>>()?,
            ..Choice::default()
        },
        Choice {
            name: "no-peerpodconfig",
            about: "Without the controller of PeerPodConfigs, and without the rights that it and the webhook need: the operator \
                 deletes VMs. In an existing installation delete every PeerPodConfig before, and these rights after: kubectl \
                 apply removes nothing. List this component after secure-metrics: it takes the webhook out of the binding there.",
            patches: rights
                .iter()
                .map(delete)
                .chain([argument("--controllers=peerpod"), without_webhook_reviewer()])
                .collect::<Result<_>>()?,
            ..Choice::default()
        },
    ])
}

/// Removes this object of the base.
fn delete(object: &Value) -> Result<Value> {
    let patch = json!({
        "apiVersion": object["apiVersion"],
        "kind": object["kind"],
        "metadata": { "name": object["metadata"]["name"] },
        "$patch": "delete",
    });
    let target = json!({ "kind": object["kind"], "name": object["metadata"]["name"] });
    Ok(json!({ "target": target, "patch": serde_yaml::to_string(&patch)? }))
}

fn dashboard(options: &Options) -> Result<Value> {
    let mut dashboard = monitoring::dashboard(options)?;
    let (name, value) = monitoring::DASHBOARD_LABEL;
    dashboard.metadata.labels.get_or_insert_default().insert(name.to_owned(), value.to_owned());
    Ok(to_value(dashboard)?)
}

fn secure_metrics() -> Result<Vec<Value>> {
    let endpoint = monitoring::secure_endpoint(monitoring::TOKEN_SECRET);
    let endpoint = operation("replace", "/spec/podMetricsEndpoints/0", &endpoint)?;
    Ok(vec![argument("--metrics-secure=true")?, patch("PodMonitor", install::NAME, &endpoint)])
}

/// Takes the webhook's account, which is not there, out of the binding of the component `secure-metrics`.
fn without_webhook_reviewer() -> Result<Value> {
    let removal = json!([{ "op": "remove", "path": metrics_rights::WEBHOOK_SUBJECT }]);
    Ok(patch("ClusterRoleBinding", metrics_rights::REVIEWER, &serde_yaml::to_string(&removal)?))
}

/// Adds one argument to the operator.
fn argument(argument: &str) -> Result<Value> {
    added("containers/0/args", &argument.into())
}

/// Adds an element to this list of the operator's Pods.
fn added(path: &str, element: &Value) -> Result<Value> {
    let addition = operation("add", &format!("/spec/template/spec/{path}/-"), element)?;
    Ok(patch("Deployment", install::NAME, &addition))
}

/// Changes this object of the base.
fn patch(kind: &str, name: &str, patch: &str) -> Value {
    json!({ "target": { "kind": kind, "name": name }, "patch": patch })
}

/// One JSON patch in kustomize's format.
fn operation(op: &str, path: &str, value: &Value) -> Result<String> {
    Ok(serde_yaml::to_string(&json!([{ "op": op, "path": path, "value": value }]))?)
}
