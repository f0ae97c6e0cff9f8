//! Each provider's settings and credentials.

use peerpod_operator::{
    provider::{CLOUDS, Cloud, cloud::AdaptorSecret},
    settings::{Common, Kind},
};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use super::Object;

/// Every name that a provider can have in values.
pub(in super::super) fn provider_names() -> impl Iterator<Item = (&'static Cloud, &'static str)> {
    let own = CLOUDS.into_iter().map(|provider| (provider, provider.name()));
    own.chain(CLOUDS.into_iter().filter_map(|provider| Some((provider, provider.chart_alias?))))
}

pub(super) fn provider(_: &mut SchemaGenerator) -> Schema {
    let names: Vec<_> = [""].into_iter().chain(provider_names().map(|(_, name)| name)).collect();
    json_schema!({ "type": "string", "enum": names })
}

/// The largest number that helm keeps exactly. It reads numbers as floating-point ones, and would change digits of longer ones silently.
const EXACT: i64 = (1 << 53) - 1;

/// A setting may be written without quotes, and with nothing after its colon.
fn setting() -> Value {
    json!({ "type": ["string", "number", "boolean", "null"], "minimum": -EXACT, "maximum": EXACT })
}

/// A credential or a version is text: YAML reads 0815 as 815, 1.50 as 1.5, and `yes` as true.
fn text() -> Value {
    json!({ "type": ["string", "null"] })
}

/// What becomes the Secret of the ssh key. (A key of values has no dot.)
const SSH_FILES: [&str; 5] = ["id_rsa", "id_rsa_pub", "id_ecdsa", "id_ed25519", "known_hosts"];

/// Host keys, by the names of their files: keys of a Secret, with the ending that cloud-api-adaptor and the operator read.
/// (Of a name that `propertyNames` forbids, helm tells the place of some other value.)
fn host_keys() -> Value {
    json!({
        "type": ["object", "null"],
        "description": "The host keys that are trusted, as files in OpenSSH's format, by names `*.pub`. They become the \
                        Secret byom-ssh-host-keys.",
        "patternProperties": { r"^[-._a-zA-Z0-9]{1,249}\.pub$": { "type": ["string", "null"] } },
        "additionalProperties": false,
    })
}

fn by_provider(
    further: impl Fn(&Cloud) -> Object,
    holds: impl Fn(Kind) -> bool,
    value: fn() -> Value,
) -> Schema {
    let providers: Object = provider_names()
        .map(|(provider, name)| {
            let keys = provider.keys().iter().chain(Common::KEYS).filter(|key| holds(key.kind));
            let described = keys.map(|key| {
                let mut schema = if key.name.ends_with("_VERSION") { text() } else { value() };
                schema["description"] = key.doc.split_whitespace().collect::<Vec<_>>().join(" ").into();
                (key.name.to_owned(), schema)
            });
            let schema = json!({
                "type": ["object", "null"],
                "properties": described.chain(further(provider)).collect::<Object>(),
                "propertyNames": { "pattern": "^[A-Za-z_][A-Za-z0-9_]*$" },
                "additionalProperties": value(),
            });
            (name.to_owned(), schema)
        })
        .collect();
    json_schema!({ "type": "object", "properties": providers, "additionalProperties": false })
}

pub(super) fn provider_configs(_: &mut SchemaGenerator) -> Schema {
    by_provider(|_| Object::new(), |kind| kind != Kind::Secret, setting)
}

pub(super) fn provider_secrets(_: &mut SchemaGenerator) -> Schema {
    let further = |provider: &Cloud| {
        let mut further: Object = SSH_FILES.map(|name| (name.to_owned(), text())).into_iter().collect();
        if provider.mounts(AdaptorSecret::HostKeys) {
            further.insert("hostKeys".to_owned(), host_keys());
        }
        further
    };
    by_provider(further, |kind| kind == Kind::Secret, text)
}
