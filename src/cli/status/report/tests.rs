use serde_json::json;

use super::*;
use crate::{peerpod::LostState, sweep::Published};

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

fn ago(seconds: i64) -> Timestamp {
    now() - SignedDuration::from_secs(seconds)
}

/// A cluster in which nothing is wrong, and nothing runs.
fn observed() -> Observed {
    let leader = Leader {
        identity: "peerpod-operator-7d9f_0123456789abcdef".to_owned(),
        since: Some(ago(3600)),
        renewed: Some(ago(2)),
    };
    Observed {
        peer_pods: Ok(Vec::new()),
        configs: Ok(Vec::new()),
        nodes: Ok(Vec::new()),
        pods: (Usage::new(true), None),
        leader: Ok(Some(leader)),
        settings: Ok(Vec::new()),
        sweep: Ok(Snapshot { leads: true, ..Snapshot::default() }),
    }
}

fn report(observed: Observed) -> Report {
    Report::new(observed, "operator", None, now())
}

fn problems(observed: Observed) -> Vec<(Severity, String)> {
    let problems = report(observed).problems.into_iter();
    problems.map(|it| (it.severity, format!("{}: {}", it.subject, it.text))).collect()
}

#[test]
fn a_cluster_in_which_nothing_is_wrong_has_no_problem() {
    let report = report(observed());
    assert_eq!(report.problems, []);
    assert_eq!(report.leader.unwrap().pod(), "peerpod-operator-7d9f");
    assert_eq!(report.clouds, Some(Vec::new()));
}

#[test]
fn unreadable_sources_are_reported_as_warnings_and_not_as_empty() {
    let no = || "no".to_owned();
    let report = report(Observed {
        peer_pods: Err(no()),
        configs: Err(no()),
        nodes: Err(no()),
        pods: (Usage::new(false), Some(no())),
        leader: Err(no()),
        settings: Err(no()),
        sweep: Err(no()),
    });
    let subjects: Vec<_> = report.problems.iter().map(|it| &*it.subject).collect();
    assert_eq!(subjects, ["PeerPods", "PeerPodConfigs", "nodes", "Pods", "leader", "settings", "clouds"]);
    assert!(report.problems.iter().all(|it| it.severity == Severity::Warning && it.text == "no"));
    assert!(report.peer_pods.is_none() && report.leader.is_none() && report.clouds.is_none());
}

#[test]
fn an_operator_that_does_not_act_is_an_error_and_comes_first() {
    let found = problems(Observed { leader: Ok(None), nodes: Err("no".to_owned()), ..observed() });
    assert_eq!(
        found[0],
        (
            Severity::Error,
            "leader: no operator holds the Lease of --lease-name: no operator acts, unless one runs with --leader-elect=false, or in another namespace \
             (--operator-namespace) or with another Lease (--lease-namespace, --lease-name)".to_owned()
        )
    );
    assert_eq!(found[1].0, Severity::Warning);
    let mut stale = observed();
    if let Ok(Some(leader)) = &mut stale.leader {
        leader.renewed = Some(ago(300));
    }
    let text = "leader: peerpod-operator-7d9f has not renewed the lease for 5m: no operator acts";
    assert_eq!(problems(stale), [(Severity::Error, text.to_owned())]);
    let mut ahead = observed();
    if let Ok(Some(leader)) = &mut ahead.leader {
        leader.renewed = Some(ago(-300));
    }
    assert_eq!(problems(ahead), [], "the clock of this machine may be wrong");
}

#[test]
fn lost_vms_are_those_of_the_namespace_and_a_listing_that_failed_is_an_error() {
    let lost = |namespace: &str| LostVm {
        namespace: namespace.to_owned(),
        name: "web".to_owned(),
        id: "i-1".to_owned(),
        state: LostState::Gone,
        since: ago(60),
    };
    let cloud = CloudSnapshot {
        cloud: "aws".to_owned(),
        problem: Some("throttled".to_owned()),
        lost: vec![lost("shop"), lost("bank")],
        ..CloudSnapshot::default()
    };
    let observed = || Observed {
        sweep: Ok(Snapshot { leads: true, clouds: vec![cloud.clone()], ..Snapshot::default() }),
        ..self::observed()
    };
    let text = "aws: the newest listing failed: throttled".to_owned();
    assert_eq!(problems(observed()), [(Severity::Error, text)]);
    let namespaces = |namespace| {
        let report = Report::new(observed(), "operator", namespace, now());
        report.clouds.unwrap()[0].lost.iter().map(|it| it.namespace.clone()).collect::<Vec<_>>()
    };
    assert_eq!(namespaces(None), ["shop", "bank"]);
    assert_eq!(namespaces(Some("bank")), ["bank"]);
    let unknown = Observed { sweep: Ok(Snapshot::default()), ..self::observed() };
    assert!(report(unknown).clouds.is_none(), "it may have any number of VMs");
}

#[test]
fn settings_that_the_operator_cannot_use_are_a_problem_also_before_it_leads() {
    let published = Published::default();
    published.show_settings("settings", Some("CLOUD_PROVIDER is no provider"));
    let sweep = Ok(published.current());
    let shown = problems(Observed { sweep, ..observed() });
    assert!(
        shown.iter().any(|(severity, text)| {
            *severity == Severity::Error && text.starts_with("settings: CLOUD_PROVIDER is no provider; ")
        }),
        "{shown:?}"
    );
    published.show_settings("settings", None);
    assert_eq!(published.current(), Snapshot::default());
}

#[test]
fn the_document_has_its_version_and_the_names_that_are_documented() {
    let document = serde_json::to_value(report(observed())).unwrap();
    let names: Vec<_> = document.as_object().unwrap().keys().cloned().collect();
    let mut expected = [
        "version",
        "time",
        "problems",
        "leader",
        "settings",
        "clouds",
        "peerPodConfigs",
        "nodes",
        "peerPods",
    ];
    expected.sort_unstable();
    assert_eq!(names, expected);
    assert_eq!(document["version"], json!(1));
}

#[test]
fn ages_are_written_as_kubectl_writes_them() {
    for (seconds, text) in [
        (-5, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (125, "2m5s"),
        (600, "10m"),
        (10_799, "179m"),
        (10_800, "3h"),
        (11_100, "3h5m"),
        (28_800, "8h"),
        (172_799, "47h"),
        (172_800, "2d"),
        (176_400, "2d1h"),
        (691_200, "8d"),
        (9_999_999_999, "115740d"),
    ] {
        assert_eq!(Age(SignedDuration::from_secs(seconds)).to_string(), text);
    }
}
