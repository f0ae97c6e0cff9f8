//! The Jobs that helm runs before and after an operation.

use anyhow::Result;
use peerpod_operator::install::{self, Options};
use serde_json::{Value, json};

use super::{
    chart::{Template, labelled, priority_class, select_nodes, tree, with_kind},
    template::{Node, define},
};

const DRAIN: &str = ".Values.drain.enabled";

const APPLY: &str = ".Values.peerPodConfig.create";

/// A failed Job stays for its log until it runs again.
const CLEANED: &str = "before-hook-creation,hook-succeeded";

/// The Job that helm waits for before it uninstalls the release.
pub(super) fn drain(options: &Options) -> Result<Template> {
    let mut object = with_kind(&install::drain_job(options))?;
    annotate(&mut object, "pre-delete", 0);
    let mut node = tree(&object)?;
    let arguments = "printf \"--timeout=%s\" .Values.drain.timeout | quote";
    node.add("/spec/template/spec/containers/0/args", None, Node::Scalar(arguments.to_owned()), "true")?;
    let deadline = "include \"peerpod-operator.drainSeconds\" .".to_owned();
    node.add("/spec", Some("activeDeadlineSeconds"), Node::Scalar(deadline), "true")?;
    place(&mut node)?;
    Ok((node, Some(DRAIN.to_owned())))
}

/// The PeerPodConfig, and the Job that applies it. It is no object of the release: helm refuses one beside its new definition, would
/// delete it on a rollback to a revision without it, and could not change it as a hook.
pub(super) fn apply(options: &Options) -> Result<Vec<Template>> {
    let config = install::apply_config_map(CONFIG, options);
    let mut templates = vec![(tree(&with_kind(&config)?)?, Some(APPLY.to_owned()))];
    let rights = install::APPLY_RIGHTS.objects(options)?;
    let mut hooks: Vec<_> = rights.into_iter().map(|manifest| (manifest.object, -1)).collect();
    hooks.push((with_kind(&install::apply_job(options))?, 0));
    for (mut object, weight) in hooks {
        annotate(&mut object, "post-install,post-upgrade,post-rollback", weight);
        let mut node = tree(&object)?;
        match object["kind"].as_str() {
            Some("Role") => node.set("/rules/0/resourceNames/0", name())?,
            Some("Job") => place(&mut node)?,
            _ => {}
        }
        templates.push((node, Some(APPLY.to_owned())));
    }
    Ok(templates)
}

/// Stands for the text of the PeerPodConfig.
pub(super) const CONFIG: &str = "<peerpodconfig>";

/// Its name, which may look like a number.
fn name() -> Node {
    Node::Scalar(".Values.peerPodConfig.name | quote".to_owned())
}

/// The template that renders it.
pub(super) fn config(options: &Options) -> Result<String> {
    // Argo CD may track by this label, and would prune an object that has it and is not part of the source.
    let labels = "omit (.Values.commonLabels | default dict) \"app.kubernetes.io/instance\"";
    let mut node = labelled(&install::samples::peer_pod_config(options)?, labels)?;
    node.set("/metadata/name", name())?;
    node.set("/spec", Node::Yaml("include \"peerpod-operator.peerPodConfigSpec\" .".to_owned()))?;
    define("peerpod-operator.peerPodConfig", &node)
}

/// Makes the object a hook for these events.
fn annotate(object: &mut Value, events: &str, weight: i32) {
    object["metadata"]["annotations"] = json!({
        "helm.sh/hook": events,
        "helm.sh/hook-weight": weight.to_string(),
        "helm.sh/hook-delete-policy": CLEANED,
    });
}

/// Makes the Pods of a Job run where and as the operator does, with the labels that a user may require on every Pod.
fn place(job: &mut Node) -> Result<()> {
    const POD: &str = "/spec/template/spec";
    job.extend("/spec/template/metadata/labels", ".Values.commonLabels")?;
    let container = |key: &str| format!("{POD}/containers/0/{key}");
    let pull_policy = ".Values.operator.image.pullPolicy".to_owned();
    job.set(&container("imagePullPolicy"), Node::Scalar(pull_policy))?;
    let resources = "toYaml .Values.operator.resources".to_owned();
    job.set(&container("resources"), Node::Yaml(resources))?;
    for key in ["imagePullSecrets", "tolerations"] {
        job.optional(POD, key, &format!(".Values.operator.{key}"))?;
    }
    select_nodes(job, POD)?;
    // Affinity between Pods does not apply to the Job. It might find every node taken by operators.
    let affinity = Node::Yaml("toYaml (pick .Values.operator.affinity \"nodeAffinity\")".to_owned());
    job.add(POD, Some("affinity"), affinity, "(.Values.operator.affinity | default dict).nodeAffinity")?;
    priority_class(job, POD)
}
