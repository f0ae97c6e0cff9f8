//! Many deletions at a cloud that takes few requests a second, within the limits that are around every provider.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, atomic::AtomicU32},
    time::Duration,
};

use async_trait::async_trait;
use futures::future::{join_all, select};
use prometheus_client::registry::Registry;
use tokio::{sync::Semaphore, time::sleep};

use super::{rhythm::STEP, tests::Server, *};
use crate::{
    metrics::Metrics,
    provider::{
        Accepted, Claim, Error, ErrorClass, Finding, InstanceId, OwnVm, Pages, Provider, Vm,
        limits::{Limits, decorate},
        ownership::verify,
    },
};

/// How late an answer is, and how late a refusal.
const LATE: Duration = Duration::from_millis(200);
const REFUSAL: Duration = Duration::from_millis(50);
/// How long the cloud deletes a VM.
const DELETION: Duration = Duration::from_secs(10);
/// When the rate has to be learnt.
const LEARNT: Duration = Duration::from_secs(15);
/// How many PeerPods are worked on at once, and how many reads a deletion has.
const SLOTS: usize = 128;
const READS: f64 = 3.0;

/// A cloud with such a rate, for reads and for writes.
struct Cloud {
    pacing: Pacing,
    servers: [Mutex<Server>; 2],
    /// How long to wait after a refusal, as the cloud says.
    retry_after: Option<Duration>,
    begin: Instant,
    /// How many requests were refused after the rate had to be learnt.
    refused: AtomicU32,
    gone: Mutex<HashMap<InstanceId, Instant>>,
}

impl Cloud {
    fn new(rate: f64, burst: f64, retry_after: Option<Duration>) -> Self {
        let begin = Instant::now();
        let servers = [(); 2].map(|()| Mutex::new(Server::new(rate, burst)));
        let (pacing, refused, gone) = Default::default();
        Self { pacing, servers, retry_after, begin, refused, gone }
    }

    async fn ask(&self, pace: Pace) -> Result<(), Error> {
        let turn = self.pacing.turn(pace).await;
        let out = self.pacing.leaves();
        let [reads, writes] = &self.servers;
        let server = if pace == Pace::Read { reads } else { writes };
        let takes = server.lock().unwrap().takes(Instant::now());
        sleep(if takes { LATE } else { REFUSAL }).await;
        drop(out);
        if takes {
            self.pacing.answered(turn);
            return Ok(());
        }
        self.pacing.refused(turn, self.retry_after.is_some());
        if self.begin.elapsed() > LEARNT {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        Err(Error::new(ErrorClass::Throttled { retry_after: self.retry_after }, "too many"))
    }
}

#[async_trait]
impl Provider for Arc<Cloud> {
    async fn describe(&self, id: &InstanceId, _: &Claim) -> Result<Vm, Error> {
        self.ask(Pace::Read).await?;
        let gone = self.gone.lock().unwrap().get(id).is_some_and(|at| *at <= Instant::now());
        if !gone {
            return Ok(Vm::named(id.clone(), "podvm-web-1a2b3c4d"));
        }
        self.ask(Pace::Read).await?;
        Err(Error::new(ErrorClass::NotFound, "gone"))
    }

    async fn delete(&self, vm: &OwnVm) -> Result<Accepted, Error> {
        self.ask(Pace::Write).await?;
        self.gone.lock().unwrap().insert(vm.vm().id.clone(), Instant::now() + DELETION);
        Ok(Accepted::default())
    }

    async fn list(&self, _: Pages<'_>) -> Result<(), Error> {
        Ok(())
    }

    fn most_at_once(&self) -> Option<usize> {
        self.pacing.most_at_once()
    }

    async fn identity(&self) -> Result<Option<String>, Error> {
        Ok(None)
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        Ok(Vec::new())
    }
}

/// Deletes so many VMs there, as the reconciler does. Returns how long that took, as a multiple of what the rate allows.
async fn delete(count: u32, rate: f64, cloud: &Arc<Cloud>) -> f64 {
    let metrics = Metrics::new(&mut Registry::default());
    let provider = decorate(Box::new(Arc::clone(cloud)), "few", Limits::default(), metrics);
    // The first in the queue waits until the cloud takes more.
    let (slots, queue) = (Arc::new(Semaphore::new(SLOTS)), tokio::sync::Mutex::new(()));
    let one = async |number: u32| {
        let id = InstanceId::scoped("", &format!("i-{number}"));
        let (mut is_deleted, mut random) = (false, fastrand::Rng::with_seed(number.into()));
        loop {
            let slot = {
                let _first = queue.lock().await;
                while provider.most_at_once().is_some_and(|most| SLOTS - slots.available_permits() >= most) {
                    sleep(Duration::from_millis(20)).await;
                }
                slots.acquire().await.unwrap()
            };
            let ended = match provider.describe(&id, &Claim::default()).await {
                Ok(vm) if !is_deleted => provider.delete(&verify(vm, "web", 63).unwrap()).await.map(|_| ()),
                ended => ended.map(|_| ()),
            };
            drop(slot);
            is_deleted |= ended.is_ok();
            let pause = match ended.map_err(|error| error.class) {
                Ok(()) => DELETION,
                Err(ErrorClass::NotFound) => return,
                Err(ErrorClass::Throttled { retry_after }) => retry_after.unwrap_or(STEP),
                Err(class) => panic!("{class:?}"),
            };
            sleep(pause.mul_f64(1.0 + random.f64())).await;
        }
    };
    join_all((0..count).map(one)).await;
    cloud.begin.elapsed().as_secs_f64() / (f64::from(count) * READS / rate)
}

/// Deletions that take about 150 s.
fn many(rate: u32) -> u32 {
    50 * rate
}

#[tokio::test(start_paused = true)]
async fn many_deletions_take_what_the_rate_allows_and_nothing_is_refused_once_it_is_known() {
    for rate in [6, 12, 20, 30, 50] {
        for burst in [1, 5] {
            let cloud = Arc::new(Cloud::new(rate.into(), f64::from(burst * rate), None));
            let took = delete(many(rate), rate.into(), &cloud).await;
            assert!(took <= 1.1, "{took} of what {rate} a second allow, with a burst of {burst} s");
            let refused = cloud.refused.load(Ordering::Relaxed);
            assert_eq!(refused, 0, "of {rate} a second, with a burst of {burst} s");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn where_the_cloud_says_how_long_to_wait_few_requests_are_refused() {
    for (seconds, most) in [(1, 1.3), (5, 1.75)] {
        for rate in [1, 6, 12, 20, 30, 50] {
            for burst in [1, 5] {
                let pause = Some(Duration::from_secs(seconds));
                let cloud = Arc::new(Cloud::new(rate.into(), f64::from(burst * rate), pause));
                let took = delete(many(rate), rate.into(), &cloud).await;
                assert!(
                    took <= most,
                    "{took} of what {rate} a second allow, with a burst of {burst} s, {seconds} s"
                );
                let refused = cloud.refused.load(Ordering::Relaxed);
                assert!(
                    refused <= many(rate) / 10,
                    "{refused} of {rate} a second, with a burst of {burst} s, {seconds} s"
                );
            }
        }
    }
}

/// Deletes VMs while the cloud's rates become this every so often. Returns how long that took, in seconds, and how many were refused.
async fn delete_while(
    count: u32,
    cloud: &Arc<Cloud>,
    every: Duration,
    becomes: impl Fn() -> Server,
) -> (f64, u32) {
    let changes = async {
        loop {
            sleep(every).await;
            cloud.servers.iter().for_each(|server| *server.lock().unwrap() = becomes());
        }
    };
    select(Box::pin(delete(count, 1.0, cloud)), Box::pin(changes)).await;
    (cloud.begin.elapsed().as_secs_f64(), cloud.refused.load(Ordering::Relaxed))
}

/// Arithmetic: 60 s at 20 a second, 120 s at 5.
#[tokio::test(start_paused = true)]
async fn a_rate_that_falls_while_vms_are_deleted_is_learnt_again() {
    for (seconds, most) in [(None, 1.2), (Some(1), 1.4), (Some(5), 1.8)] {
        let cloud = Arc::new(Cloud::new(20.0, 20.0, seconds.map(Duration::from_secs)));
        let (took, refused) =
            delete_while(600, &cloud, Duration::from_secs(60), || Server::new(5.0, 5.0)).await;
        assert!(took <= 180.0 * most, "{took} s, {refused} refused, {seconds:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_quota_by_the_minute_is_used_up() {
    for rate in [10.0, 20.0] {
        let minute = || Server::new(0.000_001, rate * 60.0);
        let cloud = Arc::new(Cloud::new(0.000_001, rate * 60.0, Some(Duration::from_secs(5))));
        let (took, refused) = delete_while(2_000, &cloud, Duration::from_secs(60), minute).await;
        assert!(took <= 1.2 * 2_000.0 * READS / rate, "{took} s at {rate} a second");
        assert!(refused <= 2_000, "{refused} of {rate} a second");
    }
}
