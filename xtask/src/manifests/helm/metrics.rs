//! The templates of metrics: the objects that scrape, show and protect them.

use anyhow::Result;
use peerpod_operator::install::{
    Options,
    metrics_rights::{self, WEBHOOK_SUBJECT},
    monitoring,
};
use serde_json::{Value, json};

use super::{
    chart::{CONFIGURES, Template, labelled, merged, tree, with_kind},
    template::Node,
};

/// Whether metrics need TLS and a token with the right to read them.
const SECURE: &str = ".Values.metrics.secure";

/// The same, if there is also a certificate for it.
const CERTIFIED: &str = "and .Values.metrics.secure .Values.metrics.tlsSecretName";

/// The path at which the certificate is mounted.
const FOLDER: &str = "/etc/peerpod-operator/metrics-tls";

/// Stands for the name of the Secret with Prometheus' token.
const TOKEN: &str = "<token-secret>";

/// Makes the operator in this Pod of a Deployment serve secure metrics, if the values say so.
pub(super) fn secure(node: &mut Node, pod: &str) -> Result<()> {
    let in_container = |name: &str| format!("{pod}/containers/0/{name}");
    let plain = |text: &str| Node::Plain(text.into());
    node.add(&in_container("args"), None, plain("--metrics-secure=true"), SECURE)?;
    node.add(&in_container("args"), None, plain(&format!("--metrics-tls-dir={FOLDER}")), CERTIFIED)?;
    let volume = json!({ "name": "metrics-tls", "secret": { "secretName": "", "defaultMode": 0o440 } });
    let mut volume = Node::of(&volume, &[])?;
    volume.set("/secret/secretName", Node::Scalar(".Values.metrics.tlsSecretName | quote".to_owned()))?;
    node.add(&format!("{pod}/volumes"), None, volume, CERTIFIED)?;
    let mount = json!({ "name": "metrics-tls", "mountPath": FOLDER, "readOnly": true });
    node.add(&in_container("volumeMounts"), None, Node::Plain(mount), CERTIFIED)
}

/// The template of an object that these values enable, with their labels.
fn template(object: &Value, values: &str) -> Result<Template> {
    let labels = merged(&[&format!("{values}.labels"), "commonLabels"]);
    Ok((labelled(object, &labels)?, Some(format!(".Values.{values}.enabled"))))
}

/// The objects of the Prometheus operator.
pub(super) fn monitoring(options: &Options) -> Result<Vec<Template>> {
    let mut monitor = template(&monitoring::pod_monitor(options), "metrics.podMonitor")?;
    let secret = monitoring::TOKEN_SECRET;
    let token = format!(".Values.metrics.tokenSecretName | default \"{secret}\" | quote");
    let secure = monitoring::secure_endpoint(TOKEN);
    for (name, value) in secure.as_object().into_iter().flatten().filter(|(name, _)| *name != "port") {
        let value = Node::of(value, &[(TOKEN, &token)])?;
        monitor.0.add("/spec/podMetricsEndpoints/0", Some(name), value, SECURE)?;
    }
    Ok(vec![monitor, template(&monitoring::prometheus_rule(options), "metrics.alerts")?])
}

/// Grafana's dashboard.
pub(super) fn dashboard(options: &Options) -> Result<Vec<Template>> {
    Ok(vec![template(&with_kind(&monitoring::dashboard(options)?)?, "metrics.dashboard")?])
}

/// The rights to check tokens, and those to read metrics.
pub(super) fn rights(options: &Options) -> Result<Vec<Template>> {
    let [reviewer, binding, reader] = metrics_rights::objects(options)?;
    let mut binding = tree(&binding)?;
    binding.only_if(WEBHOOK_SUBJECT, CONFIGURES)?;
    let nodes = [tree(&reviewer)?, binding, tree(&reader)?];
    Ok(nodes.map(|node| (node, Some(SECURE.to_owned()))).into())
}
