//! The webhook's certificate, if cert-manager creates it. Its kinds are not Kubernetes' own.

use serde_json::{Value, json};

use super::{Component, Options};
use crate::{
    api::v1alpha1::{PeerPodConfig, PeerPodConfigSpec},
    peerpodconfig::resources::Names,
    webhook::certificates::rotation::SECRET,
};

const NAME: &str = "peerpod-webhook";

/// An issuer of its own and the certificate for the webhook of the PeerPodConfig of this name. The webhook uses the Secret
/// as it finds it, and keeps the API server's trust to the Secret's `ca.crt`.
pub fn certificate(options: &Options, config: &str) -> [Value; 2] {
    let metadata = Component::Webhook.namespaced(NAME, options);
    let service = Names::of(&PeerPodConfig::new(config, PeerPodConfigSpec::default())).webhook;
    let namespace = &options.namespace;
    let names = [format!("{service}.{namespace}.svc"), format!("{service}.{namespace}.svc.cluster.local")];
    [
        json!({
            "apiVersion": "cert-manager.io/v1",
            "kind": "Issuer",
            "metadata": metadata,
            "spec": { "selfSigned": {} },
        }),
        json!({
            "apiVersion": "cert-manager.io/v1",
            "kind": "Certificate",
            "metadata": metadata,
            "spec": {
                "secretName": SECRET,
                "dnsNames": names,
                "issuerRef": { "kind": "Issuer", "name": NAME },
                "privateKey": { "algorithm": "ECDSA", "rotationPolicy": "Always" },
            },
        }),
    ]
}
