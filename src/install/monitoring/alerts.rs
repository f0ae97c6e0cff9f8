//! What to wake people for.

use crate::peerpod::reasons::Reason;

/// Something to be woken for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alert {
    /// Its name.
    pub name: &'static str,
    /// When it is time, in `PromQL`. Both replicas count PeerPods, and only the leader holds, decides, calls, sweeps and advertises.
    pub expression: String,
    /// How long the expression holds before the alert fires.
    pub patience: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// What to do.
    pub action: &'static str,
}

/// Everything to be woken for.
pub fn alerts() -> Vec<Alert> {
    of_peerpods().into_iter().chain(of_programs()).chain(of_sweep()).chain(of_configs()).collect()
}

/// The regular expression of the reasons that are so.
fn any_of(is_so: impl Fn(Reason) -> bool) -> String {
    let reasons = Reason::ALL.iter().filter(|reason| is_so(**reason));
    reasons.map(|reason| reason.as_str()).collect::<Vec<_>>().join("|")
}

/// The deletion of VMs.
fn of_peerpods() -> [Alert; 3] {
    let left_out = any_of(|reason| !reason.needs_help());
    [
        Alert {
            name: "PeerPodDeletionOverdue",
            // A standby that has lost the API server shows what it saw last. It counts while nobody leads, as at a change of the leader.
            expression: "max by (provider) (time() - peerpod_operator_oldest_pending_deletion_timestamp_seconds unless on (job, instance) \
                         (peerpod_operator_leader == 0 and on () peerpod_operator_leader == 1)) > 900"
                .to_owned(),
            patience: "5m",
            meaning: "a PeerPod still exists 15 minutes after its deletion and the end of its Pod",
            action: "`kubectl get peerpods -A` shows the STATE; the condition's message says why",
        },
        Alert {
            name: "PeerPodsNeedHelp",
            expression: format!("sum by (reason) (peerpod_operator_peerpods_held{{reason!~\"{left_out}\"}}) > 0"),
            patience: "5m",
            meaning: "PeerPods need a person to act, or their deletion is slow",
            action: "`kubectl get peerpods -A` shows the reason as STATE; the condition's message and the table of reasons say what to do",
        },
        Alert {
            name: "PeerPodCloudFails",
            // Of a cloud that the operator does not serve, it makes no call.
            expression: "sum by (provider) (rate(peerpod_operator_provider_errors_total{class!=\"not_supported\"}[10m])) > 0 unless \
                         sum by (provider) (rate(peerpod_operator_provider_calls_total{result=~\"ok|not_found|unsettled\"}[10m])) > 0"
                .to_owned(),
            patience: "5m",
            meaning: "no call to the cloud succeeds",
            action: "the operator's log and the condition of any PeerPod that waits have the error; the labels \
                 `class` and `result` say how calls end",
        },
    ]
}

/// The operator and the webhook themselves.
fn of_programs() -> [Alert; 3] {
    [
        Alert {
            name: "PeerPodOperatorNotLed",
            expression: "(sum(peerpod_operator_leader) or vector(0)) != 1".to_owned(),
            patience: "5m",
            meaning: "no operator leads, or two do",
            action: "check the operator's Lease (`peerpod-operator`, or that of `--lease-name`) and the logs of both replicas",
        },
        Alert {
            name: "PeerPodSettingsRefused",
            expression: "min by (settings) (peerpod_operator_settings_valid) == 0".to_owned(),
            patience: "5m",
            meaning: "the operator cannot use the mounted settings: deletions wait, or use the last good settings",
            action: "the log names the key or the file, and what to do; `/readyz` says what kind of problem it is",
        },
        Alert {
            name: "PeerPodWebhookCertificateOverdue",
            expression: "min(peerpod_operator_webhook_certificate_overdue_timestamp_seconds) < time()"
                .to_owned(),
            patience: "5m",
            meaning: "the webhook's certificate is overdue for replacement; when it expires, API servers refuse all \
                 peer pods",
            action: "the webhook's log names the certificate's source; replace the certificate there; if the \
                 webhook created it, the log of the replica that holds the Lease `peerpod-webhook` says why it \
                 did not replace it",
        },
    ]
}

/// What the sweep finds.
fn of_sweep() -> [Alert; 4] {
    [
        Alert {
            name: "PeerPodVMsUntracked",
            expression: "sum by (provider, kind) (peerpod_operator_untracked_resources{verdict=~\"unproven|by_hand|spared\"}) > 0"
                .to_owned(),
            patience: "1h",
            meaning: "the cloud has VMs, or what came with them, that no PeerPod records; the sweep never deletes these, because nothing \
                 proves that they are this cluster's, because a Pod of their name may run on them, or because they may hold data",
            action: "`peerpod-operator status` lists them; delete unused ones in the cloud; if a tag or the endpoint proves that pod \
                 VMs are this cluster's, declare that in the settings",
        },
        Alert {
            name: "PeerPodVMsNotSwept",
            expression: "sum by (provider) (peerpod_operator_untracked_resources{verdict=\"delete\"}) > 0"
                .to_owned(),
            patience: "1h",
            meaning: "the cloud has VMs that are provably this cluster's and that no PeerPod tracks, and the sweep does not delete them",
            action: "with `--sweep=report`, check the list of `peerpod-operator status`, then delete them with `peerpod-operator sweep` or \
                 run the operator with `--sweep=delete`; with `--sweep=delete`, there may be more than `--sweep-max` lets it delete in the \
                 time, which goes on; the list says so if developer mode keeps them, and otherwise the operator's log why the deletion fails",
        },
        Alert {
            name: "PeerPodVMsLost",
            // The gauge `lost_vms` says what the last listing showed, which may be an hour ago.
            expression: format!(
                "sum by (reason) (peerpod_operator_peerpods_held{{reason=~\"{}\"}}) > 0",
                any_of(Reason::is_of_lost_vm)
            ),
            patience: "5m",
            meaning: "VMs of running Pods are gone or off",
            action: "`peerpod-operator status -A` lists them, and each Pod has a Warning event; find in the cloud who deleted or stopped the VM; \
                 delete the Pod, so that its controller starts another one",
        },
        Alert {
            name: "PeerPodSweepFails",
            expression: "time() - max by (provider) (peerpod_operator_sweep_last_listing_timestamp_seconds) > 300 + 3 * max by (provider) \
                         (peerpod_operator_sweep_interval_seconds) or max by (provider) (peerpod_operator_sweep_interval_seconds) unless \
                         max by (provider) (peerpod_operator_sweep_last_listing_timestamp_seconds)"
                .to_owned(),
            patience: "30m",
            meaning: "the operator could not list all VMs of the cloud for more than three intervals and five minutes: untracked and lost VMs stay unseen",
            action: "the operator's log says why the sweep fails; it may lack the right to list in the cloud, which \
                 `peerpod-operator check` names",
        },
    ]
}

/// PeerPodConfigs and their capacity.
fn of_configs() -> [Alert; 2] {
    [
        Alert {
            name: "PeerPodConfigNotReady",
            expression: "max by (config) (peerpod_operator_peerpodconfig_ready) == 0".to_owned(),
            patience: "15m",
            meaning: "a part of the PeerPodConfig is not ready: cloud-api-adaptor, the admission or the capacity; or its deletion does \
                 not end",
            action: "`kubectl get peerpodconfigs -A` shows the REASON; the message of the condition `Ready` and the table of reasons say \
                 what to do",
        },
        Alert {
            name: "PeerPodCapacityUsedUp",
            expression: "max by (config) (peerpod_operator_capacity_free_vms) == 0 and max by (config) \
                         (peerpod_operator_capacity_advertised_vms) > 0"
                .to_owned(),
            patience: "15m",
            meaning: "peer pods request every VM that the nodes of the PeerPodConfig advertise; further ones stay Pending",
            action: "raise `spec.limit` of the PeerPodConfig, if the cloud has room for more, or delete peer pods",
        },
    ]
}
