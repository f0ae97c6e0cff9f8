//! The typed objects of an installation. Whoever prints them (`cargo xtask manifests`) decides where they go.

pub mod adaptor;
mod deployment;
pub mod guard;
mod rbac;
pub mod rights;
pub mod webhook_rights;

use k8s_openapi::{
    api::core::v1::{Namespace, ServiceAccount},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{CustomResourceExt, api::ObjectMeta};
use serde_json::{Error, Value};

use crate::{
    NAMESPACE,
    api::v1alpha1::{PeerPod, PeerPodConfig},
};

pub use deployment::{CONFIG_MAP, DEFAULT_IMAGE, SECRET, SSH_KEY_SECRET, deployment};
pub use rbac::{cluster_role, cluster_role_binding, role, role_binding};

/// The name of the operator's own objects.
pub const NAME: &str = "peerpod-operator";

/// An object to be printed, with the name of the file that holds it alone.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// Its kind or whose rights it gives, or the resource's plural name for a custom resource definition.
    pub file: &'static str,
    /// The object.
    pub object: Value,
}

/// The `PeerPod` custom resource definition. Fails only if a type could not be written as JSON.
pub fn peerpod_crd() -> Result<Value, Error> {
    crd(&PeerPod::crd())
}

/// The `PeerPodConfig` custom resource definition. Fails only if a type could not be written as JSON.
pub fn peerpodconfig_crd() -> Result<Value, Error> {
    crd(&PeerPodConfig::crd())
}

fn crd(definition: &CustomResourceDefinition) -> Result<Value, Error> {
    let mut crd = serde_json::to_value(definition)?;
    adapt(&mut crd);
    // Objects without `spec` that were made under another schema must stay writable, or their finalizers never go; and
    // nobody needs to see every default in them.
    for version in crd["spec"]["versions"].as_array_mut().into_iter().flatten() {
        let schema = &mut version["schema"]["openAPIV3Schema"];
        for (object, field) in
            [("", "required"), ("/properties/spec", "default"), ("/properties/status", "default")]
        {
            if let Some(Value::Object(fields)) = schema.pointer_mut(object) {
                fields.remove(field);
            }
        }
    }
    Ok(crd)
}

/// Everything that is installed, in the order in which it must exist.
pub fn objects() -> Result<Vec<Manifest>, Error> {
    let mut objects = vec![
        Manifest { file: "peerpods", object: peerpod_crd()? },
        Manifest { file: "peerpodconfigs", object: peerpodconfig_crd()? },
        Manifest { file: "namespace", object: serde_json::to_value(namespace())? },
        Manifest { file: "serviceaccount", object: serde_json::to_value(service_account())? },
        Manifest { file: "clusterrole", object: serde_json::to_value(cluster_role())? },
        Manifest { file: "clusterrolebinding", object: serde_json::to_value(cluster_role_binding())? },
        Manifest { file: "role", object: serde_json::to_value(role())? },
        Manifest { file: "rolebinding", object: serde_json::to_value(role_binding())? },
        Manifest { file: "deployment", object: serde_json::to_value(deployment())? },
    ];
    objects.extend(adaptor::RIGHTS.objects()?);
    objects.extend(webhook_rights::RIGHTS.objects()?);
    objects.extend(guard::objects(guard::Action::default())?);
    Ok(objects)
}

/// The namespace of everything that is installed. cloud-api-adaptor's own Pods there are privileged.
pub fn namespace() -> Namespace {
    let mut metadata = ObjectMeta { namespace: None, ..metadata(NAMESPACE) };
    metadata
        .labels
        .get_or_insert_default()
        .insert("pod-security.kubernetes.io/enforce".into(), "privileged".into());
    Namespace { metadata, ..Namespace::default() }
}

/// The identity that the operator runs under.
pub fn service_account() -> ServiceAccount {
    ServiceAccount { metadata: metadata(NAME), ..ServiceAccount::default() }
}

/// Name, namespace and the labels that every object bears.
fn metadata(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(NAMESPACE.to_owned()),
        labels: Some(
            [
                ("app.kubernetes.io/name", NAME),
                ("app.kubernetes.io/component", "operator"),
                ("app.kubernetes.io/part-of", "peer-pods"),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        ),
        ..ObjectMeta::default()
    }
}

/// Schemas derived from Rust types carry formats such as `uint32` that Kubernetes warns of, and let what is optional be
/// null, which nobody writes.
fn adapt(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if fields.get("format").and_then(Value::as_str).is_some_and(|format| format.starts_with("uint")) {
                fields.remove("format");
            }
            // Comments are broken into lines for the editor, and descriptions are not.
            if let Some(Value::String(text)) = fields.get_mut("description") {
                *text = text.split("\n\n").map(|it| it.replace('\n', " ")).collect::<Vec<_>>().join("\n\n");
            }
            if fields.get("nullable") == Some(&Value::Bool(true)) {
                fields.remove("nullable");
            }
            fields.values_mut().for_each(adapt);
        }
        Value::Array(items) => items.iter_mut().for_each(adapt),
        _ => {}
    }
}
