//! The typed objects of an installation. `cargo xtask manifests` prints them and decides where they go.

pub mod adaptor;
mod certificate;
mod deployment;
pub mod evictions;
pub mod guard;
mod jobs;
pub mod limit;
mod metadata;
pub mod metrics_rights;
pub mod mirror;
pub mod monitoring;
mod options;
mod policies;
mod rbac;
pub mod removal;
pub mod samples;
mod services;

use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::CustomResourceExt;
use operator_kit::crd;
use serde_json::{Error, Value, to_value};

use crate::{
    api::v1alpha1::{PeerPod, PeerPodConfig},
    names::OPERATOR,
};

use metadata::kept_by_gitops;

pub use certificate::certificate;
pub use deployment::{NODE_LABEL, deployment};
pub use jobs::{APPLY_JOB, APPLY_RIGHTS, DRAIN_JOB, apply_config_map, apply_job, drain_job};
pub use metadata::{Component, KEPT_BY_GITOPS};
pub use options::Options;
pub use rbac::{PEERPODCONFIG_ROLE, Rights, WEBHOOK_RIGHTS, cloud_rights, peerpodconfig_rights, rights};
pub use services::{METRICS_SERVICE, disruption_budget, metrics_service, network_policies};

/// The name of the operator's own objects.
pub const NAME: &str = OPERATOR;

/// An object to be printed.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// The name of the file that it is in, with what belongs to it: the resource's plural name for a custom resource
    /// definition.
    pub file: &'static str,
    /// The object.
    pub object: Value,
}

/// The `PeerPod` custom resource definition. Fails only if a type could not be written as JSON.
pub fn peerpod_crd() -> Result<Value, Error> {
    definition::<PeerPod>()
}

/// The `PeerPodConfig` custom resource definition. Fails only if a type could not be written as JSON.
pub fn peerpodconfig_crd() -> Result<Value, Error> {
    definition::<PeerPodConfig>()
}

fn definition<K: CustomResourceExt>() -> Result<Value, Error> {
    let mut crd = crd::definition::<K>()?;
    crd["metadata"]["labels"] = to_value(Component::Operator.labels())?;
    crd["metadata"]["annotations"] = to_value(kept_by_gitops())?;
    // Objects without `spec` that were created under another schema must stay writable, or their finalizers are never removed.
    // Also, users need not see every default in them.
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

/// Everything that is installed, in the order in which it must exist. `kubectl delete` follows the same order. So the objects
/// that protect the others come last, and are deleted last.
pub fn objects(options: &Options) -> Result<Vec<Manifest>, Error> {
    let operator = |object| Manifest { file: "operator", object };
    let mut objects = vec![
        Manifest { file: "peerpods", object: peerpod_crd()? },
        Manifest { file: "peerpodconfigs", object: peerpodconfig_crd()? },
        Manifest { file: "namespace", object: to_value(namespace(options))? },
        Manifest { file: "rights", object: to_value(service_account(options))? },
    ];
    // In an upgrade from one role for everything, the further ones come before the first one shrinks.
    let own = [peerpodconfig_rights(options)?, rights(options)?].into_iter().flatten();
    objects.extend(own.map(|object| Manifest { file: "rights", object }));
    objects.extend(adaptor::RIGHTS.objects(options)?);
    objects.extend(WEBHOOK_RIGHTS.objects(options)?);
    objects.extend(guard::roles(options)?);
    objects.push(operator(to_value(deployment(options))?));
    objects.push(operator(to_value(metrics_service(options))?));
    if options.disruption_budget {
        objects.push(operator(to_value(disruption_budget(options))?));
    }
    if options.network_policies {
        for policy in network_policies(options) {
            objects.push(Manifest { file: "network-policies", object: to_value(policy)? });
        }
    }
    objects.extend(guard::objects()?);
    for object in [to_value(limit::policy())?, to_value(limit::binding(options))?] {
        objects.push(Manifest { file: "limit", object });
    }
    for object in [to_value(mirror::policy())?, to_value(mirror::binding())?] {
        objects.push(Manifest { file: "mirror", object });
    }
    let removal = |object| Manifest { file: "removal", object };
    objects.push(removal(to_value(removal::policy(options))?));
    objects.push(removal(to_value(removal::binding())?));
    objects.push(removal(to_value(removal::operator_policy(options))?));
    objects.push(removal(to_value(removal::operator_binding(options))?));
    Ok(objects)
}

/// The namespace of everything that is installed. cloud-api-adaptor's Pods in it are privileged.
pub fn namespace(options: &Options) -> Namespace {
    let mut metadata = Component::Operator.cluster_scoped(&options.namespace);
    metadata.annotations = Some(kept_by_gitops());
    let labels = metadata.labels.get_or_insert_default();
    labels.insert("pod-security.kubernetes.io/enforce".to_owned(), "privileged".to_owned());
    Namespace { metadata, ..Namespace::default() }
}

/// The identity that the operator runs under.
pub fn service_account(options: &Options) -> ServiceAccount {
    ServiceAccount { metadata: Component::Operator.namespaced(NAME, options), ..ServiceAccount::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gitops_keeps_what_the_removal_policies_protect_and_the_policies() {
        let kept = |object: &&Value| object["metadata"]["annotations"] == to_value(kept_by_gitops()).unwrap();
        let objects = objects(&Options::default()).unwrap();
        let objects: Vec<_> = objects.iter().map(|manifest| &manifest.object).filter(kept).collect();
        let names = objects.iter().map(|object| {
            let (kind, name) = (&object["kind"], &object["metadata"]["name"]);
            format!("{} {}", kind.as_str().unwrap(), name.as_str().unwrap())
        });
        let expected = [
            "CustomResourceDefinition peerpods.confidentialcontainers.org",
            "CustomResourceDefinition peerpodconfigs.confidentialcontainers.org",
            "Namespace confidential-containers-system",
            "ValidatingAdmissionPolicy peerpod-removal",
            "ValidatingAdmissionPolicyBinding peerpod-removal",
            "ValidatingAdmissionPolicy peerpod-operator-removal",
            "ValidatingAdmissionPolicyBinding peerpod-operator-removal",
        ];
        assert_eq!(names.collect::<Vec<_>>(), expected);
    }
}
