//! The conditions about the admission of Pods *(no client)*.

use std::collections::BTreeSet;

use kube::ResourceExt;

use super::super::{
    conditions::{Finding, Reason},
    handover,
    resources::{Inputs, policy},
};
use crate::{
    api::v1alpha1::PeerPodConfig,
    webhook::tls::{TlsError, TlsOptions},
};

/// Whether its admission is ready for its present spec.
pub(super) fn is_ready(config: &PeerPodConfig) -> bool {
    handover::admission_ready(config).is_some_and(|condition| condition.status == "True")
}

/// Whether `AdmissionReady` has this reason for its present spec.
pub(super) fn has_reason(config: &PeerPodConfig, reason: Reason) -> bool {
    handover::admission_ready(config).is_some_and(|condition| condition.reason == reason.as_str())
}

/// The state of an older configuration's admission that this one shares, as both have the same runtime class.
pub(super) fn shared_state(older: &PeerPodConfig) -> Finding {
    let name = older.name_any();
    if is_ready(older) {
        let message = format!("PeerPodConfig {name} provides the admission for this runtime class");
        Finding::new(Reason::AdmissionShared, message)
    } else {
        let message = format!(
            "PeerPodConfig {name} provides the admission for this runtime class, but is not ready; its \
             status says why"
        );
        Finding::new(Reason::SharedNotReady, message)
    }
}

/// The fields of the admission in which a configuration differs from the older one that provides it.
pub(super) fn differing(config: &PeerPodConfig, older: &PeerPodConfig) -> Option<Finding> {
    let excluded = |config: &PeerPodConfig| {
        config.spec.admission.excluded_namespaces.iter().cloned().collect::<BTreeSet<_>>()
    };
    let (own, others) = (&config.spec.admission, &older.spec.admission);
    let fields: Vec<_> = [
        ("extendedResource", own.extended_resource != others.extended_resource),
        ("sizing", own.sizing != others.sizing),
        ("excludedNamespaces", excluded(config) != excluded(older)),
    ]
    .into_iter()
    .filter(|&(_, differs)| differs)
    .map(|(field, _)| format!("admission.{field}"))
    .collect();
    (!fields.is_empty()).then(|| {
        let message = format!(
            "PeerPodConfig {} provides the admission for the runtime class {}, and differs in {}; use the \
             same values, or another runtimeClassName here",
            older.name_any(),
            own.runtime_class_name,
            fields.join(", ")
        );
        Finding::new(Reason::AdmissionDiffers, message)
    })
}

/// The setting that the webhook cannot use, and the values that stay in force.
pub(super) fn tls_refused(config_map: &str, problem: &TlsError, in_force: &TlsOptions) -> Finding {
    let [min_version, ciphers] = in_force.values();
    let or_default = |value: String| if value.is_empty() { "its default".to_owned() } else { value };
    let message = format!(
        "the webhook cannot use the ConfigMap {config_map}: {problem}; until it is corrected, \
         TLS_MIN_VERSION is {}, and TLS_CIPHER_SUITES is {}",
        or_default(min_version),
        or_default(ciphers)
    );
    Finding::new(Reason::TlsRefused, message)
}

/// Whether the policy is in force, and what it does not do. `is_settling`: API servers may not apply it yet.
pub(super) fn policy_state(inputs: &Inputs<'_>, is_settling: bool) -> Finding {
    if is_settling {
        return Finding::new(
            Reason::PolicyStarting,
            "the operator created or changed the policy a moment ago",
        );
    }
    let gaps = policy::unsupported(&inputs.config.spec);
    let gaps = gaps.iter().map(|gap| format!("the webhook {}, the policy {}", gap.webhook, gap.policy));
    let message = gaps.fold("the policy is in force".to_owned(), |message, gap| format!("{message}; {gap}"));
    Finding::new(Reason::PolicyInForce, message)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn config(admission: &Value, admission_ready: &str) -> PeerPodConfig {
        serde_json::from_value(json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig",
            "metadata": { "name": "older" },
            "spec": { "admission": admission },
            "status": { "conditions": [{
                "type": "AdmissionReady", "status": admission_ready, "reason": "Any", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }] },
        }))
        .unwrap()
    }

    #[test]
    fn a_shared_admission_is_as_far_as_the_older_one() {
        let state = |ready| shared_state(&config(&json!({}), ready)).reason;
        assert_eq!(state("True"), Reason::AdmissionShared);
        assert_eq!(state("False"), Reason::SharedNotReady);
    }

    #[test]
    fn what_an_older_one_does_otherwise_is_named() {
        let message_of = |own: Value, older: Value| {
            differing(&config(&own, "True"), &config(&older, "True")).map(|finding| finding.message)
        };
        let same = [json!({ "excludedNamespaces": ["a", "b"] }), json!({ "excludedNamespaces": ["b", "a"] })];
        let [own, older] = same;
        assert_eq!(message_of(own, older), None);
        let message = message_of(
            json!({ "sizing": "Sum", "excludedNamespaces": ["a"] }),
            json!({ "extendedResource": "example.com/vm", "excludedNamespaces": ["a"] }),
        );
        let message = message.unwrap();
        assert!(message.contains("PeerPodConfig older"), "{message}");
        assert!(message.contains("differs in admission.extendedResource, admission.sizing;"), "{message}");
    }
}
