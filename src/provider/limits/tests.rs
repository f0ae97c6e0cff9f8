use std::sync::atomic::{AtomicUsize, Ordering};

use prometheus_client::{encoding::text::encode, registry::Registry};

use super::*;

/// Answers as it is told, and counts how many calls are in it at once.
#[derive(Clone, Default)]
struct Scripted {
    error: Option<ErrorClass>,
    hangs: bool,
    calls: Arc<AtomicUsize>,
    most_at_once: Arc<AtomicUsize>,
    at_once: Arc<AtomicUsize>,
}

#[async_trait]
impl Provider for Scripted {
    async fn describe(&self, id: &InstanceId) -> Result<Vm, Error> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let now = self.at_once.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_at_once.fetch_max(now, Ordering::SeqCst);
        if self.hangs {
            std::future::pending::<()>().await;
        }
        tokio::task::yield_now().await;
        self.at_once.fetch_sub(1, Ordering::SeqCst);
        match self.error {
            Some(class) => Err(Error::new(class, "as told")),
            None => Ok(Vm {
                id: id.clone(),
                name: String::new(),
                marked: true,
                created: None,
                own_disks: Vec::new(),
            }),
        }
    }

    async fn delete(&self, _: &OwnVm) -> Result<(), Error> {
        Ok(())
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        Ok(Vec::new())
    }
}

fn within(limits: &Limits, scripted: &Scripted) -> (Arc<dyn Provider>, Registry) {
    let mut registry = Registry::default();
    let metrics = Metrics::new(&mut registry);
    (decorate(Box::new(scripted.clone()), "libvirt", limits.clone(), metrics), registry)
}

fn id() -> InstanceId {
    InstanceId::parse("aws", "i-1").unwrap()
}

fn scrape(registry: &Registry) -> String {
    let mut text = String::new();
    encode(&mut text, registry).unwrap();
    text
}

#[tokio::test]
async fn no_more_calls_than_allowed_are_under_way() {
    let scripted = Scripted::default();
    let (provider, _) = within(&Limits::new(3), &scripted);
    let id = id();
    futures::future::join_all((0..20).map(|_| provider.describe(&id))).await;
    assert_eq!(scripted.calls.load(Ordering::SeqCst), 20);
    assert_eq!(scripted.most_at_once.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn a_cloud_that_asks_for_fewer_calls_is_left_alone_for_that_long_also_with_new_settings() {
    let limits = Limits::new(64);
    let retry_after = Duration::from_secs(7);
    let throttled = Scripted { error: Some(ErrorClass::Throttled { retry_after }), ..Scripted::default() };
    let (provider, _) = within(&limits, &throttled);
    provider.describe(&id()).await.unwrap_err();

    let willing = Scripted::default();
    let (provider, _) = within(&limits, &willing);
    tokio::time::advance(Duration::from_secs(6)).await;
    let error = provider.describe(&id()).await.unwrap_err();
    assert!(
        matches!(error.class, ErrorClass::Throttled { retry_after } if retry_after <= Duration::from_secs(1))
    );
    assert_eq!(willing.calls.load(Ordering::SeqCst), 0);
    tokio::time::advance(Duration::from_secs(2)).await;
    provider.describe(&id()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_ends_at_its_deadline_and_gives_its_place_back() {
    let limits = Limits::new(1);
    let (hanging, registry) = within(&limits, &Scripted { hangs: true, ..Scripted::default() });
    let error = hanging.describe(&id()).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Transient);
    assert!(
        scrape(&registry)
            .contains(r#"provider_calls_total{provider="libvirt",call="describe",result="abandoned"} 1"#)
    );
    let (working, _) = within(&limits, &Scripted::default());
    working.describe(&id()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn calls_that_stall_do_not_keep_others_from_being_made() {
    let limits = Limits::new(2);
    let hanging = Scripted { hangs: true, ..Scripted::default() };
    let (hangs, _) = within(&limits, &hanging);
    let (id, started) = (id(), Instant::now());
    let stalled = futures::future::join_all((0..2).map(|_| hangs.describe(&id)));
    let (working, _) = within(&limits, &Scripted::default());
    let others = async {
        futures::future::join_all((0..10).map(|_| working.describe(&id))).await;
        started.elapsed()
    };
    let (_, others) = futures::future::join(stalled, others).await;
    assert_eq!(others.as_secs(), STALLED_AFTER.as_secs(), "the first that stalls makes room");
}

#[tokio::test(start_paused = true)]
async fn no_more_calls_stall_than_allowed() {
    let limits = Limits::new(2);
    let hanging = Scripted { hangs: true, ..Scripted::default() };
    let (hangs, _) = within(&limits, &hanging);
    let id = id();
    let calls = futures::future::join_all((0..20).map(|_| hangs.describe(&id)));
    tokio::time::timeout(CALL_DEADLINE / 2, calls).await.unwrap_err();
    assert_eq!(hanging.calls.load(Ordering::SeqCst), 2 + 1);
}

#[test]
fn the_metrics_help_names_the_time_after_which_a_call_has_stalled() {
    let (_, registry) = within(&Limits::new(1), &Scripted::default());
    let said = format!("were not answered for {} s, ", STALLED_AFTER.as_secs());
    assert_eq!(STALLED_AFTER.subsec_nanos(), 0);
    assert!(scrape(&registry).contains(&said), "{said}");
}

#[tokio::test]
async fn calls_are_counted_by_how_they_ended() {
    let denied = Scripted { error: Some(ErrorClass::Unauthorized), ..Scripted::default() };
    let (provider, registry) = within(&Limits::new(1), &denied);
    provider.describe(&id()).await.unwrap_err();
    let text = scrape(&registry);
    assert!(
        text.contains(r#"provider_calls_total{provider="libvirt",call="describe",result="unauthorized"} 1"#),
        "{text}"
    );
    assert!(text.contains(r#"provider_calls_in_flight{provider="libvirt"} 0"#), "{text}");
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_for_their_turn_or_stall_are_counted_until_they_go_on_or_are_dropped() {
    let (provider, registry) = within(&Limits::new(1), &Scripted { hangs: true, ..Scripted::default() });
    let id = id();
    let mut calls: Vec<_> = (0..3).map(|_| provider.describe(&id)).collect();
    for call in &mut calls {
        assert!(futures::poll!(call).is_pending());
    }
    let shows = |in_flight: u8, queued: u8, stalled: u8| {
        let text = scrape(&registry);
        for (gauge, count) in [("in_flight", in_flight), ("queued", queued), ("stalled", stalled)] {
            let line = format!("provider_calls_{gauge}{{provider=\"libvirt\"}} {count}\n");
            assert!(text.contains(&line), "{line} is not in:\n{text}");
        }
    };
    shows(1, 2, 0);
    calls.pop();
    shows(1, 1, 0);
    drop(calls.remove(0));
    assert!(futures::poll!(&mut calls[0]).is_pending());
    shows(1, 0, 0);
    tokio::time::advance(STALLED_AFTER).await;
    assert!(futures::poll!(&mut calls[0]).is_pending());
    shows(1, 0, 1);
    calls.clear();
    shows(0, 0, 0);
}
