//! The chart's templates: the objects of the installation, with values in some places.

use std::collections::BTreeMap;

use anyhow::Result;
use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
};

use peerpod_operator::{
    install::{self, Component, Manifest, NAME, Options, guard, limit, removal},
    names,
    peerpodconfig::resources::{token_volumes, webhook},
    provider::CLOUDS,
};
use serde_json::{Value, to_value};

use super::{
    hooks, metrics,
    template::{Node, file},
    values::provider_names,
};

/// A template and its condition.
pub(super) type Template = (Node, Option<String>);

/// Options that stand for values. The tree replaces each with the user's value.
const NAMESPACE: &str = "<namespace>";
const IMAGE: &str = "<image>";
const ADAPTOR_IMAGE: &str = "<adaptor-image>";
const CONFIG_MAP: &str = "<config-map>";
const SECRET: &str = "<secret>";
const SSH_KEY_SECRET: &str = "<ssh-key-secret>";
const TLS_SECRET: &str = "<tls-secret>";
const BYOM_HOST_KEYS_SECRET: &str = "<byom-host-keys-secret>";

const MARKS: [(&str, &str); 9] = [
    (NAMESPACE, ".Release.Namespace | quote"),
    (IMAGE, "include \"peerpod-operator.image\" . | quote"),
    (ADAPTOR_IMAGE, "include \"peerpod-operator.adaptorImage\" . | quote"),
    (CONFIG_MAP, "include \"peerpod-operator.configMapName\" . | quote"),
    (SECRET, "include \"peerpod-operator.secretName\" . | quote"),
    (SSH_KEY_SECRET, "include \"peerpod-operator.sshKeySecretName\" . | quote"),
    (TLS_SECRET, "include \"peerpod-operator.tlsSecretName\" . | quote"),
    (BYOM_HOST_KEYS_SECRET, "include \"peerpod-operator.byomHostKeysSecretName\" . | quote"),
    (hooks::CONFIG, "include \"peerpod-operator.peerPodConfig\" . | toYaml | indent 4 | trim"),
];

/// The annotation that makes helm keep an object.
const KEEP: &str = "helm.sh/resource-policy";

/// Whether Pods that lost their VM are evicted. The sweep does so, which runs beside the controller of PeerPods.
const EVICTS: &str =
    "and .Values.operator.evictLostPods (ne (include \"peerpod-operator.controllers\" .) \"peerpodconfig\")";

/// Whether the operator runs the controller of PeerPodConfigs. Whatever the other values are, it does unless it runs the other one
/// alone.
pub(super) const CONFIGURES: &str = "ne (include \"peerpod-operator.controllers\" .) \"peerpod\"";

fn options() -> Options {
    Options {
        namespace: NAMESPACE.to_owned(),
        image: IMAGE.to_owned(),
        adaptor_image: ADAPTOR_IMAGE.to_owned(),
        config_map: CONFIG_MAP.to_owned(),
        secret: SECRET.to_owned(),
        ssh_key_secret: SSH_KEY_SECRET.to_owned(),
        tls_secret: TLS_SECRET.to_owned(),
        byom_host_keys_secret: BYOM_HOST_KEYS_SECRET.to_owned(),
        disruption_budget: true,
        network_policies: true,
        ..Options::default()
    }
}

/// Every template, by the name of its file.
pub(super) fn templates() -> Result<BTreeMap<String, String>> {
    let options = options();
    let mut files: BTreeMap<&str, Vec<Template>> = BTreeMap::new();
    let objects = install::objects(&options)?;
    for Manifest { file, object } in &objects {
        // A release cannot contain its own namespace.
        if *file != "namespace" {
            files.entry(file).or_default().push(of_installation(object, &objects)?);
        }
    }
    for provider in CLOUDS {
        for object in install::cloud_rights(provider, &options)? {
            let names =
                provider_names().filter(|(of, _)| *of == provider).map(|(_, name)| format!("\"{name}\""));
            let names: Vec<_> = names.collect();
            let is_named = format!("has (toString .Values.provider) (list {})", names.join(" "));
            files.entry("rights").or_default().push((tree(&object)?, Some(is_named)));
        }
    }
    files.insert("settings", settings(&options)?);
    files.insert("monitoring", metrics::monitoring(&options)?);
    files.insert("dashboard", metrics::dashboard(&options)?);
    files.insert("metrics-rights", metrics::rights(&options)?);
    files.insert("evictions", evictions(&options)?);
    files.insert("peerpodconfig", hooks::apply(&options)?);
    files.insert("drain", vec![hooks::drain(&options)?]);
    let printed =
        files.into_iter().map(|(name, templates)| Ok((format!("templates/{name}.yaml"), file(&templates)?)));
    let config = ("templates/_peerpodconfig.tpl".to_owned(), hooks::config(&options)?);
    printed.chain([Ok(config)]).collect()
}

pub(super) fn tree(object: &Value) -> Result<Node> {
    labelled(object, ".Values.commonLabels")
}

/// The object with the further labels of this expression. It is a single expression, because two could contain the same label.
pub(super) fn labelled(object: &Value, labels: &str) -> Result<Node> {
    let mut node = Node::of(object, &MARKS)?;
    node.extend("/metadata/labels", labels)?;
    Ok(node)
}

/// An expression that merges these maps. Earlier maps take precedence, and null counts as empty.
pub(super) fn merged(values: &[&str]) -> String {
    let maps: Vec<_> = values.iter().map(|value| format!("(.Values.{value} | default dict)")).collect();
    format!("merge (dict) {}", maps.join(" "))
}

fn evictions(options: &Options) -> Result<Vec<Template>> {
    let objects = install::evictions::objects(options)?;
    objects.iter().map(|object| Ok((tree(object)?, Some(EVICTS.to_owned())))).collect()
}

fn name_and_kind(object: &Value) -> (&str, &str) {
    (object["metadata"]["name"].as_str().unwrap_or_default(), object["kind"].as_str().unwrap_or_default())
}

/// Rights in this namespace are part of the release's Role if the release is in that namespace. A second Role could not have the same name.
const ELSEWHERE: &str = "kube-system";

fn of_installation(object: &Value, all: &[Manifest]) -> Result<Template> {
    let mut node = tree(object)?;
    if object["metadata"]["namespace"] == ELSEWHERE {
        return Ok((node, Some(format!("ne .Release.Namespace \"{ELSEWHERE}\""))));
    }
    if object["kind"] == "Role" {
        let same_role = |other: &&Value| {
            name_and_kind(other) == name_and_kind(object) && other["metadata"]["namespace"] == ELSEWHERE
        };
        let elsewhere = all.iter().map(|manifest| &manifest.object).find(same_role);
        for rule in elsewhere.and_then(|role| role["rules"].as_array()).into_iter().flatten() {
            let there = format!("eq .Release.Namespace \"{ELSEWHERE}\"");
            node.add("/rules", None, Node::Plain(rule.clone()), &there)?;
        }
    }
    let when = match name_and_kind(object) {
        (_, "CustomResourceDefinition") => {
            const ANNOTATIONS: &str = "/metadata/annotations";
            const IS_KEPT: &str = ".Values.crds.keep";
            for (name, _) in install::KEPT_BY_GITOPS {
                node.only_if(&format!("{ANNOTATIONS}/{}", name.replace('/', "~1")), IS_KEPT)?;
            }
            node.add(ANNOTATIONS, Some(KEEP), Node::Plain("keep".into()), IS_KEPT)?;
            // Without this annotation the installation's own policy would keep them.
            let removable = Node::Plain("true".into());
            node.add(ANNOTATIONS, Some(removal::ALLOW_ANNOTATION), removable, &format!("not {IS_KEPT}"))?;
            Some(".Values.crds.install")
        }
        (NAME, "Deployment") => {
            deployment(&mut node)?;
            None
        }
        (NAME, "ServiceAccount") => {
            let values = ["operator.serviceAccount.annotations", "resourceCtrl.serviceAccount.annotations"];
            node.optional("/metadata", "annotations", &merged(&values))?;
            None
        }
        ("cloud-api-adaptor", "ServiceAccount") => {
            node.optional("/metadata", "annotations", ".Values.daemonset.serviceAccount.annotations")?;
            None
        }
        (guard::NAME, "ValidatingAdmissionPolicy") => Some("ne .Values.guard.action \"None\""),
        (guard::NAME, "ValidatingAdmissionPolicyBinding") => {
            node.set("/spec/validationActions/0", Node::Scalar(".Values.guard.action".to_owned()))?;
            Some("ne .Values.guard.action \"None\"")
        }
        (_, "NetworkPolicy") => Some(".Values.networkPolicy.enabled"),
        (_, "PodDisruptionBudget") => Some(".Values.podDisruptionBudget.enabled"),
        (install::PEERPODCONFIG_ROLE | webhook::SERVICE_ACCOUNT | limit::NAME, _) => Some(CONFIGURES),
        _ => None,
    };
    Ok((node, when.map(str::to_owned)))
}

fn deployment(node: &mut Node) -> Result<()> {
    const POD: &str = "/spec/template/spec";
    const CONTAINER: &str = "/spec/template/spec/containers/0";
    let scalar = |expression: &str| Node::Scalar(expression.to_owned());
    let yaml = |expression: &str| Node::Yaml(format!("toYaml {expression}"));
    let in_container = |name: &str| format!("{CONTAINER}/{name}");

    node.optional("/metadata", "annotations", ".Values.operator.annotations")?;
    node.set("/spec/replicas", scalar(".Values.operator.replicas"))?;
    let labels = merged(&["operator.podLabels", "resourceCtrl.podLabels", "commonLabels"]);
    node.extend("/spec/template/metadata/labels", &labels)?;
    node.optional("/spec/template/metadata", "annotations", ".Values.operator.podAnnotations")?;

    for key in ["imagePullSecrets", "tolerations", "affinity"] {
        node.optional(POD, key, &format!(".Values.operator.{key}"))?;
    }
    select_nodes(node, POD)?;
    priority_class(node, POD)?;
    node.set(
        &format!("{POD}/topologySpreadConstraints"),
        yaml(".Values.operator.topologySpreadConstraints"),
    )?;
    for cloud in CLOUDS {
        let when = format!("eq (toString .Values.provider) {:?}", cloud.name());
        for (volume, mount) in token_volumes(cloud) {
            node.add(&format!("{POD}/volumes"), None, Node::Plain(to_value(volume)?), &when)?;
            node.add(&in_container("volumeMounts"), None, Node::Plain(to_value(mount)?), &when)?;
        }
    }
    node.extend(&format!("{POD}/volumes"), ".Values.operator.extraVolumes")?;

    node.set(&in_container("imagePullPolicy"), scalar(".Values.operator.image.pullPolicy"))?;
    node.set(&in_container("resources"), yaml(".Values.operator.resources"))?;
    for (flag, expression) in [
        ("lease-name", ".Values.operator.leaseName"),
        ("controllers", "include \"peerpod-operator.controllers\" ."),
    ] {
        let argument = scalar(&format!("printf \"--{flag}=%s\" ({expression}) | quote"));
        node.add(&in_container("args"), None, argument, expression)?;
    }
    metrics::secure(node, POD)?;
    node.add(&in_container("args"), None, Node::Plain(install::evictions::ARGUMENT.into()), EVICTS)?;
    node.extend(&in_container("args"), ".Values.operator.extraArgs")?;
    // The API server drops an empty value, so the installation has none.
    let adaptor_image = node.named(&in_container("env"), "RELATED_IMAGE_CAA")?;
    node.only_if(&format!("{adaptor_image}/value"), "include \"peerpod-operator.adaptorImage\" .")?;
    node.extend(&in_container("env"), ".Values.operator.extraEnv")?;
    node.extend(&in_container("volumeMounts"), ".Values.operator.extraVolumeMounts")
}

/// Gives a Pod the operator's node selector: what the user says, and the label of the installation unless the user sets it.
pub(super) fn select_nodes(node: &mut Node, pod: &str) -> Result<()> {
    let (label, value) = install::NODE_LABEL;
    let users = "(.Values.operator.nodeSelector | default dict)";
    let all = format!("toYaml (merge (dict) {users} (dict {label:?} {value:?}))");
    node.set(&format!("{pod}/nodeSelector"), Node::Yaml(all))
}

/// Gives a Pod the operator's priority class.
pub(super) fn priority_class(node: &mut Node, pod: &str) -> Result<()> {
    const VALUE: &str = ".Values.operator.priorityClassName";
    node.add(pod, Some("priorityClassName"), Node::Scalar(format!("{VALUE} | quote")), VALUE)
}

/// `peer-pods-cm` and the Secrets, from the values.
fn settings(options: &Options) -> Result<Vec<Template>> {
    let metadata = |name: &str| Component::Adaptor.namespaced(name, options);
    let config_map = ConfigMap {
        metadata: metadata(names::CONFIG_MAP),
        data: Some(BTreeMap::new()),
        ..ConfigMap::default()
    };
    let mut node = tree(&with_kind(&config_map)?)?;
    node.set("/data", Node::Yaml("include \"peerpod-operator.settings\" .".to_owned()))?;
    let made = "and .Values.provider (not .Values.settings.existingConfigMapName)";
    let mut templates = vec![(node, Some(made.to_owned()))];
    for (name, data, when) in [
        (names::SECRET, "credentials", "true"),
        (names::SSH_KEY_SECRET, "sshKey", "ne (include \"peerpod-operator.sshKey\" .) \"{}\""),
        (names::TLS_SECRET, "tlsCerts", "ne (include \"peerpod-operator.tlsCerts\" .) \"{}\""),
        (
            names::BYOM_HOST_KEYS_SECRET,
            "byomHostKeys",
            "ne (include \"peerpod-operator.byomHostKeys\" .) \"{}\"",
        ),
    ] {
        let secret = Secret {
            metadata: metadata(name),
            data: Some(BTreeMap::<String, ByteString>::new()),
            type_: Some("Opaque".to_owned()),
            ..Secret::default()
        };
        let mut node = tree(&with_kind(&secret)?)?;
        node.set("/data", Node::Yaml(format!("include \"peerpod-operator.{data}\" .")))?;
        let made = format!("and .Values.provider (eq .Values.secrets.mode \"create\") ({when})");
        templates.push((node, Some(made)));
    }
    Ok(templates)
}

pub(super) fn with_kind<K: k8s_openapi::Resource + serde::Serialize>(object: &K) -> Result<Value> {
    let value = to_value(object)?;
    anyhow::ensure!(value["kind"] == K::KIND, "an object says its kind");
    Ok(value)
}

/// Templates that are no objects: helpers that several templates use, or that compute more than one value.
pub(super) const HELPERS: &str = include_str!("helpers.tpl");

/// The notes that helm prints after an installation.
pub(super) const NOTES: &str = include_str!("notes.txt");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_mark_is_left_in_a_template() {
        for (name, text) in templates().unwrap() {
            for (mark, _) in MARKS {
                assert!(!text.contains(mark), "{name} has {mark}");
            }
        }
    }

    #[test]
    fn helpers_and_notes_use_the_names_of_the_installation() {
        let options = Options::default();
        let adaptor_image = peerpod_operator::peerpodconfig::resources::DEFAULT_ADAPTOR_IMAGE;
        for name in [
            &options.config_map,
            &options.secret,
            &options.ssh_key_secret,
            &options.tls_secret,
            &options.byom_host_keys_secret,
            adaptor_image,
        ] {
            assert!(HELPERS.contains(&format!("default \"{name}\"")), "{name}");
        }
        for name in [&format!("deploy/{NAME}"), &format!("job/{}", install::DRAIN_JOB)] {
            assert!(NOTES.contains(name), "{name}");
        }
        let sample = install::samples::peer_pod_config(&options).unwrap();
        let labels = sample["spec"]["nodeSelector"].as_object().unwrap();
        let labels: Vec<_> =
            labels.iter().map(|(name, value)| format!("{name}={}\n", value.as_str().unwrap())).collect();
        let told = labels.iter().all(|label| NOTES.contains(&format!("kubectl label node NODE {label}")));
        assert!(told && labels.len() == 1, "{labels:?}");
    }
}
