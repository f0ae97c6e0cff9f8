use std::collections::HashSet;

use super::*;

fn metrics() -> (Registry, Metrics) {
    let mut registry = Registry::default();
    let metrics = Metrics::new(&mut registry);
    (registry, metrics)
}

fn scrape(registry: &Registry) -> String {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
    text
}

fn record_everything(metrics: &Metrics) {
    metrics.leader(true);
    metrics.reconciled("peerpod", "ok", Duration::from_millis(3));
    metrics.decided("release");
    let population = Population { peerpods: 7, queued: 3, pending: 2, oldest: Some(1000) };
    metrics.population("libvirt", &population);
    let untracked = [(("vm", "delete"), 2), (("disk", "by_hand"), 1)].into();
    metrics.listed("libvirt", &Listing { began: 1e9, untracked, lost: [("Gone", 1)].into() });
    metrics.swept("libvirt", "vm", "delete");
    metrics.released("libvirt", "deleted", Duration::from_secs(40));
    std::mem::forget(metrics.held("NotOurs"));
    metrics.expect_provider("libvirt", ["transient"]);
    metrics.provider_error("libvirt", "transient");
    metrics.provider_call("libvirt", "describe").finish("ok");
    metrics.provider_throttled("libvirt", Duration::from_secs(30));
    metrics.settings_reloaded(DEFAULT_SETTINGS, true);
    metrics.settings_usable(DEFAULT_SETTINGS, Some(true));
    metrics.lists("libvirt", Duration::from_secs(300), ["vm"]);
    let usage = Some(Usage { used: 7, free: 3 });
    metrics.capacities(
        [("config".to_owned(), ConfigCapacity { ready: true, advertised: Some(10), usage })].into(),
    );
}

#[test]
fn recorded_values_are_scraped_under_conventional_names() {
    let (registry, metrics) = metrics();
    record_everything(&metrics);
    metrics.settings_reloaded(DEFAULT_SETTINGS, false);
    metrics.settings_usable(DEFAULT_SETTINGS, Some(false));
    let text = scrape(&registry);
    for line in [
        concat!("build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
        "leader{} 1",
        "untracked_resources{provider=\"libvirt\",kind=\"vm\",verdict=\"delete\"} 1",
        "reconciles_total{controller=\"peerpod\",result=\"ok\"} 1",
        "reconcile_duration_seconds_count{controller=\"peerpod\"} 1",
        "reconcile_duration_seconds_bucket{le=\"0.005\",controller=\"peerpod\"} 1",
        "decisions_total{decision=\"release\"} 1",
        "peerpods{provider=\"libvirt\"} 7",
        "peerpods_queued{provider=\"libvirt\"} 3",
        "peerpods_held{reason=\"NotOurs\"} 1",
        "pending_deletions{provider=\"libvirt\"} 2",
        "oldest_pending_deletion_timestamp_seconds{provider=\"libvirt\"} 1000.0",
        "provider_errors_total{provider=\"libvirt\",class=\"transient\"} 1",
        "provider_calls_queued{provider=\"libvirt\"} 0",
        "provider_throttled{provider=\"libvirt\"} 1",
        "deletions_total{provider=\"libvirt\",outcome=\"deleted\"} 1",
        "deletion_latency_seconds_sum{provider=\"libvirt\"} 40.0",
        "provider_calls_total{provider=\"libvirt\",call=\"describe\",result=\"ok\"} 1",
        "provider_calls_total{provider=\"libvirt\",call=\"describe\",result=\"not_found\"} 0",
        "provider_calls_total{provider=\"libvirt\",call=\"delete\",result=\"ok\"} 0",
        "provider_call_duration_seconds_count{provider=\"libvirt\",call=\"describe\"} 1",
        "provider_calls_in_flight{provider=\"libvirt\"} 0",
        "settings_valid{settings=\"default\"} 0",
        "settings_reloads_total{settings=\"default\",result=\"accepted\"} 1",
        "settings_reloads_total{settings=\"default\",result=\"rejected\"} 1",
        "sweep_interval_seconds{provider=\"libvirt\"} 300",
        "peerpodconfig_ready{config=\"config\"} 1",
        "capacity_advertised_vms{config=\"config\"} 10",
        "capacity_used_vms{config=\"config\"} 7",
        "capacity_free_vms{config=\"config\"} 3",
    ] {
        assert!(
            text.lines().any(|found| found == format!("peerpod_operator_{line}")),
            "{line} is not in:\n{text}"
        );
    }
}

#[test]
fn the_descriptions_are_those_of_what_is_scraped() {
    let (registry, metrics) = metrics();
    record_everything(&metrics);
    let text = scrape(&registry);
    for Description { name, kind, labels, help } in Metrics::descriptions() {
        // The type line of a counter has the name without its suffix.
        let base = name.strip_suffix("_total").unwrap_or(name);
        assert_eq!(base != *name, *kind == "counter", "{name}");
        assert!(text.contains(&format!("# TYPE {base} {kind}\n")), "{name} in:\n{text}");
        assert!(text.contains(&format!("# HELP {base} {help}\n")), "{name} in:\n{text}");
        assert!(labels.iter().all(|label| text.contains(&format!("{label}=\""))), "{name}");
    }
    let names: HashSet<_> = Metrics::descriptions().map(|description| description.name).collect();
    assert_eq!(names.len(), Metrics::descriptions().count());
}

#[test]
fn a_dropped_call_is_no_longer_in_flight_and_counts_as_abandoned() {
    let (registry, metrics) = metrics();
    let call = metrics.provider_call("libvirt", "delete");
    assert!(scrape(&registry).contains("in_flight{provider=\"libvirt\"} 1\n"));
    drop(call);
    let text = scrape(&registry);
    assert!(text.contains("in_flight{provider=\"libvirt\"} 0\n"), "{text}");
    assert!(text.contains("call=\"delete\",result=\"abandoned\"} 1\n"), "{text}");
}

#[test]
fn settings_valid_is_absent_for_settings_that_delete_nothing() {
    let (registry, metrics) = metrics();
    metrics.settings_usable(DEFAULT_SETTINGS, Some(false));
    assert!(scrape(&registry).contains("peerpod_operator_settings_valid{settings=\"default\"} 0\n"));
    metrics.settings_usable(DEFAULT_SETTINGS, None);
    assert!(!scrape(&registry).contains("peerpod_operator_settings_valid{"));
}

#[test]
fn a_throttled_cloud_shows_until_when() {
    let (registry, metrics) = metrics();
    let left = || metrics.0.provider_throttled_until.with(["libvirt"]).get() - seconds_since_1970();
    metrics.provider_throttled("libvirt", Duration::from_secs(1000));
    assert!((900.0..=1000.0).contains(&left()), "{}", left());
    metrics.provider_throttled("libvirt", Duration::ZERO);
    assert!((900.0..=1000.0).contains(&left()), "a shorter pause ends no longer one: {}", left());
    assert!(scrape(&registry).contains("provider_throttled{provider=\"libvirt\"} 1\n"));
    metrics.provider_throttled("libvirt", Duration::from_secs(2000));
    assert!((1900.0..=2000.0).contains(&left()), "{}", left());
}

#[test]
fn a_configuration_shows_what_is_known_of_it_and_nothing_once_it_is_gone() {
    let (registry, metrics) = metrics();
    assert!(!scrape(&registry).contains("capacity"), "there is none");
    let known = ConfigCapacity { ready: true, advertised: Some(4), usage: Some(Usage { used: 4, free: 0 }) };
    let uncounted = ConfigCapacity { ready: false, advertised: Some(2), usage: None };
    metrics.capacities([("a".to_owned(), known), ("b".to_owned(), uncounted)].into());
    let text = scrape(&registry);
    for line in [
        "capacity_advertised_vms{config=\"a\"} 4\npeerpod_operator_capacity_advertised_vms{config=\"b\"} 2\n",
        "capacity_free_vms{config=\"a\"} 0\n",
        "peerpodconfig_ready{config=\"a\"} 1\npeerpod_operator_peerpodconfig_ready{config=\"b\"} 0\n",
    ] {
        assert!(text.contains(&format!("peerpod_operator_{line}")), "{line} is not in:\n{text}");
    }
    assert!(!text.contains("used_vms{config=\"b\"}") && !text.contains("free_vms{config=\"b\"}"), "{text}");
    metrics.capacities([("b".to_owned(), uncounted)].into());
    let text = scrape(&registry);
    assert!(!text.contains("used_vms") && !text.contains("config=\"a\""), "{text}");
}

#[test]
fn a_provider_shows_how_often_it_is_listed_until_it_is_not_any_more() {
    let (registry, metrics) = metrics();
    metrics.lists("libvirt", Duration::from_secs(300), ["vm"]);
    let listing =
        Listing { began: 1e9, untracked: [(("vm", "delete"), 2)].into(), lost: [("Gone", 0)].into() };
    metrics.listed("libvirt", &listing);
    let text = scrape(&registry);
    assert!(text.contains("sweep_interval_seconds{provider=\"libvirt\"} 300\n"), "{text}");
    assert!(text.contains("sweep_deletions_total{provider=\"libvirt\",kind=\"vm\"} 0\n"), "{text}");
    assert!(text.contains("kind=\"vm\",verdict=\"delete\"} 2\n"), "{text}");
    assert!(text.contains("lost_vms{provider=\"libvirt\",state=\"Gone\"} 0\n"), "{text}");
    metrics.not_listed("libvirt", &Listing { untracked: [(("vm", "delete"), 0)].into(), ..listing });
    let text = scrape(&registry);
    for gone in ["sweep_interval_seconds{", "verdict=", "lost_vms{", "last_listing"] {
        assert!(
            !text.lines().any(|line| !line.starts_with('#') && line.contains(gone)),
            "{gone} is in:\n{text}"
        );
    }
}
