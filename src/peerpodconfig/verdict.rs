//! What is told about a configuration: its conditions *(no client)*.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::runtime::conditions::{condition, reasons};

/// The type of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// All of the following is as it should be.
    Ready,
    /// cloud-api-adaptor runs on every selected node that is ready.
    AdaptorReady,
    /// Pods of the runtime class become peer pods.
    AdmissionReady,
    /// Every selected node says how many VMs it may run.
    CapacityAdvertised,
    /// Something else is in this configuration's place. There only while True.
    Conflict,
    /// Pods of cloud-api-adaptor run on older settings. There only while True.
    SettingsPending,
    /// A setting cannot be used, and the last good one is in force. There only while True.
    SettingsRefused,
    /// The operator itself has other settings. There only while True.
    SettingsDiverge,
}

impl Kind {
    /// The condition's type.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::AdaptorReady => "AdaptorReady",
            Self::AdmissionReady => "AdmissionReady",
            Self::CapacityAdvertised => "CapacityAdvertised",
            Self::Conflict => "Conflict",
            Self::SettingsPending => "SettingsPending",
            Self::SettingsRefused => "SettingsRefused",
            Self::SettingsDiverge => "SettingsDiverge",
        }
    }
}

reasons! {
    //! Why a condition is as it is. The texts are its documentation.

    /// Everything is as it should be.
    AllReady => Ready(true), Normal;
    /// The configuration is being deleted; nodes and objects are put back.
    Deleting => Ready(false), Normal;
    /// Only a PeerPodConfig in the operator's own namespace is honoured: its DaemonSet is privileged. Make it there.
    WrongNamespace => Ready(false), Warning;
    /// cloud-api-adaptor runs on every selected node that is ready; the message names the others.
    AdaptorRunning => AdaptorReady(true), Normal;
    /// cloud-api-adaptor is not up to date and ready on every selected node yet that is ready itself. Where it stays so, the
    /// command in the message says why.
    AdaptorStarting => AdaptorReady(false), Normal;
    /// No node is selected; label nodes as the message says, or mend `nodeSelector` or `labelSelector`.
    NoNodes => AdaptorReady(false), Warning;
    /// No selected node is ready that could run cloud-api-adaptor; `kubectl describe node` says why.
    NodesNotReady => AdaptorReady(false), Warning;
    /// Some selected nodes have taints that cloud-api-adaptor's Pods do not tolerate; tolerate them in `adaptor.tolerations`,
    /// or select other nodes.
    NodesTainted => AdaptorReady(false), Warning;
    /// The ConfigMap or the Secret does not exist, or neither has `CLOUD_PROVIDER`; make it, or set that.
    SettingsMissing => AdaptorReady(false), Warning;
    /// The selector or another field cannot be used; the message says why.
    InvalidSpec => AdaptorReady(false), Warning;
    /// Some of `adaptor.serviceAccountAnnotations` have names that no annotation can have, and are left out; mend them.
    AnnotationsLeftOut => AdaptorReady(false), Warning;
    /// cloud-api-adaptor is not deployed, because of what the condition Conflict says.
    AdaptorWithheld => AdaptorReady(false), Warning;
    /// The ServiceAccount of cloud-api-adaptor does not exist; apply the operator's installation again, which has it.
    ServiceAccountMissing => AdaptorReady(false), Warning;
    /// The API server or the cluster failed while cloud-api-adaptor was to be deployed; it is tried again.
    AdaptorFailed => AdaptorReady(false), Warning;
    /// The webhook runs and the API server knows its certificate.
    WebhookRunning => AdmissionReady(true), Normal;
    /// The webhook does not run yet, or its certificate is not there yet. Where it stays so, the message says what to do.
    WebhookStarting => AdmissionReady(false), Normal;
    /// Somebody else made the certificate in the Secret `webhook-server-cert`, and API servers do not take it for this webhook:
    /// it is for another name, not good now, or signed by nobody whom they trust, who are the authorities in its `ca.crt`. Have
    /// another one issued, put its authority there, or delete the Secret, then one is made.
    CertificateUnfit => AdmissionReady(false), Warning;
    /// The admission policy was made or changed a moment ago, and API servers take it up within seconds.
    PolicyStarting => AdmissionReady(false), Normal;
    /// The admission policy is in force.
    PolicyInForce => AdmissionReady(true), Normal;
    /// The API server knows no mutating admission policies (Kubernetes before 1.36); use the mode Webhook or Auto.
    PolicyUnsupported => AdmissionReady(false), Warning;
    /// `admission.mode` is None: somebody else turns Pods into peer pods.
    AdmissionElsewhere => AdmissionReady(true), Normal;
    /// An older PeerPodConfig turns Pods of this runtime class into peer pods already.
    AdmissionShared => AdmissionReady(true), Normal;
    /// The admission is not set up as it should be, because of what the condition Conflict says.
    AdmissionWithheld => AdmissionReady(false), Warning;
    /// An older PeerPodConfig turns Pods of this runtime class into peer pods, and is not ready for it; its status says why.
    SharedNotReady => AdmissionReady(false), Normal;
    /// It is being deleted, or was edited, and its admission of before stays until that of the PeerPodConfig is ready which is
    /// to take its place, for 60 s at most.
    AdmissionKept => AdmissionReady(false), Normal;
    /// It is being deleted, or was edited, and its admission of before may go though that of the PeerPodConfig is not ready which
    /// is to take its place; the status of that one says why.
    AdmissionDropped => AdmissionReady(false), Warning;
    /// The runtime class does not exist, so no Pod can use it; install Kata Containers with it.
    RuntimeClassMissing => AdmissionReady(false), Warning;
    /// The API server refuses an object of the admission as invalid; the message says which field.
    InvalidAdmission => AdmissionReady(false), Warning;
    /// The API server or the cluster failed while the admission was to be set up; it is tried again.
    AdmissionFailed => AdmissionReady(false), Warning;
    /// Every selected node says how many VMs it may run.
    Advertised => CapacityAdvertised(true), Normal;
    /// Nodes are still being told.
    Advertising => CapacityAdvertised(false), Normal;
    /// No cloud-api-adaptor of this configuration is deployed, so no node advertises VMs for it; `AdaptorReady` says why.
    NoAdaptor => CapacityAdvertised(false), Normal;
    /// It is not known how many peer pods run, so nodes stay as they are; it is tried again.
    CountFailed => CapacityAdvertised(false), Warning;
    /// The API server refuses or fails to write to nodes; the message says which and why.
    NodeWritesFail => CapacityAdvertised(false), Warning;
    /// Somebody else writes the extended resource of nodes, too. They are put right ever more slowly; end the other one.
    Contested => CapacityAdvertised(false), Warning;
    /// `limit` is not set, so no node advertises any VM, and no peer pod is scheduled; set it.
    NoLimit => CapacityAdvertised(false), Warning;
    /// `limit` is no whole number from 0 to 1000000; nodes stay as they are until it is mended.
    InvalidLimit => CapacityAdvertised(false), Warning;
    /// `limit` is 0: no node advertises any VM; peer pods that run go on.
    LimitIsZero => CapacityAdvertised(true), Warning;
    /// More peer pods run than the limit allows; their nodes advertise them while they do.
    MoreInUse => CapacityAdvertised(true), Warning;
    /// The limit is lower than the number of nodes, so some have no share.
    FewerThanNodes => CapacityAdvertised(true), Normal;
    /// `nodeSelector` or `labelSelector` cannot be used; nodes stay as they are until it is mended.
    InvalidSelector => CapacityAdvertised(false), Warning;
    /// `admission.extendedResource` is no name that a node can advertise.
    InvalidResource => CapacityAdvertised(false), Warning;
    /// No node has the labels that the selectors ask for; the message says which.
    NoneSelected => CapacityAdvertised(false), Warning;
    /// Every selected node belongs to an older PeerPodConfig.
    AllTaken => CapacityAdvertised(false), Warning;
    /// Every selected node has a taint that cloud-api-adaptor's Pods do not tolerate; tolerate it in `adaptor.tolerations`.
    AllTainted => CapacityAdvertised(false), Warning;
    /// Another cloud-api-adaptor is deployed to these nodes, and two of them would share socket and port on a node.
    AnotherAdaptor => Conflict(true), Warning;
    /// An older PeerPodConfig selects some of these nodes, and keeps them.
    NodesTaken => Conflict(true), Warning;
    /// An older PeerPodConfig turns Pods of this runtime class into peer pods otherwise than this one asks for.
    AdmissionDiffers => Conflict(true), Warning;
    /// Somebody else's object has the name of one that is needed.
    NameTaken => Conflict(true), Warning;
    /// The ConfigMap or the Secret changed after some Pods of cloud-api-adaptor started; they use it after their next start.
    OlderSettings => SettingsPending(true), Normal;
    /// The webhook cannot use `TLS_MIN_VERSION` or `TLS_CIPHER_SUITES` of the ConfigMap, and goes on with what it was told last;
    /// mend them there.
    TlsRefused => SettingsRefused(true), Warning;
    /// The operator itself has another ConfigMap or Secret mounted than the ones that are named, and may not be able to delete
    /// the VMs that are made with those. Name what it has mounted, or install it with what is named.
    NotMounted => SettingsDiverge(true), Warning;
}

/// One condition to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) reason: Reason,
    /// The same text for the same state, so that it is written once.
    pub(super) message: String,
}

impl Finding {
    pub(super) fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

fn is_in_the_way(finding: &Finding) -> bool {
    match finding.reason.kind() {
        Kind::Conflict => finding.reason.status(),
        Kind::SettingsPending | Kind::SettingsRefused | Kind::SettingsDiverge => false,
        _ => !finding.reason.status(),
    }
}

/// `Ready`, by all the others.
pub(super) fn ready(findings: &[Finding]) -> Finding {
    // A conflict is the cause of whatever else is missing.
    let first = findings
        .iter()
        .filter(|finding| is_in_the_way(finding))
        .min_by_key(|finding| !matches!(finding.reason.kind(), Kind::Conflict | Kind::Ready));
    match first {
        None => Finding::new(Reason::AllReady, "cloud-api-adaptor, admission and capacity are ready"),
        Some(first) => first.clone(),
    }
}

/// One finding of each kind, as the API server takes no condition twice: the first that is in the way, with the messages of
/// the others that are.
fn merged(findings: &[Finding]) -> Vec<Finding> {
    let mut merged: Vec<Finding> = Vec::new();
    for finding in findings {
        let there = merged.iter_mut().find(|it| it.reason.kind() == finding.reason.kind());
        match there {
            None => merged.push(finding.clone()),
            Some(there) if is_in_the_way(there) && is_in_the_way(finding) => {
                there.message = format!("{}; {}", there.message, finding.message);
            }
            Some(there) if is_in_the_way(finding) => *there = finding.clone(),
            // All is well, and the first says so.
            Some(_) => {}
        }
    }
    merged
}

/// The conditions of the status: `Ready` first. One that did not change keeps its time.
pub(super) fn conditions(
    ready: &Finding,
    findings: &[Finding],
    before: &[Condition],
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let all_ready = ready.reason == Reason::AllReady;
    let first = (Kind::Ready, all_ready, ready);
    let merged = merged(findings);
    let others = merged.iter().map(|finding| (finding.reason.kind(), finding.reason.status(), finding));
    std::iter::once(first)
        .chain(others.filter(|(kind, ..)| *kind != Kind::Ready))
        .map(|(kind, status, finding)| {
            let told = (finding.reason.as_str(), &*finding.message);
            condition((kind.as_str(), status), told, before, generation, now)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(reason: Reason) -> Finding {
        Finding::new(reason, "text")
    }

    const GOOD: [Reason; 3] = [Reason::AdaptorRunning, Reason::WebhookRunning, Reason::Advertised];

    #[test]
    fn it_is_ready_when_all_of_its_parts_are() {
        let good = GOOD.map(finding);
        assert_eq!(ready(&good).reason, Reason::AllReady);
        for (part, reason) in
            [(0, Reason::NoNodes), (1, Reason::RuntimeClassMissing), (2, Reason::Advertising)]
        {
            let mut findings = good.to_vec();
            findings[part] = finding(reason);
            assert_eq!(ready(&findings).reason, reason);
        }
    }

    #[test]
    fn a_conflict_is_told_before_what_follows_from_it_and_settings_not_in_force_are_no_obstacle() {
        let mut findings = GOOD.map(finding).to_vec();
        findings.extend([Reason::OlderSettings, Reason::TlsRefused, Reason::NotMounted].map(finding));
        assert_eq!(ready(&findings).reason, Reason::AllReady);
        findings[0] = finding(Reason::AdaptorWithheld);
        findings.push(finding(Reason::AnotherAdaptor));
        assert_eq!(ready(&findings).reason, Reason::AnotherAdaptor);
    }

    #[test]
    fn what_is_wrong_with_the_whole_is_told_as_that() {
        let findings = [finding(Reason::WrongNamespace)];
        assert_eq!(ready(&findings).reason, Reason::WrongNamespace);
        let conditions = conditions(&ready(&findings), &findings, &[], None, Timestamp::UNIX_EPOCH);
        assert_eq!((conditions.len(), conditions[0].status.as_str()), (1, "False"));
    }

    #[test]
    fn no_condition_is_told_twice() {
        let findings = [
            finding(Reason::AnotherAdaptor),
            finding(Reason::AdaptorRunning),
            Finding::new(Reason::NameTaken, "more"),
            finding(Reason::InvalidSpec),
            finding(Reason::AdaptorStarting),
            finding(Reason::AdaptorRunning),
        ];
        let conditions = conditions(&ready(&findings), &findings, &[], None, Timestamp::UNIX_EPOCH);
        let told: Vec<_> =
            conditions.iter().map(|it| (&*it.type_, &*it.status, &*it.reason, &*it.message)).collect();
        assert_eq!(
            told,
            [
                ("Ready", "False", "AnotherAdaptor", "text"),
                ("Conflict", "True", "AnotherAdaptor", "text; more"),
                ("AdaptorReady", "False", "InvalidSpec", "text; text"),
            ]
        );
    }

    #[test]
    fn a_condition_keeps_its_time_until_its_status_changes() {
        let (early, late) = (Timestamp::UNIX_EPOCH, Timestamp::from_second(60).unwrap());
        let starting = [finding(Reason::AdaptorStarting)];
        let before = conditions(&ready(&starting), &starting, &[], Some(1), early);
        let types: Vec<_> = before.iter().map(|it| (it.type_.as_str(), it.status.as_str())).collect();
        assert_eq!(types, [("Ready", "False"), ("AdaptorReady", "False")]);
        let none = [finding(Reason::NoNodes)];
        let still = conditions(&ready(&none), &none, &before, Some(1), late);
        assert_eq!(still[1].last_transition_time.0, early);
        let good = GOOD.map(finding);
        let after = conditions(&ready(&good), &good, &still, Some(1), late);
        assert_eq!((after[0].status.as_str(), after[0].last_transition_time.0), ("True", late));
        assert_eq!(conditions(&ready(&good), &good, &after, Some(1), late), after);
    }
}
