//! Where settings and credentials come from.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;

/// Where credentials come from.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Secrets {
    /// `create` makes the Secrets from these values, `reference` takes those named below.
    mode: SecretsMode,
    /// The Secret with the credentials, where the mode is `reference`. Empty is `peer-pods-secret`.
    existing_secret_name: String,
    /// The Secret with the key for ssh, where the mode is `reference`. Empty is `ssh-key-secret`.
    existing_ssh_key_secret_name: String,
    /// The Secret with certificates for the connection to pod VMs, where the mode is `reference`. Empty is `certs-for-tls`.
    existing_tls_secret_name: String,
    /// The Secret with the host keys that byom trusts, where the mode is `reference`. Empty is `byom-ssh-host-keys`. Where it is named,
    /// `SSH_HOST_KEY_ALLOWLIST_DIR` leads to it unless it is set.
    existing_byom_host_key_secret_name: String,
    /// Certificates for the connection to pod VMs, where the mode is `create`; `CACERT_FILE`, `CERT_FILE` and `CERT_KEY` name their files in
    /// `/etc/certificates`: `ca.crt`, `client.crt` and `client.key`.
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
    /// A ConfigMap that is there already, in the place of `providerConfigs`. Empty is `peer-pods-cm`.
    existing_config_map_name: String,
}

/// What TLS connections must be like.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct TlsProfile {
    /// The oldest version: `VersionTLS12` or `VersionTLS13`. Empty is TLS 1.2.
    #[schemars(schema_with = "tls_version")]
    min_version: String,
    /// Ciphers of TLS 1.2 by Go's names, with commas between. Empty is all that are safe.
    cipher_suites: String,
}

pub(super) fn tls_version(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["", "VersionTLS12", "VersionTLS13"] })
}
