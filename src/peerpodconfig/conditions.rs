//! The conditions of a configuration *(no client)*.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use operator_kit::conditions::{NewCondition, reasons};

/// The type of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionType {
    /// All of the following is as it should be.
    Ready,
    /// cloud-api-adaptor runs on every selected node that is ready.
    AdaptorReady,
    /// Pods of the runtime class become peer pods.
    AdmissionReady,
    /// Every selected node advertises how many VMs it may run.
    CapacityAdvertised,
    /// Another object or configuration is in this configuration's place. Present only while True.
    Conflict,
    /// Pods of cloud-api-adaptor may run on older settings. Present only while True.
    SettingsPending,
    /// A setting cannot be used, and the last good one is in force. Present only while True.
    SettingsRefused,
    /// The operator itself has other settings than cloud-api-adaptor would have. Present only while True.
    SettingsDiverge,
}

operator_kit::labels! {
    /// The condition's type.
    pub ConditionType {
        Ready => "Ready",
        AdaptorReady => "AdaptorReady",
        AdmissionReady => "AdmissionReady",
        CapacityAdvertised => "CapacityAdvertised",
        Conflict => "Conflict",
        SettingsPending => "SettingsPending",
        SettingsRefused => "SettingsRefused",
        SettingsDiverge => "SettingsDiverge",
    }
}

impl ConditionType {
    /// Whether a condition of this type is True while all is well.
    pub const fn expected(self) -> bool {
        match self {
            Self::Ready | Self::AdaptorReady | Self::AdmissionReady | Self::CapacityAdvertised => true,
            Self::Conflict | Self::SettingsPending | Self::SettingsRefused | Self::SettingsDiverge => false,
        }
    }

    /// Whether a condition of this type makes the configuration not ready while it is not as [expected](Self::expected).
    pub const fn blocks_ready(self) -> bool {
        match self {
            Self::Ready
            | Self::AdaptorReady
            | Self::AdmissionReady
            | Self::CapacityAdvertised
            | Self::Conflict
            | Self::SettingsDiverge => true,
            Self::SettingsPending | Self::SettingsRefused => false,
        }
    }
}

reasons! {
    /// Why a condition is as it is. The texts are its documentation.
    pub enum Reason of ConditionType;

    /// cloud-api-adaptor, admission and capacity are ready.
    AllReady => Ready(true), Normal;
    /// The PeerPodConfig is being deleted. The operator removes its objects and what it wrote to nodes.
    Deleting => Ready(false), Normal;
    /// The operator ignores a PeerPodConfig outside its own namespace, because the DaemonSet is privileged. Create it in
    /// the operator's namespace.
    WrongNamespace => Ready(false), Warning;
    /// cloud-api-adaptor runs on every selected node that is ready. The message names the nodes that are not ready.
    AdaptorRunning => AdaptorReady(true), Normal;
    /// cloud-api-adaptor is not yet ready and up to date on every selected node that is ready. If that does not change,
    /// the command in the message shows why.
    AdaptorStarting => AdaptorReady(false), Normal;
    /// No node is selected. Label nodes as the message says, or correct `nodeSelector` or `labelSelector`.
    NoNodes => AdaptorReady(false), Warning;
    /// No selected node that may run cloud-api-adaptor is ready. `kubectl describe node` shows why.
    NodesNotReady => AdaptorReady(false), Warning;
    /// Some selected nodes have taints that cloud-api-adaptor's Pods do not tolerate. Tolerate them in
    /// `adaptor.tolerations`, or select other nodes.
    NodesTainted => AdaptorReady(false), Warning;
    /// The ConfigMap or the Secret does not exist, neither has the `CLOUD_PROVIDER` of a provider or of a plugin, or by `TAGS` or
    /// `SWEEP_CLUSTER` the VMs would be another cluster's. Create the missing object, set `CLOUD_PROVIDER`, or correct those keys.
    SettingsMissing => AdaptorReady(false), Warning;
    /// The operator cannot use the selector or another field. The message says why.
    InvalidSpec => AdaptorReady(false), Warning;
    /// Some keys of `adaptor.serviceAccountAnnotations` are no valid names of annotations, or an older PeerPodConfig gives them
    /// another value. The operator leaves them out. Correct them.
    AnnotationsLeftOut => AdaptorReady(false), Warning;
    /// The operator does not deploy cloud-api-adaptor, or leaves one that runs unchanged. The condition Conflict or SettingsDiverge
    /// says why.
    AdaptorWithheld => AdaptorReady(false), Warning;
    /// The ServiceAccount of cloud-api-adaptor does not exist. Apply the operator's installation again: it contains the
    /// ServiceAccount.
    ServiceAccountMissing => AdaptorReady(false), Warning;
    /// The API server or the cluster failed while the operator deployed cloud-api-adaptor. The operator tries again.
    AdaptorFailed => AdaptorReady(false), Warning;
    /// The webhook runs, and the API server trusts its certificate.
    WebhookRunning => AdmissionReady(true), Normal;
    /// The webhook does not run yet, or it has no certificate yet. If that does not change, the message says what to do.
    WebhookStarting => AdmissionReady(false), Normal;
    /// The operator did not create the certificate in the Secret `webhook-server-cert`, and API servers reject it: its
    /// name is wrong, it is not valid now, or no authority in the Secret's `ca.crt` signed it. Issue another certificate,
    /// add its authority to `ca.crt`, or delete the Secret: the webhook then creates a certificate.
    CertificateUnfit => AdmissionReady(false), Warning;
    /// The operator created or changed the admission policy a moment ago. API servers apply it within seconds.
    PolicyStarting => AdmissionReady(false), Normal;
    /// The admission policy is in force.
    PolicyInForce => AdmissionReady(true), Normal;
    /// The API server does not support mutating admission policies (Kubernetes before 1.36). Use the mode Webhook. Until then the policy
    /// `peerpod-limit` refuses Pods of the runtime class that request no VM.
    PolicyUnsupported => AdmissionReady(false), Warning;
    /// `admission.mode` is None: another program turns Pods into peer pods.
    AdmissionElsewhere => AdmissionReady(true), Normal;
    /// An older PeerPodConfig already turns Pods of this runtime class into peer pods.
    AdmissionShared => AdmissionReady(true), Normal;
    /// The operator does not set up the admission of this PeerPodConfig. The condition Conflict says why. Until then the policy
    /// `peerpod-limit` refuses Pods of the runtime class that request no VM.
    AdmissionWithheld => AdmissionReady(false), Warning;
    /// An older PeerPodConfig turns Pods of this runtime class into peer pods, but its admission is not ready, and its status
    /// says why. Or the operator could not set up this one's part, and tries again.
    SharedNotReady => AdmissionReady(false), Normal;
    /// The runtime class does not exist, so no Pod can use it. Install Kata Containers with this runtime class.
    RuntimeClassMissing => AdmissionReady(false), Warning;
    /// The API server rejects an object of the admission as invalid. The message names the field.
    InvalidAdmission => AdmissionReady(false), Warning;
    /// The API server or the cluster failed while the operator set up the admission. The operator tries again.
    AdmissionFailed => AdmissionReady(false), Warning;
    /// Every selected node advertises how many VMs it may run.
    Advertised => CapacityAdvertised(true), Normal;
    /// The operator is still writing to nodes.
    Advertising => CapacityAdvertised(false), Normal;
    /// No cloud-api-adaptor of this PeerPodConfig is deployed, so no node advertises VMs for it. `AdaptorReady` says why.
    NoAdaptor => CapacityAdvertised(false), Normal;
    /// The operator could not count the running peer pods, so it does not change nodes. It tries again.
    CountFailed => CapacityAdvertised(false), Warning;
    /// Writing to nodes failed. The message names a node and the error.
    NodeWritesFail => CapacityAdvertised(false), Warning;
    /// Another program also writes the extended resource of nodes. The operator corrects these nodes with growing pauses.
    /// Stop the other program.
    Contested => CapacityAdvertised(false), Warning;
    /// `limit` is not set, so no node advertises VMs and no peer pod is scheduled. Set `limit`.
    NoLimit => CapacityAdvertised(false), Warning;
    /// `limit` is not a whole number from 0 to 1000000. The operator does not change nodes until it is.
    InvalidLimit => CapacityAdvertised(false), Warning;
    /// `limit` is 0: no node advertises VMs. Running peer pods keep running.
    LimitIsZero => CapacityAdvertised(true), Warning;
    /// More peer pods run than the limit allows. Their nodes advertise as many VMs until these peer pods have ended.
    MoreInUse => CapacityAdvertised(true), Warning;
    /// The limit is lower than the number of nodes, so some nodes advertise no VM.
    FewerThanNodes => CapacityAdvertised(true), Normal;
    /// The operator cannot use `nodeSelector` or `labelSelector`. It does not change nodes until the selector is correct.
    InvalidSelector => CapacityAdvertised(false), Warning;
    /// `admission.extendedResource` is not a name that a node can advertise.
    InvalidResource => CapacityAdvertised(false), Warning;
    /// No node has the labels that the selectors ask for. The message names the labels.
    NoneSelected => CapacityAdvertised(false), Warning;
    /// Every selected node belongs to an older PeerPodConfig.
    AllTaken => CapacityAdvertised(false), Warning;
    /// Every selected node has a taint that cloud-api-adaptor's Pods do not tolerate. Tolerate the taints in
    /// `adaptor.tolerations`.
    AllTainted => CapacityAdvertised(false), Warning;
    /// Another cloud-api-adaptor is deployed to these nodes. Two of them on one node would use the same socket and port.
    AnotherAdaptor => Conflict(true), Warning;
    /// An older PeerPodConfig selects some of these nodes. They belong to the older one.
    NodesTaken => Conflict(true), Warning;
    /// An older PeerPodConfig turns Pods of this runtime class into peer pods in another way than this one asks for.
    AdmissionDiffers => Conflict(true), Warning;
    /// An object that the operator did not create has a name that this PeerPodConfig needs.
    NameTaken => Conflict(true), Warning;
    /// Something else keeps changing an object of this PeerPodConfig. The operator changed it back 4 times within a minute, and
    /// now tries again every 5 minutes. The message names the object. Stop what changes it, or change this PeerPodConfig.
    DriftLeft => Conflict(true), Warning;
    /// The API server refused what the operator wrote to an object, because others had set fields there that exclude it. The
    /// operator removed these fields. The message names the object.
    FieldsTakenOver => Conflict(true), Warning;
    /// The ConfigMap or the Secret changed after some Pods of cloud-api-adaptor started. These Pods use the change after
    /// their next start. If the message says that such Pods do not fit, set `adaptor.restartOnSettingsChange` once no peer pod runs.
    OlderSettings => SettingsPending(true), Normal;
    /// The webhook cannot use `TLS_MIN_VERSION` or `TLS_CIPHER_SUITES` of the ConfigMap. It keeps the last values that
    /// worked. Correct the ConfigMap.
    TlsRefused => SettingsRefused(true), Warning;
    /// The operator has another ConfigMap or Secret mounted than this PeerPodConfig names, and no `--provider` for its cloud. It
    /// would take the VMs that cloud-api-adaptor creates for absent, and release their PeerPods. So it does not deploy
    /// cloud-api-adaptor, and leaves one that runs unchanged. Name the ones that the operator has mounted, or run the operator
    /// with the ones that are named, for a further cloud by `--provider`.
    NotMounted => SettingsDiverge(true), Warning;
    /// The settings of cloud-api-adaptor point to another place for VMs than the operator's files, for about a minute after a
    /// change. The operator does not deploy cloud-api-adaptor, and does not restart one that runs for its settings. It does not take
    /// VMs in that place for absent, but cannot delete them. If this stays, the message says what to do.
    AnotherPlace => SettingsDiverge(true), Warning;
}

/// One finding, which becomes a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its reason.
    pub reason: Reason,
    /// Its message: the same text for the same state, so that it is written once.
    pub message: String,
}

impl Finding {
    pub(super) fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

fn is_in_the_way(finding: &Finding) -> bool {
    let condition_type = finding.reason.condition_type();
    condition_type.blocks_ready() && finding.reason.status() != condition_type.expected()
}

/// `Ready`, by all the others.
pub(super) fn ready(findings: &[Finding]) -> Finding {
    // A conflict is the cause of everything else that is not ready.
    let first = findings.iter().filter(|finding| is_in_the_way(finding)).min_by_key(|finding| {
        !matches!(finding.reason.condition_type(), ConditionType::Conflict | ConditionType::Ready)
    });
    match first {
        None => Finding::new(Reason::AllReady, "cloud-api-adaptor, admission and capacity are ready"),
        Some(first) => first.clone(),
    }
}

/// One finding for each condition type, as the API server refuses duplicate conditions. It is the first one that reports a
/// problem, with the messages of the other problems.
fn merged(findings: &[Finding]) -> Vec<Finding> {
    let mut merged: Vec<Finding> = Vec::new();
    for finding in findings {
        let there =
            merged.iter_mut().find(|it| it.reason.condition_type() == finding.reason.condition_type());
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

/// The conditions of the status: `Ready` first. An unchanged condition keeps its time.
pub(super) fn conditions(
    ready: &Finding,
    findings: &[Finding],
    before: &[Condition],
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let all_ready = ready.reason == Reason::AllReady;
    let first = (ConditionType::Ready, all_ready, ready);
    let merged = merged(findings);
    let others =
        merged.iter().map(|finding| (finding.reason.condition_type(), finding.reason.status(), finding));
    std::iter::once(first)
        .chain(others.filter(|(type_, ..)| *type_ != ConditionType::Ready))
        .map(|(type_, is_true, Finding { reason, message })| {
            let condition = NewCondition { type_: type_.as_str(), is_true, reason: reason.as_str(), message };
            condition.after(before, generation, now)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use operator_kit::EventType;

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
    fn the_reasons_of_a_type_agree_with_how_it_is_while_all_is_well() {
        for type_ in ConditionType::ALL {
            let mut reasons = Reason::ALL.iter().filter(|reason| reason.condition_type() == type_);
            if type_.expected() {
                let is_fine = reasons.any(|reason| reason.status() && reason.event() == EventType::Normal);
                assert!(is_fine, "{type_:?} is never as expected");
            } else {
                assert!(reasons.all(|reason| reason.status()), "{type_:?} is present only while True");
            }
        }
    }

    #[test]
    fn conflicts_precede_their_consequences_and_pending_settings_allow_ready() {
        let mut findings = GOOD.map(finding).to_vec();
        findings.extend([Reason::OlderSettings, Reason::TlsRefused].map(finding));
        assert_eq!(ready(&findings).reason, Reason::AllReady);
        findings.push(finding(Reason::NotMounted));
        assert_eq!(ready(&findings).reason, Reason::NotMounted);
        findings[0] = finding(Reason::AdaptorWithheld);
        findings.push(finding(Reason::AnotherAdaptor));
        assert_eq!(ready(&findings).reason, Reason::AnotherAdaptor);
    }

    #[test]
    fn a_problem_of_the_whole_is_the_reason_of_ready() {
        let findings = [finding(Reason::WrongNamespace)];
        assert_eq!(ready(&findings).reason, Reason::WrongNamespace);
        let conditions = conditions(&ready(&findings), &findings, &[], None, Timestamp::UNIX_EPOCH);
        assert_eq!((conditions.len(), conditions[0].status.as_str()), (1, "False"));
    }

    #[test]
    fn findings_of_one_type_become_one_condition() {
        let findings = [
            finding(Reason::AnotherAdaptor),
            finding(Reason::AdaptorRunning),
            Finding::new(Reason::NameTaken, "more"),
            finding(Reason::InvalidSpec),
            finding(Reason::AdaptorStarting),
            finding(Reason::AdaptorRunning),
        ];
        let conditions = conditions(&ready(&findings), &findings, &[], None, Timestamp::UNIX_EPOCH);
        let finding: Vec<_> =
            conditions.iter().map(|it| (&*it.type_, &*it.status, &*it.reason, &*it.message)).collect();
        assert_eq!(
            finding,
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
