use jiff::SignedDuration;

use super::*;
use crate::{
    cli::status::{
        problem::Problem,
        report::{Leader, Settings},
    },
    peerpod::LostState,
    sweep::CloudSnapshot,
};

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

fn ago(minutes: i64) -> Timestamp {
    now() - SignedDuration::from_mins(minutes)
}

fn row(name: &str, state: State, message: Option<&str>) -> Row {
    serde_json::from_value::<crate::api::v1alpha1::PeerPod>(serde_json::json!({
        "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPod",
        "metadata": { "name": name, "namespace": "shop", "creationTimestamp": ago(90).to_string() },
        "spec": { "cloudProvider": "aws", "instanceID": "i-1" },
    }))
    .map(|peerpod| Row {
        node: Some("node-1".to_owned()),
        pod: Some("web".to_owned()),
        state,
        reason: message.map(|_| "NoOwner".to_owned()),
        message: message.map(ToOwned::to_owned),
        since: ago(5),
        ..Row::of(peerpod)
    })
    .unwrap()
}

fn report() -> Report {
    let untracked = Untracked {
        kind: "vm".to_owned(),
        id: "i-9".to_owned(),
        name: "podvm-old-1a2b3c4d".to_owned(),
        since: ago(600),
        pod: Some("old".to_owned()),
        proof: Some("tag caa-cluster-uid".to_owned()),
        verdict: "delete".to_owned(),
        action: "kept".to_owned(),
    };
    let lost = LostVm {
        namespace: "shop".to_owned(),
        name: "gone".to_owned(),
        id: "i-2".to_owned(),
        state: LostState::Stopped,
        since: ago(20),
    };
    let cloud = CloudSnapshot {
        cloud: "aws".to_owned(),
        listed: Some(ago(3)),
        vms: 12,
        untracked: vec![untracked],
        more_untracked: 4,
        lost: vec![lost],
        ..CloudSnapshot::default()
    };
    Report {
        version: 1,
        time: now(),
        problems: vec![Problem {
            severity: Severity::Error,
            subject: "PeerPodConfig operator/config".to_owned(),
            text: "AdaptorReady, NoNodes: none".to_owned(),
        }],
        leader: Some(Leader {
            identity: "operator-7d_01".to_owned(),
            since: Some(ago(180)),
            renewed: Some(now()),
        }),
        settings: vec![Settings {
            name: "peer-pods-cm".to_owned(),
            provider: Some("aws".to_owned()),
            changed: Some(ago(10)),
        }],
        clouds: Some(vec![cloud]),
        peer_pod_configs: vec![ConfigRow {
            namespace: "operator".to_owned(),
            name: "config".to_owned(),
            ready: "False".to_owned(),
            reason: "NoNodes".to_owned(),
            message: "none".to_owned(),
            resource: "kata.peerpods.io/vm".to_owned(),
            nodes: 1,
            limit: Some(3),
            distribution: Distribution::PerNode,
            advertised: 3,
            used: Some(4),
            free: Some(0),
            created: Some(ago(3000)),
        }],
        nodes: vec![NodeRow {
            name: "node-1".to_owned(),
            ready: true,
            config: Some("config".to_owned()),
            resource: "kata.peerpods.io/vm".to_owned(),
            advertised: Some(3),
            used: Some(4),
            free: Some(0),
            limit: Some(3),
        }],
        peer_pods: Some(vec![
            row("bad", State::Stalled, Some("no \u{1b}[2JPod")),
            row("good", State::Active, None),
        ]),
    }
}

fn shown(report: &Report, wide: bool, namespace: Option<&str>) -> String {
    let mut out = Vec::new();
    write(&mut out, report, View { wide, namespace }).unwrap();
    anstream::adapter::strip_str(std::str::from_utf8(&out).unwrap()).to_string()
}

#[test]
fn the_report_begins_with_the_problems() {
    assert_eq!(
        shown(&report(), false, None),
        "\
Problems
  error    PeerPodConfig operator/config: AdaptorReady, NoNodes: none

VMs of running Pods that are gone or off
NAMESPACE  PEERPOD  VM   STATE    SINCE
shop       gone     i-2  Stopped  20m

What no PeerPod tracks
CLOUD  KIND  NAME                AGE  POD  VERDICT  ACTION
aws    vm    podvm-old-1a2b3c4d  10h  old  delete   kept
and 4 more

PeerPodConfigs
NAME    READY  REASON   NODES  LIMIT       ADVERTISED  USED  FREE  AGE
config  False  NoNodes  1      3 per node  3           4     0     2d2h

Nodes
NAME    STATE  CONFIG  ADVERTISED  USED  FREE  LIMIT  RESOURCE
node-1  Ready  config  3           4     0     3      kata.peerpods.io/vm

Operator
  leader    operator-7d, for 3h
  settings  peer-pods-cm: aws, changed 10m ago
  cloud     aws: 12 VMs, listed 3m ago

PeerPods: 1 Stalled, 1 Active
NAMESPACE  NAME  POD  NODE    VM   STATE    AGE  REASON   MESSAGE
shop       bad   web  node-1  i-1  Stalled  90m  NoOwner  no \\u{1b}[2JPod
shop       good  web  node-1  i-1  Active   90m  -        -
"
    );
}

#[test]
fn the_wide_report_has_messages_as_a_whole() {
    let message = "é".repeat(MESSAGE + 1);
    let long = Report { peer_pods: Some(vec![row("a", State::Stalled, Some(&message))]), ..report() };
    let narrow = shown(&long, false, Some("shop"));
    assert!(narrow.contains(&format!("{}…", "é".repeat(MESSAGE))) && !narrow.contains(&message), "{narrow}");
    assert!(narrow.contains("PeerPods in the namespace shop: 1 Stalled\nNAME  POD"), "{narrow}");
    let wide = shown(&long, true, Some("shop"));
    assert!(wide.contains(&message) && wide.contains("aws    5m     é"), "{wide}");
    assert!(wide.contains("i-9  tag caa-cluster-uid  kept"), "{wide}");
}

#[test]
fn no_peerpods_and_unknown_peerpods_have_different_messages() {
    let none = |peer_pods| shown(&Report { peer_pods, ..report() }, false, Some("shop"));
    assert!(none(Some(Vec::new())).ends_with("\n\nNo PeerPods in the namespace shop.\n"));
    assert!(none(None).ends_with("\n\nPeerPods are not known in the namespace shop.\n"));
}

#[test]
fn problems_are_shown_in_red() {
    let mut out = Vec::new();
    write(&mut out, &report(), View { wide: false, namespace: None }).unwrap();
    let text = String::from_utf8(out).unwrap();
    for bad in ["error  ", "Stopped", "False", "Stalled"] {
        assert!(text.contains(&format!("{BAD}{bad}")), "{bad}: {text:?}");
    }
}

#[test]
fn texts_of_tenants_do_not_steer_the_terminal() {
    const EVIL: &str = "a\u{1b}[2J\u{9b}2J\u{202e}b";
    let mut row = row("a", State::Stalled, Some(EVIL));
    (row.vm, row.cloud) = (EVIL.to_owned(), EVIL.to_owned());
    let problem = Problem { severity: Severity::Error, subject: EVIL.to_owned(), text: EVIL.to_owned() };
    let report = Report { peer_pods: Some(vec![row]), problems: vec![problem], ..report() };
    for wide in [false, true] {
        let shown = shown(&report, wide, None);
        assert!(!shown.contains(EVIL) && !shown.contains(['\u{9b}', '\u{202e}']), "{shown:?}");
        assert!(shown.contains(r"a\u{1b}[2J\u{9b}2J\u{202e}b"), "{shown}");
    }
}
