use std::sync::atomic::{AtomicUsize, Ordering};

use prometheus_client::{encoding::text::encode, registry::Registry};

use super::*;
use crate::provider::{Listed, Resource};

/// Gives the answers of its script, and counts the calls.
#[derive(Clone, Default)]
struct Scripted {
    error: Option<ErrorClass>,
    hangs: bool,
    pages: Vec<Vec<Listed>>,
    calls: Arc<AtomicUsize>,
}

#[async_trait]
impl Provider for Scripted {
    async fn describe(&self, id: &InstanceId, _: &Claim) -> Result<Vm, Error> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if self.hangs {
            std::future::pending::<()>().await;
        }
        match self.error {
            Some(class) => Err(Error::new(class, "as told")),
            None => Ok(Vm::named(id.clone(), "")),
        }
    }

    async fn delete(&self, _: &OwnVm) -> Result<Accepted, Error> {
        Ok(Accepted::default())
    }

    async fn list(&self, pages: Pages<'_>) -> Result<(), Error> {
        self.pages.iter().cloned().for_each(pages);
        self.error.map_or(Ok(()), |class| Err(Error::new(class, "as told")))
    }

    fn most_at_once(&self) -> Option<usize> {
        Some(7)
    }

    async fn identity(&self) -> Result<Option<String>, Error> {
        Ok(None)
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        Ok(Vec::new())
    }
}

#[test]
fn the_limit_of_a_cloud_holds_within_the_limits() {
    let limits = Limits::default();
    let (provider, _) = within(&limits, &Scripted::default());
    assert_eq!((provider.most_at_once(), provider.paused_for()), (Some(7), None));
    limits.close_for(Duration::from_secs(60));
    assert!(provider.paused_for().is_some_and(|left| left > Duration::from_secs(50)));
}

fn within(limits: &Limits, scripted: &Scripted) -> (Arc<dyn Provider>, Registry) {
    let mut registry = Registry::default();
    let metrics = Metrics::new(&mut registry);
    (decorate(Box::new(scripted.clone()), "libvirt", limits.clone(), metrics), registry)
}

fn id() -> InstanceId {
    InstanceId::scoped("", "i-1")
}

fn scrape(registry: &Registry) -> String {
    let mut text = String::new();
    encode(&mut text, registry).unwrap();
    text
}

#[tokio::test(start_paused = true)]
async fn new_settings_do_not_shorten_the_pause_of_a_throttling_cloud() {
    let limits = Limits::default();
    let retry_after = Duration::from_secs(7);
    let throttled = Scripted {
        error: Some(ErrorClass::Throttled { retry_after: Some(retry_after) }),
        ..Scripted::default()
    };
    let (provider, _) = within(&limits, &throttled);
    provider.describe(&id(), &Claim::default()).await.unwrap_err();

    let willing = Scripted::default();
    let (provider, _) = within(&limits, &willing);
    tokio::time::advance(Duration::from_secs(6)).await;
    let error = provider.describe(&id(), &Claim::default()).await.unwrap_err();
    assert!(
        matches!(error.class, ErrorClass::Throttled { retry_after: Some(retry_after) } if retry_after <= Duration::from_secs(1))
    );
    assert_eq!(willing.calls.load(Ordering::SeqCst), 0);
    tokio::time::advance(Duration::from_secs(2)).await;
    provider.describe(&id(), &Claim::default()).await.unwrap();
}

#[tokio::test]
async fn where_a_cloud_does_not_say_how_long_to_wait_the_next_call_is_made() {
    let error = Some(ErrorClass::Throttled { retry_after: None });
    let throttled = Scripted { error, ..Scripted::default() };
    let (provider, registry) = within(&Limits::default(), &throttled);
    for calls in 1..=2 {
        provider.describe(&id(), &Claim::default()).await.unwrap_err();
        assert_eq!(throttled.calls.load(Ordering::SeqCst), calls);
    }
    let text = scrape(&registry);
    assert!(text.contains("provider_throttled{provider=\"libvirt\"} 0"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_ends_at_its_deadline() {
    let limits = Limits::default();
    let (hanging, registry) = within(&limits, &Scripted { hangs: true, ..Scripted::default() });
    let error = hanging.describe(&id(), &Claim::default()).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Transient);
    assert!(
        scrape(&registry)
            .contains(r#"provider_calls_total{provider="libvirt",call="describe",result="abandoned"} 1"#)
    );
    let (working, _) = within(&limits, &Scripted::default());
    working.describe(&id(), &Claim::default()).await.unwrap();
}

#[tokio::test]
async fn a_thing_that_two_pages_share_is_listed_once() {
    let vm = |id: &str| Listed::new(Resource::Vm, id, "podvm-a-1a2b3c4d");
    let pages = vec![vec![vm("i-1"), vm("i-2")], vec![vm("i-2"), vm("i-3")]];
    let scripted = Scripted { pages, ..Scripted::default() };
    let list = async |scripted: &Scripted| {
        let mut ids = Vec::new();
        let (provider, _) = within(&Limits::default(), scripted);
        let end = provider.list(&mut |page| ids.extend(page.into_iter().map(|it| it.id))).await;
        (ids, end.map_err(|error| error.class))
    };
    assert_eq!(list(&scripted).await.0, ["i-1", "i-2", "i-3"]);
    let cut_off = Scripted { error: Some(ErrorClass::Transient), ..scripted };
    assert_eq!(list(&cut_off).await.1, Err(ErrorClass::Transient));
}

#[tokio::test]
async fn calls_are_counted_by_how_they_ended() {
    let denied = Scripted { error: Some(ErrorClass::Unauthorized), ..Scripted::default() };
    let (provider, registry) = within(&Limits::default(), &denied);
    provider.describe(&id(), &Claim::default()).await.unwrap_err();
    let text = scrape(&registry);
    assert!(
        text.contains(r#"provider_calls_total{provider="libvirt",call="describe",result="unauthorized"} 1"#),
        "{text}"
    );
    assert!(text.contains(r#"provider_calls_in_flight{provider="libvirt"} 0"#), "{text}");
}
