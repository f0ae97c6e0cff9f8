//! The part of a pass that is about the admission of Pods.

mod registration;

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{
    admissionregistration::v1::MutatingWebhookConfiguration, apps::v1::Deployment, core::v1::Service,
    policy::v1::PodDisruptionBudget,
};
use kube::{ResourceExt, api::DeleteParams};
use serde_json::to_value;

use super::{
    Context,
    adaptor::UNWATCHED_RESYNC,
    apply::{self, Found, Kind, Wanted},
    build::{AdaptorSettings, Inputs, Names, policy, webhook},
    handover,
    pass::{Part, PassError, name_taken},
    shared::Use,
    verdict::{Finding, Reason},
};
use crate::{
    api::v1alpha1::{AdmissionMode, FIELD_MANAGER, PeerPodConfig},
    runtime::api_call::ApiError,
    webhook::tls::{TlsError, TlsOptions},
};

/// How long API servers may take until they do what a new policy or registration says. They look for new policies every
/// second.
const TAKEN_UP: Duration = Duration::from_secs(5);

impl Context {
    /// The admission of Pods. `tls`: what the settings ask of it, if they are known.
    pub(super) async fn admission(
        &self,
        config: &PeerPodConfig,
        tls: Option<Result<TlsOptions, TlsError>>,
    ) -> Result<Part, PassError> {
        // Those of cloud-api-adaptor shape none of these objects.
        let settings = AdaptorSettings::read(None, None, "");
        let inputs = &self.inputs(config, &settings);
        let admission = &config.spec.admission;
        let served = self.policies.ask(&self.client).await?;
        let kinds = self.admission_kinds(served);
        let handed_over = self.hand_over(config, &kinds).await?;
        if let Some(kept) = handed_over.as_ref().filter(|told| told.reason == Reason::AdmissionKept) {
            // As it is: whatever serves Pods of the former class must not be told of another one.
            return Ok(Part { findings: vec![kept.clone()], again: Some(TAKEN_UP) });
        }
        // One that leaves the admission to others does not care which of them has it.
        let sharing = self.older_with_same_class(config).filter(|_| admission.mode != AdmissionMode::None);
        let is_unsupported = sharing.is_none() && admission.mode == AdmissionMode::Policy && !served;
        let means = match (&sharing, admission.mode) {
            // Nothing takes the place of what there is: without it Pods would run as no peer pods.
            (Some(older), _) if !is_ready(older) => self.standing(config, &kinds).await?,
            (None, AdmissionMode::Policy) if !served => self.standing(config, &kinds).await?,
            (Some(_), _) | (None, AdmissionMode::None) => Means::None,
            (None, AdmissionMode::Policy) => Means::Policy,
            (None, AdmissionMode::Auto) if served => Means::Policy,
            (None, AdmissionMode::Auto | AdmissionMode::Webhook) => Means::Webhook,
        };
        let (tls, refused) =
            if means == Means::Webhook { self.tls(config, tls).await? } else { Default::default() };
        let name = config.name_any();
        let (kinds, former): (Vec<_>, Vec<_>) = kinds.into_iter().partition(|kind| means.consists_of(kind));
        let found = match means {
            Means::None => Found::default(),
            Means::Policy => {
                let [policies, bindings] = policy::resources();
                let wanted = [
                    Wanted::new(policies, to_value(policy::policy(inputs))?),
                    Wanted::new(bindings, to_value(policy::binding(inputs))?),
                ];
                apply::bring(&self.client, &name, &kinds, &wanted).await?
            }
            Means::Webhook => self.bring_webhook(inputs, &tls, &kinds, &former).await?,
        };
        let taken = name_taken(&found);
        let state = match (means, &sharing) {
            _ if taken.is_some() => {
                Some(Finding::new(Reason::AdmissionWithheld, "not all of its objects can be made"))
            }
            (_, Some(older)) => Some(shared_state(older)),
            _ if is_unsupported => {
                let message = "the API server knows no mutating admission policies, which Kubernetes has since 1.36; use the \
                               mode Webhook or Auto";
                Some(Finding::new(Reason::PolicyUnsupported, message))
            }
            (Means::None, None) => None,
            (Means::Policy, None) => Some(policy_state(inputs, &found, Timestamp::now())),
            (Means::Webhook, None) => Some(self.webhook_state(config, &found)),
        };
        let mut part = Part { findings: taken.into_iter().chain(handed_over).collect(), again: None };
        part.findings.extend(sharing.as_deref().and_then(|older| at_odds(config, older)));
        part.findings.extend(refused);
        let takes_over = state.as_ref().is_none_or(|state| state.reason.status());
        part.again = if part.findings.iter().any(|told| told.reason == Reason::AdmissionDropped) {
            // That is told once.
            Some(TAKEN_UP)
        } else if takes_over || is_unsupported {
            None
        } else if !found.foreign.is_empty() {
            Some(UNWATCHED_RESYNC)
        } else {
            is_settling(&found, Timestamp::now()).then_some(TAKEN_UP)
        };
        // One that takes another's place does so before that one goes; of what goes, that which leads API servers to it first.
        if takes_over && !former.is_empty() {
            let former: Vec<_> = former.into_iter().rev().collect();
            apply::clear(&self.client, &name, &former, &DeleteParams::background()).await?;
        }
        if takes_over && means != Means::Webhook {
            self.share(config, Use::Over).await?;
        }
        // Whoever turns Pods into peer pods, without it there are none.
        part.findings.push(if !self.observer.runtime_class_exists(&admission.runtime_class_name).await? {
            let message = format!(
                "the RuntimeClass {} does not exist; install Kata Containers with its remote hypervisor, which brings it",
                admission.runtime_class_name
            );
            Finding::new(Reason::RuntimeClassMissing, message)
        } else if let Some(state) = state {
            state
        } else {
            Finding::new(Reason::AdmissionElsewhere, "admission.mode is None")
        });
        Ok(part)
    }

    /// What the webhook is to take of its clients. Where the settings cannot be used, which is told, or are not known, it is
    /// what its Pods were told last.
    async fn tls(
        &self,
        config: &PeerPodConfig,
        asked: Option<Result<TlsOptions, TlsError>>,
    ) -> Result<(TlsOptions, Option<Finding>), ApiError> {
        let problem = match asked {
            Some(Ok(asked)) => return Ok((asked, None)),
            Some(Err(problem)) => Some(problem),
            None => None,
        };
        let deployment = self.observer.deployment(&Names::of(config).webhook).await?;
        let in_force = deployment.as_ref().map(webhook::tls_of_deployment).unwrap_or_default();
        let refused = problem.map(|problem| tls_refused(&config.spec.config_map_name, &problem, &in_force));
        Ok((in_force, refused))
    }

    /// What a configuration's admission for its runtime class consists of so far.
    async fn standing(&self, config: &PeerPodConfig, kinds: &[Kind]) -> Result<Means, ApiError> {
        let name = config.name_any();
        let class = apply::class_served(&self.client, &name, kinds).await?;
        if class.as_ref() != Some(&config.spec.admission.runtime_class_name) {
            return Ok(Means::None);
        }
        let registrations = [self.kind::<MutatingWebhookConfiguration>(false)];
        let is_registered = apply::any(&self.client, &name, &registrations).await?;
        Ok(if is_registered { Means::Webhook } else { Means::Policy })
    }

    /// All that an admission may consist of, in the order in which it is made.
    pub(super) fn admission_kinds(&self, serves_policies: bool) -> Vec<Kind> {
        let mut kinds = vec![
            self.kind::<Deployment>(true),
            self.kind::<Service>(true),
            self.kind::<PodDisruptionBudget>(true),
            self.kind::<MutatingWebhookConfiguration>(false),
        ];
        if serves_policies {
            kinds.extend(policy::resources().map(|resource| Kind { resource, namespace: None }));
        }
        kinds
    }
}

/// What turns Pods into peer pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Means {
    None,
    Webhook,
    Policy,
}

impl Means {
    fn consists_of(self, kind: &Kind) -> bool {
        let is_policy = policy::resources().iter().any(|resource| resource.kind == kind.resource.kind);
        match self {
            Self::None => false,
            Self::Policy => is_policy,
            Self::Webhook => !is_policy,
        }
    }
}

fn is_ready(config: &PeerPodConfig) -> bool {
    handover::admission_ready(config).is_some_and(|condition| condition.status == "True")
}

/// How far the admission of an older configuration is, which is for this one's runtime class, too.
fn shared_state(older: &PeerPodConfig) -> Finding {
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
fn at_odds(config: &PeerPodConfig, older: &PeerPodConfig) -> Option<Finding> {
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
fn tls_refused(config_map: &str, problem: &TlsError, in_force: &TlsOptions) -> Finding {
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
fn policy_state(inputs: &Inputs<'_>, found: &Found, now: Timestamp) -> Finding {
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
fn is_settling(found: &Found, now: Timestamp) -> bool {
    let mut entrances = found.objects.values().filter(|object| object.namespace().is_none()).peekable();
    entrances.peek().is_none() || entrances.any(|object| !is_taken_up(written(object), now))
}

/// Whether API servers have heard of what was done then.
fn is_taken_up(done: Option<Timestamp>, now: Timestamp) -> bool {
    done.is_some_and(|done| now.duration_since(done).unsigned_abs() >= TAKEN_UP)
}

/// When an object was made.
fn made(object: &impl ResourceExt) -> Option<Timestamp> {
    object.creation_timestamp().map(|time| time.0)
}

/// When this operator made or changed an object.
fn written(object: &impl ResourceExt) -> Option<Timestamp> {
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
