//! A chart with the objects of cloud-api-adaptor's own charts that this operator meets: with their names, labels, rights and
//! finalizers, and without the programs of their Pods.

use std::{fs, path::Path};

use anyhow::Result;
use serde_json::{Value, json};

/// The Pods that hold the lease and those of the webhook have the same label. Their names have different prefixes.
const REAPER: &str = "peerpodctrl-controller-manager";
const WEBHOOK: &str = "peer-pods-webhook-controller-manager";

/// The expressions that helm replaces.
const NAMESPACE: &str = "{{ .Release.Namespace }}";

/// Writes the chart into an existing folder. Its values `resourceCtrl.enabled` and `webhook.enabled` are those of that chart.
pub fn write(folder: &Path, libvirt_uri: &str) -> Result<()> {
    for name in ["crds", "templates"] {
        fs::create_dir(folder.join(name))?;
    }
    let chart = json!({ "apiVersion": "v2", "name": "peerpods", "version": "0.2.0" });
    let values = json!({ "resourceCtrl": { "enabled": true }, "webhook": { "enabled": true } });
    fs::write(folder.join("Chart.yaml"), chart.to_string())?;
    fs::write(folder.join("values.yaml"), values.to_string())?;
    fs::write(folder.join("crds/peerpods.yaml"), definition().to_string())?;
    for (file, condition, objects) in [
        ("adaptor", "true", adaptor(libvirt_uri)),
        ("reaper", ".Values.resourceCtrl.enabled", reaper()),
        ("webhook", ".Values.webhook.enabled", webhook()),
    ] {
        let documents: Vec<_> = objects.iter().map(Value::to_string).collect();
        let template =
            format!("{{{{- if {condition} }}}}\n---\n{}\n{{{{- end }}}}\n", documents.join("\n---\n"));
        fs::write(folder.join(format!("templates/{file}.yaml")), template)?;
    }
    Ok(())
}

/// The original definition of PeerPods: all fields optional, no validation, and a status that no program writes.
fn definition() -> Value {
    let text = json!({ "type": "string" });
    let properties = json!({
        "apiVersion": text,
        "kind": text,
        "metadata": { "type": "object" },
        "spec": { "type": "object", "properties": { "cloudProvider": text, "instanceID": text } },
        "status": { "type": "object", "properties": { "cleand": { "type": "boolean" } } },
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "peerpods.confidentialcontainers.org",
            "annotations": { "controller-gen.kubebuilder.io/version": "v0.14.0" },
        },
        "spec": {
            "group": "confidentialcontainers.org",
            "scope": "Namespaced",
            "names": {
                "kind": "PeerPod", "listKind": "PeerPodList", "plural": "peerpods", "singular": "peerpod",
            },
            "versions": [{
                "name": "v1alpha1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "properties": properties } },
                "subresources": { "status": {} },
            }],
        },
    })
}

fn object(api_version: &str, kind: &str, name: &str, further: Value) -> Value {
    let mut object = further;
    object["apiVersion"] = api_version.into();
    object["kind"] = kind.into();
    object["metadata"]["name"] = name.into();
    let cluster_scoped = ["ClusterRole", "ClusterRoleBinding", "MutatingWebhookConfiguration"];
    if !cluster_scoped.contains(&kind) {
        object["metadata"]["namespace"] = NAMESPACE.into();
    }
    object
}

/// A role of this kind and its binding.
fn rights(kind: &str, name: &str, account: &str, rules: &Value) -> [Value; 2] {
    const GROUP: &str = "rbac.authorization.k8s.io";
    let version = format!("{GROUP}/v1");
    let binding = json!({
        "roleRef": { "apiGroup": GROUP, "kind": kind, "name": name },
        "subjects": [{ "kind": "ServiceAccount", "name": account, "namespace": NAMESPACE }],
    });
    [
        object(&version, kind, name, json!({ "rules": rules })),
        object(&version, &format!("{kind}Binding"), name, binding),
    ]
}

/// cloud-api-adaptor itself.
fn adaptor(libvirt_uri: &str) -> Vec<Value> {
    const NAME: &str = "cloud-api-adaptor";
    let label = json!({ "app": NAME });
    let daemon_set = json!({
        "metadata": { "labels": label },
        "spec": {
            "selector": { "matchLabels": label },
            "template": {
                "metadata": { "labels": label },
                "spec": {
                    "serviceAccountName": NAME,
                    "hostNetwork": true,
                    "nodeSelector": { "node.kubernetes.io/worker": "" },
                    "containers": [{
                        "name": "cloud-api-adaptor-con",
                        "image": "quay.io/confidential-containers/cloud-api-adaptor:latest",
                        "command": ["/usr/local/bin/entrypoint.sh"],
                    }],
                },
            },
        },
    });
    let settings = json!({ "CLOUD_PROVIDER": "libvirt", "LIBVIRT_URI": libvirt_uri });
    let rules = json!([{
        "apiGroups": ["confidentialcontainers.org"], "resources": ["peerpods"],
        "verbs": ["create", "patch", "update"],
    }]);
    let mut objects = vec![
        object("v1", "ServiceAccount", NAME, json!({})),
        object("v1", "ConfigMap", "peer-pods-cm", json!({ "data": settings })),
        object("v1", "Secret", "peer-pods-secret", json!({ "type": "Opaque" })),
        object("apps/v1", "DaemonSet", "cloud-api-adaptor-daemonset", daemon_set),
    ];
    objects.extend(rights("ClusterRole", "peerpod-editor", NAME, &rules));
    objects
}

/// A Deployment of a controller.
fn controller(name: &str, image: &str, arguments: &Value) -> Value {
    let label = json!({ "control-plane": "controller-manager" });
    let pod = json!({
        "serviceAccountName": name,
        "containers": [{ "name": "manager", "image": image, "command": ["/manager"], "args": arguments }],
    });
    let spec = json!({
        "selector": { "matchLabels": label },
        "template": { "metadata": { "labels": label }, "spec": pod },
    });
    object("apps/v1", "Deployment", name, json!({ "metadata": { "labels": label }, "spec": spec }))
}

/// The controller that deletes VMs.
fn reaper() -> Vec<Value> {
    let verbs = json!(["create", "delete", "get", "list", "patch", "update", "watch"]);
    let peerpods = json!([{
        "apiGroups": ["confidentialcontainers.org"], "resources": ["peerpods"], "verbs": verbs,
    }]);
    let leases = json!([{ "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": verbs }]);
    let mut objects = vec![
        object("v1", "ServiceAccount", REAPER, json!({})),
        controller(REAPER, "ghcr.io/confidential-containers/peerpod-ctrl:latest", &json!(["--leader-elect"])),
    ];
    objects.extend(rights("ClusterRole", "peerpodctrl-manager-role", REAPER, &peerpods));
    objects.extend(rights("Role", "peerpodctrl-leader-election-role", REAPER, &leases));
    objects
}

/// The webhook. The objects for cert-manager are hooks, which helm never deletes by itself.
fn webhook() -> Vec<Value> {
    const SERVICE: &str = "peer-pods-webhook-webhook-service";
    const ISSUER: &str = "peer-pods-webhook-selfsigned-issuer";
    const CERTIFICATE: &str = "peer-pods-webhook-serving-cert";
    const CERT_MANAGER: &str = "cert-manager.io/v1";
    let service = json!({ "spec": {
        "ports": [{ "name": "webhook", "port": 443, "targetPort": 9443 }],
        "selector": { "control-plane": "controller-manager" },
    } });
    let registration = json!({
        "metadata": { "annotations": { "cert-manager.io/inject-ca-from": format!("{NAMESPACE}/{CERTIFICATE}") } },
        "webhooks": [{
            "name": "mwebhook.peerpods.io",
            "admissionReviewVersions": ["v1"],
            "clientConfig": { "service": { "name": SERVICE, "namespace": NAMESPACE, "path": "/mutate-v1-pod" } },
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "reinvocationPolicy": "IfNeeded",
            "namespaceSelector": { "matchExpressions": [{
                "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [NAMESPACE, "kube-system"],
            }] },
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"],
                "scope": "Namespaced",
            }],
        }],
    });
    let hook = json!({ "annotations": { "helm.sh/hook": "post-install,post-upgrade" } });
    let certificate = json!({ "metadata": hook, "spec": {
        "dnsNames": [format!("{SERVICE}.{NAMESPACE}.svc")],
        "issuerRef": { "kind": "Issuer", "name": ISSUER },
        "secretName": "webhook-server-cert",
    } });
    vec![
        object("v1", "ServiceAccount", WEBHOOK, json!({})),
        controller(
            WEBHOOK,
            "quay.io/confidential-containers/peer-pods-webhook:latest",
            &json!(["--leader-elect", "--health-probe-bind-address=:8081"]),
        ),
        object("v1", "Service", SERVICE, service),
        object(
            "admissionregistration.k8s.io/v1",
            "MutatingWebhookConfiguration",
            "peer-pods-webhook-mutating-webhook-configuration",
            registration,
        ),
        object(CERT_MANAGER, "Issuer", ISSUER, json!({ "metadata": hook, "spec": { "selfSigned": {} } })),
        object(CERT_MANAGER, "Certificate", CERTIFICATE, certificate),
    ]
}

/// The definitions of cert-manager's kinds, which that chart needs.
pub fn cert_manager() -> [Value; 2] {
    [("Issuer", "issuers"), ("Certificate", "certificates")].map(|(kind, plural)| {
        let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{plural}.cert-manager.io") },
            "spec": {
                "group": "cert-manager.io", "scope": "Namespaced", "names": { "kind": kind, "plural": plural },
                "versions": [{
                    "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema },
                }],
            },
        })
    })
}
