use anstream::adapter::strip_str;

use super::*;
use crate::settings::{Remark, Verdict};

fn setting(key: &str, source: Source, value: Option<&str>, used: bool) -> Setting {
    let value = value.map(str::to_owned);
    Setting { key: key.to_owned(), source, value, hidden: false, used, verdict: "ok", remarks: Vec::new() }
}

fn document(result: Outcome, settings: Vec<Setting>, cloud: Cloud) -> Document {
    let provider = Provider {
        name: Some("libvirt"),
        settings_dir: "/s".into(),
        credentials_dir: Some("/c".into()),
        problems: Vec::new(),
        settings,
        cloud,
    };
    Document { version: 1, result, providers: vec![provider] }
}

fn plain(document: &Document) -> String {
    strip_str(&render(document)).to_string()
}

fn finding(subject: &'static str, outcome: &'static str, text: &str) -> ReportedFinding {
    ReportedFinding { subject, outcome, class: None, text: text.into() }
}

#[test]
fn relevant_settings_are_shown_in_columns_and_the_others_are_counted() {
    let unknown = Setting {
        hidden: true,
        verdict: "unknown",
        remarks: vec![Remark { verdict: Verdict::Unknown, wrong: false, text: "X is not a setting".into() }],
        ..setting("X", Source::Secret, None, false)
    };
    let settings = vec![
        setting("LIBVIRT_URI", Source::ConfigMap, Some("qemu:///system"), true),
        setting("LIBVIRT_POOL", Source::Default, Some("default"), true),
        setting("VXLAN_PORT", Source::Default, Some("4789"), false),
        setting("TUNNEL_TYPE", Source::ConfigMap, Some("vxlan"), false),
        unknown,
    ];
    let findings = vec![finding("pool", "works", "it is active"), finding("delete", "untried", "no dry run")];
    let report = plain(&document(Outcome::Ok, settings, Cloud::Reached { findings }));
    assert_eq!(
        report,
        "libvirt
  settings     /s (ConfigMap)
  credentials  /c (Secret)

  LIBVIRT_URI   ConfigMap  qemu:///system  ok
  LIBVIRT_POOL  default    default         ok
  TUNNEL_TYPE   ConfigMap  vxlan           not for deletions
  X             Secret     (set)           unknown
    X is not a setting
  not shown: 1 that deletions do not depend on, with their defaults

  cloud: reached
    works      pool    it is active
    not tried  delete  no dry run

The settings are correct, and the cloud answers.
"
    );
}

#[test]
fn the_report_says_why_a_folder_is_unreadable_or_a_cloud_unreached() {
    let cloud = Cloud::Unreached { class: "transient", error: "nobody is there".into() };
    let report = plain(&document(Outcome::Cloud, Vec::new(), cloud));
    assert!(report.contains("  cloud: not reached\n    nobody is there\n"), "{report}");
    let mut unread = document(Outcome::Settings, Vec::new(), Cloud::NotTried);
    unread.providers[0].name = None;
    unread.providers[0].problems = vec!["/s/A is not text".into()];
    let report = plain(&unread);
    assert!(
        report.starts_with("no provider\n") && report.contains("  wrong        /s/A is not text\n"),
        "{report}"
    );
    assert!(report.ends_with("The settings are wrong: deletions or the sweep will not work.\n"), "{report}");
}

#[test]
fn others_texts_neither_steer_the_terminal_nor_flood_it() {
    let mut settings = vec![setting("A\u{1b}[2J", Source::ConfigMap, Some(&"\u{9b}é".repeat(1000)), true)];
    settings.extend((0..2000).map(|n| setting(&format!("N{n}"), Source::ConfigMap, Some("x"), false)));
    let report = plain(&document(Outcome::Ok, settings, Cloud::NotTried));
    assert!(report.chars().all(|c| c == '\n' || !c.is_control()), "{report}");
    assert!(report.contains(r"A\u{1b}[2J") && report.contains('…'), "{report}");
    assert!(report.contains("and 1901 more: is it the right folder?"), "{report}");
    assert!(report.lines().count() < 120);
}
