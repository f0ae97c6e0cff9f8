//! The alerts: when each fires, and when it does not.

use std::{collections::BTreeSet, fs};

use anyhow::{Context as _, Result, ensure};
use operator_kit::metrics::Description;
use peerpod_operator::{
    NAMESPACE,
    install::{
        Options,
        monitoring::{alerts, families, prometheus_rule},
    },
};
use serde_json::{Map, Value, json};

use super::{Labels, input, promtool};
use crate::support::run;

/// A series as Prometheus' unit tests have it: the metric's name without the prefix, its labels, and its values, one a minute.
type Series<'a> = (&'a str, Labels<'a>, &'a str);

fn family(name: &str) -> Result<&'static Description> {
    families().find(|family| family.name == name).with_context(|| format!("there is no metric {name}"))
}

/// A series for the unit test. Fails unless the metric is defined with these labels.
fn series((name, labels, values): Series) -> Result<Value> {
    let family = family(&format!("peerpod_operator_{name}"))?;
    let mut given: Vec<_> =
        labels.iter().map(|(label, _)| *label).filter(|label| *label != "instance").collect();
    given.sort_unstable();
    let mut defined = family.labels.to_vec();
    defined.sort_unstable();
    ensure!(given == defined, "{} has the labels {defined:?}, not {given:?}", family.name);
    Ok(input(family.name, labels, values))
}

/// An alert and the minutes at which it fires, with these labels, or stays quiet.
struct Case<'a> {
    alert: &'a str,
    series: &'a [Series<'a>],
    quiet: &'a [u32],
    fires: Option<(u32, Labels<'a>)>,
}

impl Case<'_> {
    fn test(&self) -> Result<Value> {
        let alert = alerts().into_iter().find(|it| it.name == self.alert).context(self.alert.to_owned())?;
        let at = |minute: u32, expected: Value| json!({ "eval_time": format!("{minute}m"), "alertname": alert.name, "exp_alerts": expected });
        let mut checks: Vec<_> = self.quiet.iter().map(|minute| at(*minute, json!([]))).collect();
        if let Some((minute, labels)) = self.fires {
            let further = [("severity", "warning"), ("namespace", NAMESPACE)];
            let labels =
                labels.iter().chain(&further).map(|(label, value)| ((*label).to_owned(), json!(value)));
            let description = format!("What to do: {}", alert.action);
            let annotations = json!({ "summary": alert.meaning, "description": description });
            let labels: Map<_, _> = labels.collect();
            checks.push(at(minute, json!([{ "exp_labels": labels, "exp_annotations": annotations }])));
        }
        let input: Vec<_> = self.series.iter().map(|it| series(*it)).collect::<Result<_>>()?;
        Ok(json!({ "interval": "1m", "input_series": input, "alert_rule_test": checks }))
    }
}

const LIBVIRT: (&str, &str) = ("provider", "libvirt");
const A: (&str, &str) = ("instance", "a");
const B: (&str, &str) = ("instance", "b");

/// Each alert, when it fires and when it does not. A test begins at time 0, so a timestamp is in seconds since its start.
const CASES: [Case; 39] = [
    Case {
        alert: "PeerPodDeletionOverdue",
        series: &[
            ("oldest_pending_deletion_timestamp_seconds", &[LIBVIRT, A], "0x60"),
            ("leader", &[A], "1x60"),
        ],
        quiet: &[15, 20],
        fires: Some((21, &[LIBVIRT])),
    },
    // The leader deleted it, and the standby has lost the API server.
    Case {
        alert: "PeerPodDeletionOverdue",
        series: &[
            ("oldest_pending_deletion_timestamp_seconds", &[LIBVIRT, A], "0x60"),
            ("leader", &[A], "0x60"),
            ("leader", &[B], "1x60"),
        ],
        quiet: &[21, 60],
        fires: None,
    },
    // The leader ends, and another one follows a minute later.
    Case {
        alert: "PeerPodDeletionOverdue",
        series: &[
            ("oldest_pending_deletion_timestamp_seconds", &[LIBVIRT, A], "0x60"),
            ("oldest_pending_deletion_timestamp_seconds", &[LIBVIRT, B], "0x60"),
            ("leader", &[A], "1x18 0x41"),
            ("leader", &[B], "0x19 1x40"),
        ],
        quiet: &[20],
        fires: Some((21, &[LIBVIRT])),
    },
    // There is always such a PeerPod, but none is old.
    Case {
        alert: "PeerPodDeletionOverdue",
        series: &[
            ("oldest_pending_deletion_timestamp_seconds", &[LIBVIRT, A], "0+60x120"),
            ("leader", &[A], "1x120"),
        ],
        quiet: &[30, 60, 120],
        fires: None,
    },
    Case {
        alert: "PeerPodsNeedHelp",
        series: &[("peerpods_held", &[("reason", "NotThisPodsVM"), A], "1x20")],
        quiet: &[4],
        fires: Some((5, &[("reason", "NotThisPodsVM")])),
    },
    // The cloud answers, and a person must act.
    Case {
        alert: "PeerPodsNeedHelp",
        series: &[
            ("peerpods_held", &[("reason", "CloudRefused"), A], "1x20"),
            ("peerpods_held", &[("reason", "CloudUnavailable"), A], "1x20"),
        ],
        quiet: &[4],
        fires: Some((5, &[("reason", "CloudRefused")])),
    },
    Case {
        alert: "PeerPodsNeedHelp",
        series: &[
            ("peerpods_held", &[("reason", "NotThisPodsVM"), A], "0x20"),
            ("peerpods_held", &[("reason", "WaitingForPod"), A], "1x20"),
            ("peerpods_held", &[("reason", "CloudUnavailable"), A], "1x20"),
            ("peerpods_held", &[("reason", "CloudThrottled"), A], "1x20"),
            ("peerpods_held", &[("reason", "DeveloperMode"), A], "1x20"),
            ("peerpods_held", &[("reason", "VMGone"), A], "1x20"),
            ("peerpods_held", &[("reason", "VMStopped"), A], "1x20"),
        ],
        quiet: &[20],
        fires: None,
    },
    Case {
        alert: "PeerPodCloudFails",
        series: &[
            ("provider_errors_total", &[LIBVIRT, ("class", "transient"), A], "0+1x60"),
            ("provider_calls_total", &[LIBVIRT, ("call", "describe"), ("result", "ok"), A], "7x60"),
            ("provider_calls_total", &[LIBVIRT, ("call", "describe"), ("result", "transient"), A], "0+1x60"),
        ],
        quiet: &[5],
        fires: Some((6, &[LIBVIRT])),
    },
    Case {
        alert: "PeerPodCloudFails",
        series: &[
            ("provider_errors_total", &[LIBVIRT, ("class", "transient"), A], "0+1x60"),
            ("provider_calls_total", &[LIBVIRT, ("call", "describe"), ("result", "ok"), A], "0+1x60"),
        ],
        quiet: &[20, 60],
        fires: None,
    },
    // A call failed, and the next one found that the VM is gone.
    Case {
        alert: "PeerPodCloudFails",
        series: &[
            ("provider_errors_total", &[LIBVIRT, ("class", "transient"), A], "0+1x60"),
            ("provider_calls_total", &[LIBVIRT, ("call", "describe"), ("result", "not_found"), A], "0+1x60"),
        ],
        quiet: &[20, 60],
        fires: None,
    },
    // A PeerPod names a cloud that the operator does not serve.
    Case {
        alert: "PeerPodCloudFails",
        series: &[("provider_errors_total", &[LIBVIRT, ("class", "not_supported"), A], "0+1x60")],
        quiet: &[20, 60],
        fires: None,
    },
    // Calls failed, and nothing is left to do.
    Case {
        alert: "PeerPodCloudFails",
        series: &[("provider_errors_total", &[LIBVIRT, ("class", "transient"), A], "5x60")],
        quiet: &[20, 60],
        fires: None,
    },
    Case {
        alert: "PeerPodOperatorNotLed",
        series: &[("leader", &[A], "0x20"), ("leader", &[B], "0x20")],
        quiet: &[4],
        fires: Some((5, &[])),
    },
    Case {
        alert: "PeerPodOperatorNotLed",
        series: &[("leader", &[A], "1x20"), ("leader", &[B], "1x20")],
        quiet: &[4],
        fires: Some((5, &[])),
    },
    // No operator runs.
    Case { alert: "PeerPodOperatorNotLed", series: &[], quiet: &[4], fires: Some((5, &[])) },
    Case {
        alert: "PeerPodOperatorNotLed",
        series: &[("leader", &[A], "1x9 0x10"), ("leader", &[B], "0x9 1x10")],
        quiet: &[5, 10, 15, 20],
        fires: None,
    },
    Case {
        alert: "PeerPodSettingsRefused",
        series: &[
            ("settings_valid", &[("settings", "default"), A], "1x20"),
            ("settings_valid", &[("settings", "aws"), A], "0x20"),
        ],
        quiet: &[4],
        fires: Some((5, &[("settings", "aws")])),
    },
    Case {
        alert: "PeerPodSettingsRefused",
        series: &[("settings_valid", &[("settings", "default"), A], "1x20")],
        quiet: &[20],
        fires: None,
    },
    Case {
        alert: "PeerPodWebhookCertificateOverdue",
        series: &[
            ("webhook_certificate_overdue_timestamp_seconds", &[A], "30x20"),
            ("webhook_certificate_overdue_timestamp_seconds", &[B], "9000x20"),
        ],
        quiet: &[5],
        fires: Some((6, &[])),
    },
    Case {
        alert: "PeerPodWebhookCertificateOverdue",
        series: &[("webhook_certificate_overdue_timestamp_seconds", &[A], "9000x60")],
        quiet: &[20, 60],
        fires: None,
    },
    Case {
        alert: "PeerPodVMsUntracked",
        series: &[
            ("untracked_resources", &[LIBVIRT, ("kind", "vm"), ("verdict", "unproven"), A], "2x120"),
            ("untracked_resources", &[LIBVIRT, ("kind", "vm"), ("verdict", "by_hand"), A], "0x120"),
        ],
        quiet: &[59],
        fires: Some((60, &[LIBVIRT, ("kind", "vm")])),
    },
    Case {
        alert: "PeerPodVMsUntracked",
        series: &[("untracked_resources", &[LIBVIRT, ("kind", "disk"), ("verdict", "by_hand"), A], "1x120")],
        quiet: &[59],
        fires: Some((60, &[LIBVIRT, ("kind", "disk")])),
    },
    Case {
        alert: "PeerPodVMsUntracked",
        series: &[("untracked_resources", &[LIBVIRT, ("kind", "vm"), ("verdict", "spared"), A], "1x120")],
        quiet: &[59],
        fires: Some((60, &[LIBVIRT, ("kind", "vm")])),
    },
    Case {
        alert: "PeerPodVMsUntracked",
        series: &[
            ("untracked_resources", &[LIBVIRT, ("kind", "vm"), ("verdict", "unproven"), A], "1x50 0x70"),
            ("untracked_resources", &[LIBVIRT, ("kind", "vm"), ("verdict", "watch"), A], "1x120"),
            ("untracked_resources", &[LIBVIRT, ("kind", "vm"), ("verdict", "delete"), A], "1x120"),
        ],
        quiet: &[60, 120],
        fires: None,
    },
    Case {
        alert: "PeerPodVMsNotSwept",
        series: &[("untracked_resources", &[LIBVIRT, ("kind", "vm"), ("verdict", "delete"), A], "1x120")],
        quiet: &[59],
        fires: Some((60, &[LIBVIRT])),
    },
    // The operator deletes each one soon.
    Case {
        alert: "PeerPodVMsNotSwept",
        series: &[
            (
                "untracked_resources",
                &[LIBVIRT, ("kind", "vm"), ("verdict", "delete"), A],
                "1x20 0x10 3x20 0x70",
            ),
            ("untracked_resources", &[LIBVIRT, ("kind", "vm"), ("verdict", "unproven"), A], "1x120"),
        ],
        quiet: &[60, 120],
        fires: None,
    },
    Case {
        alert: "PeerPodVMsLost",
        series: &[
            ("peerpods_held", &[("reason", "VMGone"), A], "1x20"),
            ("peerpods_held", &[("reason", "VMStopped"), A], "0x20"),
        ],
        quiet: &[4],
        fires: Some((5, &[("reason", "VMGone")])),
    },
    Case {
        alert: "PeerPodVMsLost",
        // The Pod was deleted, and the last listing was before that.
        series: &[
            ("lost_vms", &[LIBVIRT, ("state", "Gone"), A], "1x20"),
            ("peerpods_held", &[("reason", "VMGone"), A], "1x4 0x16"),
            ("peerpods_held", &[("reason", "CloudRefused"), A], "1x20"),
        ],
        quiet: &[5, 20],
        fires: None,
    },
    // The last listing was at the start.
    Case {
        alert: "PeerPodSweepFails",
        series: &[
            ("sweep_interval_seconds", &[LIBVIRT, A], "300x120"),
            ("sweep_last_listing_timestamp_seconds", &[LIBVIRT, A], "0x120"),
        ],
        quiet: &[20, 50],
        fires: Some((51, &[LIBVIRT])),
    },
    // There was no listing.
    Case {
        alert: "PeerPodSweepFails",
        series: &[("sweep_interval_seconds", &[LIBVIRT, A], "300x120")],
        quiet: &[29],
        fires: Some((30, &[LIBVIRT])),
    },
    // Listings fail for a while, and then another process leads.
    Case {
        alert: "PeerPodSweepFails",
        series: &[
            ("sweep_interval_seconds", &[LIBVIRT, A], "300x40 _x80"),
            ("sweep_last_listing_timestamp_seconds", &[LIBVIRT, A], "0x40 _x80"),
            ("sweep_interval_seconds", &[LIBVIRT, B], "_x41 300x80"),
            ("sweep_last_listing_timestamp_seconds", &[LIBVIRT, B], "_x41 2460+60x80"),
        ],
        quiet: &[45, 60, 120],
        fires: None,
    },
    // Listings are so frequent that the metrics are older.
    Case {
        alert: "PeerPodSweepFails",
        series: &[
            ("sweep_interval_seconds", &[LIBVIRT, A], "10x120"),
            ("sweep_last_listing_timestamp_seconds", &[LIBVIRT, A], "-60+60x120"),
        ],
        quiet: &[45, 60, 120],
        fires: None,
    },
    // Listings are rare, because they are configured so.
    Case {
        alert: "PeerPodSweepFails",
        series: &[
            ("sweep_interval_seconds", &[LIBVIRT, A], "7200x300"),
            ("sweep_last_listing_timestamp_seconds", &[LIBVIRT, A], "0x119 7200x119 14400x60"),
        ],
        quiet: &[60, 119, 239, 300],
        fires: None,
    },
    // The sweep is off.
    Case { alert: "PeerPodSweepFails", series: &[("leader", &[A], "1x120")], quiet: &[60, 120], fires: None },
    Case {
        alert: "PeerPodConfigNotReady",
        series: &[
            ("peerpodconfig_ready", &[("config", "config"), A], "0x60"),
            ("peerpodconfig_ready", &[("config", "other"), A], "1x60"),
        ],
        quiet: &[14],
        fires: Some((15, &[("config", "config")])),
    },
    // It becomes ready in time, and later it is deleted while it is not ready.
    Case {
        alert: "PeerPodConfigNotReady",
        series: &[("peerpodconfig_ready", &[("config", "config"), A], "0x10 1x20 0x5 _x30")],
        quiet: &[15, 30, 40, 60],
        fires: None,
    },
    Case {
        alert: "PeerPodCapacityUsedUp",
        series: &[
            ("capacity_advertised_vms", &[("config", "config"), A], "1x60"),
            ("capacity_free_vms", &[("config", "config"), A], "0x60"),
            ("capacity_advertised_vms", &[("config", "other"), A], "10x60"),
            ("capacity_free_vms", &[("config", "other"), A], "1x60"),
        ],
        quiet: &[14],
        fires: Some((15, &[("config", "config")])),
    },
    Case {
        alert: "PeerPodCapacityUsedUp",
        series: &[
            ("capacity_advertised_vms", &[("config", "none"), A], "0x60"),
            ("capacity_free_vms", &[("config", "none"), A], "0x60"),
            ("capacity_advertised_vms", &[("config", "short"), A], "10x60"),
            ("capacity_free_vms", &[("config", "short"), A], "0x10 2x10 0x10 1x30"),
        ],
        quiet: &[15, 30, 60],
        fires: None,
    },
    // The number of used VMs is not known.
    Case {
        alert: "PeerPodCapacityUsedUp",
        series: &[("capacity_advertised_vms", &[("config", "config"), A], "10x60")],
        quiet: &[60],
        fires: None,
    },
];

#[test]
fn each_alert_fires_when_it_should_and_only_then() -> Result<()> {
    let names: BTreeSet<_> = alerts().into_iter().map(|alert| alert.name).collect();
    let fires = CASES.iter().filter(|case| case.fires.is_some()).map(|case| case.alert);
    let rests = CASES.iter().filter(|case| case.fires.is_none()).map(|case| case.alert);
    for tested in [fires.collect::<BTreeSet<_>>(), rests.collect()] {
        ensure!(tested == names, "{tested:?} are tested, not {names:?}");
    }
    let dir = tempfile::tempdir()?;
    let rules = &prometheus_rule(&Options::default())["spec"];
    let tests: Vec<_> = CASES.iter().map(Case::test).collect::<Result<_>>()?;
    let tests = json!({ "rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests });
    // JSON is YAML.
    fs::write(dir.path().join("rules.yaml"), rules.to_string())?;
    fs::write(dir.path().join("tests.yaml"), tests.to_string())?;
    run(async { promtool(dir.path(), &["test", "rules", "tests.yaml"]).await.map(drop) })
}
