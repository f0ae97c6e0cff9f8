//! What is told of the admission of Pods, and when time alone will change it *(no client)*.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use kube::ResourceExt;

use super::super::{
    apply::Found,
    build::{Inputs, policy},
    handover,
    verdict::{Finding, Reason},
};
use crate::{
    api::v1alpha1::{FIELD_MANAGER, PeerPodConfig},
    webhook::tls::{TlsError, TlsOptions},
};

/// How long API servers may take until they do what a new policy or registration says. They look for new policies every
/// second.
pub(super) const TAKEN_UP: Duration = Duration::from_secs(5);

/// Whether its admission is as it asks for now.
pub(super) fn is_ready(config: &PeerPodConfig) -> bool {
    handover::admission_ready(config).is_some_and(|condition| condition.status == "True")
}

/// How far the admission of an older configuration is, which is for this one's runtime class, too.
pub(super) fn shared_state(older: &PeerPodConfig) -> Finding {
    let name = older.name_any();
    if is_ready(older) {
        let message = format!("the admission of PeerPodConfig {name} is for this runtime class, too");
        Finding::new(Reason::AdmissionShared, message)
    } else {
        let message = format!(
            "the admission of PeerPodConfig {name}, which is for this runtime class, too, is not ready; its status says why"
        );
        Finding::new(Reason::SharedNotReady, message)
    }
}

/// What a configuration asks of the admission that an older one does otherwise.
pub(super) fn at_odds(config: &PeerPodConfig, older: &PeerPodConfig) -> Option<Finding> {
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
            "PeerPodConfig {} decides how Pods of the runtime class {} become peer pods, and has another {}; make them equal, \
             or use another runtimeClassName here",
            older.name_any(),
            own.runtime_class_name,
            fields.join(", ")
        );
        Finding::new(Reason::AdmissionDiffers, message)
    })
}

/// Which setting the webhook cannot use, and what it goes on with.
pub(super) fn tls_refused(config_map: &str, problem: &TlsError, in_force: &TlsOptions) -> Finding {
    let [min_version, ciphers] = in_force.values();
    let or_default = |value: String| if value.is_empty() { "its default".to_owned() } else { value };
    let message = format!(
        "the ConfigMap {config_map} cannot be used by the webhook: {problem}; until it is mended TLS_MIN_VERSION is {}, and \
         TLS_CIPHER_SUITES {}",
        or_default(min_version),
        or_default(ciphers)
    );
    Finding::new(Reason::TlsRefused, message)
}

/// Whether the policy is in force, and what it does not do.
pub(super) fn policy_state(inputs: &Inputs<'_>, found: &Found, now: Timestamp) -> Finding {
    if !found.objects.values().all(|object| is_taken_up(written(object), now)) {
        return Finding::new(Reason::PolicyStarting, "the policy was made, or changed, a moment ago");
    }
    let gaps = policy::unsupported(&inputs.config.spec);
    let gaps = gaps.iter().map(|gap| format!("the webhook {}, the policy {}", gap.webhook, gap.policy));
    let message = gaps.fold("the policy is in force".to_owned(), |message, gap| format!("{message}; {gap}"));
    Finding::new(Reason::PolicyInForce, message)
}

/// Whether time will tell, or what others tell of themselves: what leads Pods to an admission was written a moment ago, or
/// waits for another one's to go. All else that an admission waits for is watched, but for the dates of somebody else's
/// certificate.
pub(super) fn is_settling(found: &Found, now: Timestamp) -> bool {
    let mut entrances = found.objects.values().filter(|object| object.namespace().is_none()).peekable();
    entrances.peek().is_none() || entrances.any(|object| !is_taken_up(written(object), now))
}

/// Whether API servers have heard of what was done then.
pub(super) fn is_taken_up(done: Option<Timestamp>, now: Timestamp) -> bool {
    done.is_some_and(|done| now.duration_since(done).unsigned_abs() >= TAKEN_UP)
}

/// When an object was made.
pub(super) fn made(object: &impl ResourceExt) -> Option<Timestamp> {
    object.creation_timestamp().map(|time| time.0)
}

/// When this operator made or changed an object.
pub(super) fn written(object: &impl ResourceExt) -> Option<Timestamp> {
    let own = object.managed_fields().iter().filter(|it| it.manager.as_deref() == Some(FIELD_MANAGER));
    own.filter_map(|it| Some(it.time.as_ref()?.0)).chain(made(object)).max()
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
    fn it_is_looked_at_soon_while_time_alone_helps() {
        let found = |made: &[(&str, Option<&str>, i64)]| {
            let objects = made.iter().map(|&(name, namespace, second)| {
                let object = serde_json::from_value(json!({
                    "metadata": { "name": name, "namespace": namespace,
                        "creationTimestamp": Timestamp::from_second(second).unwrap() },
                }));
                ((String::new(), name.to_owned()), object.unwrap())
            });
            Found { objects: objects.collect(), foreign: Vec::new() }
        };
        let settles = |made: &[(&str, Option<&str>, i64)]| {
            is_settling(&found(made), Timestamp::from_second(1000).unwrap())
        };
        let server = ("server", Some("operator"), 999);
        // It waits for another one's admission to go.
        assert!(settles(&[server]));
        assert!(settles(&[server, ("registration", None, 996)]));
        assert!(settles(&[("policy", None, 900), ("binding", None, 996)]));
        // Its Pods are watched.
        assert!(!settles(&[server, ("registration", None, 995)]));
    }

    #[test]
    fn what_the_operator_changed_is_new_again_and_what_others_did_to_it_is_not() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let written_at = |fields: Value| {
            let policy: kube::api::DynamicObject = serde_json::from_value(json!({
                "metadata": { "name": "policy", "creationTimestamp": at(900), "managedFields": fields },
            }))
            .unwrap();
            written(&policy)
        };
        let entry = |manager: &str, second| json!({ "manager": manager, "time": at(second) });
        assert_eq!(written_at(json!([])), Some(at(900)));
        assert_eq!(written_at(json!([entry("kubectl", 990)])), Some(at(900)));
        let both = json!([entry(FIELD_MANAGER, 950), entry("kubectl", 990)]);
        assert_eq!(written_at(both), Some(at(950)));
    }

    #[test]
    fn what_an_older_one_does_otherwise_is_named() {
        let differing = |own: Value, older: Value| {
            at_odds(&config(&own, "True"), &config(&older, "True")).map(|finding| finding.message)
        };
        let same = [json!({ "excludedNamespaces": ["a", "b"] }), json!({ "excludedNamespaces": ["b", "a"] })];
        let [own, older] = same;
        assert_eq!(differing(own, older), None);
        let message = differing(
            json!({ "sizing": "Sum", "excludedNamespaces": ["a"] }),
            json!({ "extendedResource": "example.com/vm", "excludedNamespaces": ["a"] }),
        );
        let message = message.unwrap();
        assert!(message.contains("PeerPodConfig older"), "{message}");
        assert!(message.contains("another admission.extendedResource, admission.sizing;"), "{message}");
    }
}
