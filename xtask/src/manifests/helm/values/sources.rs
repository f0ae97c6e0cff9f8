//! Where settings and credentials come from.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;

/// Where credentials come from.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Secrets {
    /// `create`: the chart creates the Secrets from these values. `reference`: you create the Secrets that are named
    /// below. If the release was in the mode `create` before, helm deletes the Secrets that it created: annotate those first with
    /// `helm.sh/resource-policy=keep`, or give yours other names, which replaces the Pods of a PeerPodConfig's cloud-api-adaptor.
    mode: SecretsMode,
    /// The Secret with the credentials, if the mode is `reference`. If empty, `peer-pods-secret`.
    existing_secret_name: String,
    /// The Secret with the ssh key, if the mode is `reference`. If empty, `ssh-key-secret`.
    existing_ssh_key_secret_name: String,
    /// The Secret with certificates for the connection to pod VMs, if the mode is `reference`. If empty, `certs-for-tls`.
    existing_tls_secret_name: String,
    /// The Secret with the host keys that byom trusts, in files `*.pub`, if the mode is `reference`. If empty,
    /// `byom-ssh-host-keys`. Its keys are mounted in `/etc/byom/ssh-host-keys`. If set, that is `SSH_HOST_KEY_ALLOWLIST_DIR` by
    /// default in the ConfigMap that the chart creates. In one of your own, set it: otherwise every host key is trusted.
    existing_byom_host_key_secret_name: String,
    /// Certificates for the connection to pod VMs, if the mode is `create`. `CACERT_FILE`, `CERT_FILE` and `CERT_KEY`
    /// name their files in `/etc/certificates`: `ca.crt`, `client.crt` and `client.key`.
    tls_certs: TlsCerts,
}

#[derive(Clone, Copy, Default, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum SecretsMode {
    #[default]
    Create,
    #[expect(dead_code, reason = "it is in the schema")]
    Reference,
}

/// Certificates in PEM.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TlsCerts {
    /// The authority's certificate.
    ca_cert: String,
    /// The client's certificate.
    client_cert: String,
    /// The client's private key.
    client_key: String,
}

/// Where settings come from.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Settings {
    /// A ConfigMap of your own, instead of `providerConfigs`. If empty, `peer-pods-cm`. If the release created that one before, helm
    /// deletes it: give yours another name, or annotate that one first with `helm.sh/resource-policy=keep`.
    existing_config_map_name: String,
}

/// Requirements for TLS connections.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct TlsProfile {
    /// The lowest version: `VersionTLS12` or `VersionTLS13`. If empty, TLS 1.2.
    #[schemars(schema_with = "tls_version")]
    min_version: String,
    /// Ciphers of TLS 1.2 by Go's names, separated by commas. If empty, all safe ones.
    cipher_suites: String,
}

pub(super) fn tls_version(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["", "VersionTLS12", "VersionTLS13"] })
}
