//! The TLS options: those of cloud-api-adaptor's settings apply to the webhook too.

use k8s_openapi::api::{
    apps::v1::{Deployment, DeploymentSpec},
    core::v1::ConfigMap,
};

use super::CONTAINER;
use crate::settings::tls::{TlsError, TlsOptions};

/// The settings, and the webhook's flags for them.
const SETTINGS: [(&str, &str); 2] =
    [("TLS_MIN_VERSION", "--tls-min-version="), ("TLS_CIPHER_SUITES", "--tls-cipher-suites=")];

/// What the settings ask for.
pub fn tls_of_settings(config_map: &ConfigMap) -> Result<TlsOptions, TlsError> {
    let [min_version, ciphers] = SETTINGS.map(|(key, _)| {
        let value = config_map.data.as_ref().and_then(|data| data.get(key));
        value.map(String::as_str).unwrap_or_default()
    });
    TlsOptions::parse(min_version, ciphers)
}

/// The options of this Deployment's Pods; the default where its flags are invalid.
pub fn tls_of_deployment(deployment: &Deployment) -> TlsOptions {
    let spec: Option<&DeploymentSpec> = (&deployment.spec).into();
    let pod = spec.and_then(|spec| spec.template.spec.as_ref());
    let mut containers = pod.into_iter().flat_map(|pod| &pod.containers);
    let container = containers.find(|container| container.name == CONTAINER);
    let arguments = container.and_then(|container| container.args.as_deref()).unwrap_or_default();
    let [min_version, ciphers] = SETTINGS.map(|(_, flag)| {
        arguments.iter().find_map(|argument| argument.strip_prefix(flag)).unwrap_or_default()
    });
    TlsOptions::parse(min_version, ciphers).unwrap_or_default()
}

/// The webhook's flags for these options, without defaults.
pub(super) fn arguments(tls: &TlsOptions) -> impl Iterator<Item = String> + use<> {
    let values = SETTINGS.into_iter().zip(tls.values());
    values.filter(|(_, value)| !value.is_empty()).map(|((_, flag), value)| format!("{flag}{value}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn deployment(arguments: &[String]) -> Deployment {
        let containers = json!([
            { "name": "injected", "args": ["--tls-min-version=VersionTLS13"] },
            { "name": CONTAINER, "args": arguments },
        ]);
        let template = json!({ "spec": { "containers": containers } });
        serde_json::from_value(json!({ "spec": { "selector": {}, "template": template } })).unwrap()
    }

    #[test]
    fn tls_options_of_the_settings_are_read_back_from_the_deployment() {
        let cipher = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256";
        for (data, expected) in [
            (json!({}), vec![]),
            (json!({ "TLS_MIN_VERSION": "", "TLS_CIPHER_SUITES": "" }), vec![]),
            (json!({ "TLS_MIN_VERSION": "VersionTLS12" }), vec![]),
            (json!({ "TLS_MIN_VERSION": "VersionTLS13" }), vec!["--tls-min-version=VersionTLS13".to_owned()]),
            (json!({ "TLS_CIPHER_SUITES": cipher }), vec![format!("--tls-cipher-suites={cipher}")]),
        ] {
            let config_map = serde_json::from_value(json!({ "data": data })).unwrap();
            let tls = tls_of_settings(&config_map).unwrap();
            let arguments: Vec<_> = arguments(&tls).collect();
            assert_eq!(arguments, expected, "{data}");
            assert_eq!(tls_of_deployment(&deployment(&arguments)), tls, "{data}");
        }
    }

    #[test]
    fn invalid_tls_settings_are_an_error_and_invalid_arguments_are_the_default() {
        let wrong = json!({ "data": { "TLS_MIN_VERSION": "1.3" } });
        let problem = tls_of_settings(&serde_json::from_value(wrong).unwrap()).unwrap_err().to_string();
        assert!(problem.contains("TLS_MIN_VERSION is \"1.3\""), "{problem}");
        for unusable in [deployment(&["--tls-min-version=old".to_owned()]), Deployment::default()] {
            assert_eq!(tls_of_deployment(&unusable), TlsOptions::default());
        }
    }
}
