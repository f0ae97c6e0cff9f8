//! The webhook's certificate, if cert-manager creates it. Its kinds are not Kubernetes' own.

use serde_json::{Value, json};

use super::{Component, Options};
use crate::{
    api::v1alpha1::{PeerPodConfig, PeerPodConfigSpec},
    peerpodconfig::resources::Names,
    webhook::certificates::rotation::SECRET,
};

const NAME: &str = "peerpod-webhook";

/// The authority, and the Secret with its key.
const AUTHORITY: &str = "peerpod-webhook-ca";

/// What signs the authority.
const SELF_SIGNED: &str = "peerpod-webhook-self-signed";

/// An authority of its own, and the certificate for the webhook of the PeerPodConfig of this name. The webhook uses the Secret as it
/// finds it, and keeps the API server's trust to the Secret's `ca.crt`. A self-signed certificate would be its own `ca.crt`: API
/// servers would not trust a renewed one at first.
pub fn certificate(options: &Options, config: &str) -> [Value; 4] {
    let metadata = |name| Component::Webhook.namespaced(name, options);
    let service = Names::of(&PeerPodConfig::new(config, PeerPodConfigSpec::default())).webhook;
    let namespace = &options.namespace;
    let names = [format!("{service}.{namespace}.svc"), format!("{service}.{namespace}.svc.cluster.local")];
    let issuer = |name, kind: Value| json!({ "apiVersion": "cert-manager.io/v1", "kind": "Issuer", "metadata": metadata(name), "spec": kind });
    let certificate = |name, spec: Value| json!({ "apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": metadata(name), "spec": spec });
    let key = |rotation: &str| json!({ "algorithm": "ECDSA", "rotationPolicy": rotation });
    let authority = json!({
        "secretName": AUTHORITY,
        "isCA": true,
        "commonName": AUTHORITY,
        // Ten years.
        "duration": "87600h",
        "issuerRef": { "kind": "Issuer", "name": SELF_SIGNED },
        // What a renewed authority signs is trusted by the former one.
        "privateKey": key("Never"),
    });
    let serving = json!({
        "secretName": SECRET,
        "dnsNames": names,
        "issuerRef": { "kind": "Issuer", "name": NAME },
        "privateKey": key("Always"),
    });
    [
        issuer(SELF_SIGNED, json!({ "selfSigned": {} })),
        certificate(AUTHORITY, authority),
        issuer(NAME, json!({ "ca": { "secretName": AUTHORITY } })),
        certificate(NAME, serving),
    ]
}
