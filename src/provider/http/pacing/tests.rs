use std::time::Duration;

use super::{
    rhythm::{
        CALM, CAUTION, GROWTH, LEAST, LEAST_AT_ONCE, LONGEST_WAIT, Phase, RISEN, START, STEP, UNLIMITED,
    },
    *,
};

/// A server that takes `rate` requests a second, spread evenly, and `burst` at once.
pub(super) struct Server {
    rate: f64,
    burst: f64,
    tokens: f64,
    at: Instant,
}

impl Server {
    pub(super) fn new(rate: f64, burst: f64) -> Self {
        Self { rate, burst, tokens: burst, at: Instant::now() }
    }

    pub(super) fn takes(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        (self.tokens, self.at) = ((self.tokens + passed * self.rate).min(self.burst), now);
        let takes = self.tokens >= 1.0;
        self.tokens -= if takes { 1.0 } else { 0.0 };
        takes
    }
}

/// A request left, and nothing is known of it yet.
async fn sent(pacing: &Pacing) -> Turn {
    pacing.turn(Pace::Read).await
}

fn rate(pacing: &Pacing) -> f64 {
    pacing.read.rhythm.lock().learnt.unwrap().rate
}

#[tokio::test(start_paused = true)]
async fn requests_do_not_wait_before_the_first_refusal() {
    let (pacing, begin) = (Pacing::default(), Instant::now());
    for _ in 0..500 {
        pacing.answered(sent(&pacing).await);
    }
    assert_eq!(begin.elapsed(), Duration::ZERO);
}

/// When the rate has to be learnt.
const LEARNT: Duration = Duration::from_secs(15);

/// A refusal comes no later than this.
const REFUSAL: Duration = Duration::from_millis(50);

/// Until `end`, sends requests by one client from as many tasks as may wait for a cloud. An answer is `late`, and a refusal too, up to
/// [`REFUSAL`]. Returns how many requests a second the server took and how many it refused, counted from `from` on.
async fn load(pacing: &Pacing, server: Server, late: Duration, from: Duration, end: Duration) -> (f64, u32) {
    load_of(64, false, pacing, server, late, from, end).await
}

/// The same from this many tasks, by a cloud that says or does not say how long to wait.
async fn load_of(
    tasks: usize,
    says_how_long: bool,
    pacing: &Pacing,
    server: Server,
    late: Duration,
    from: Duration,
    end: Duration,
) -> (f64, u32) {
    let begin = Instant::now();
    let (server, counts) = (Mutex::new(server), Mutex::new((0, 0)));
    let task = async || {
        while begin.elapsed() < end {
            let turn = sent(pacing).await;
            let takes = server.lock().takes(Instant::now());
            if begin.elapsed() > from {
                let mut counts = counts.lock();
                *(if takes { &mut counts.0 } else { &mut counts.1 }) += 1;
            }
            sleep_until(Instant::now() + if takes { late } else { late.min(REFUSAL) }).await;
            if takes { pacing.answered(turn) } else { pacing.refused(turn, says_how_long) }
        }
    };
    futures::future::join_all((0..tasks).map(|_| task())).await;
    let (taken, refused) = *counts.lock();
    (f64::from(taken) / begin.elapsed().saturating_sub(from).as_secs_f64(), refused)
}

#[tokio::test(start_paused = true)]
async fn the_rate_is_learnt_and_then_nothing_is_refused() {
    for late in [1, 200, 1000].map(Duration::from_millis) {
        for rate in [5.0, 10.0, 20.0, 50.0] {
            for burst in [rate, 1.0] {
                let (pacing, server) = (Pacing::default(), Server::new(rate, burst));
                let (got, refused) = load(&pacing, server, late, LEARNT, 5 * LEARNT).await;
                assert!(
                    got >= 0.93 * rate,
                    "{got} requests a second of {rate}, {late:?} late, {burst} at once"
                );
                assert_eq!(refused, 0, "of {rate}, {late:?} late, {burst} at once");
                let phase = pacing.read.rhythm.lock().learnt.unwrap().phase;
                let early = if burst > 1.0 { 1.0 } else { 1.0 - CAUTION };
                assert_eq!(phase, Phase::hold(early), "of {rate}, {late:?} late, {burst} at once");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_counts_for_the_rate_at_which_its_request_left() {
    let (pacing, measured) = (Pacing::default(), 10.0);
    pacing.read.with(|rhythm| rhythm.enter(Phase::Probe { measured }, measured, Instant::now()));
    let first = sent(&pacing).await;
    for _ in 0..40 {
        sent(&pacing).await;
    }
    assert!(rate(&pacing) > measured * RISEN, "many left at higher rates");
    pacing.refused(first, false);
    assert!((rate(&pacing) - measured).abs() < 0.001, "{}", rate(&pacing));
}

#[tokio::test(start_paused = true)]
async fn a_rate_falls_and_grows_with_what_others_leave() {
    let late = Duration::from_millis(200);
    for says_how_long in [false, true] {
        let pacing = Pacing::default();
        for (rate, patience) in [(20.0, LEARNT), (8.0, LEARNT), (12.0, 6 * CALM)] {
            let (from, end) = (patience, patience + LEARNT);
            let (got, _) =
                load_of(64, says_how_long, &pacing, Server::new(rate, rate), late, from, end).await;
            assert!(got >= 0.85 * rate, "{got} requests a second of {rate}, says {says_how_long}");
        }
    }
}

#[test]
fn a_late_request_does_not_delay_those_behind_it() {
    let (begin, late) = (Instant::now(), Duration::from_millis(3));
    // A cloud without bursts wants a gap, which allows less.
    for (early, count, least) in [(1.0, 100, 44), (1.0 - CAUTION, 97, 48)] {
        let (mut rhythm, mut now, mut gaps) = (Rhythm::default(), begin, Vec::new());
        rhythm.enter(Phase::hold(early), 20.0, begin);
        while now < begin + Duration::from_secs(5) {
            let before = now;
            let Err(turn) = rhythm.turn(now) else { continue };
            // Every second one leaves late.
            now = turn + if gaps.len() % 2 == 0 { late } else { Duration::ZERO };
            gaps.push(now - before);
        }
        assert!(gaps.len() >= count, "{} left", gaps.len());
        assert!(gaps.iter().all(|gap| *gap >= Duration::from_millis(least)), "{gaps:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn reads_and_writes_have_separate_rates() {
    let pacing = Pacing::default();
    let refused = pacing.turn(Pace::Write).await;
    pacing.refused(refused, false);
    let begin = Instant::now();
    pacing.turn(Pace::Read).await;
    assert_eq!(begin.elapsed(), Duration::ZERO);
    pacing.turn(Pace::Write).await;
    assert!(begin.elapsed() > Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn as_much_may_be_under_way_as_waits_for_five_seconds_at_the_lower_rate() {
    let pacing = Pacing::default();
    assert_eq!(pacing.most_at_once(), None);
    let learnt = |lane: &Lane, rate| lane.with(|rhythm| rhythm.enter(Phase::hold(1.0), rate, Instant::now()));
    for (read, write, most) in [(20.0, None, 100), (20.0, Some(5.0), 25), (0.1, Some(5.0), 3)] {
        learnt(&pacing.read, read);
        write.inspect(|write| learnt(&pacing.write, *write));
        assert_eq!(pacing.most_at_once(), Some(most), "{read} and {write:?} a second");
    }
    let begin = Instant::now();
    futures::future::join_all((0..25).map(|_| pacing.turn(Pace::Write))).await;
    assert!(begin.elapsed() <= LONGEST_WAIT, "{:?}", begin.elapsed());
}

#[test]
fn requests_that_the_cloud_does_not_answer_leave_room_for_others() {
    let pacing = Pacing::default();
    pacing.write.with(|rhythm| rhythm.enter(Phase::hold(1.0), LEAST, Instant::now()));
    let out: Vec<_> = (0..5).map(|_| pacing.leaves()).collect();
    assert_eq!(pacing.most_at_once(), Some(LEAST_AT_ONCE + 5));
    drop(out);
    assert_eq!(pacing.most_at_once(), Some(LEAST_AT_ONCE));
}

#[tokio::test(start_paused = true)]
async fn a_rate_that_limits_work_grows_although_no_request_waits() {
    let approach = Phase::Approach { most: LEAST, calm: CALM, growth: GROWTH };
    for phase in [Phase::Search, Phase::Probe { measured: LEAST }, Phase::hold(1.0), approach] {
        let pacing = Pacing::default();
        pacing.write.with(|rhythm| rhythm.enter(phase, LEAST, Instant::now()));
        assert_eq!(pacing.most_at_once(), Some(LEAST_AT_ONCE), "{phase:?}");
        for _ in 0..60 {
            tokio::time::advance(CALM).await;
            pacing.most_at_once();
        }
        let most = pacing.most_at_once().unwrap();
        assert!((UNLIMITED..2 * UNLIMITED).contains(&most), "{most} after five hours of {phase:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_search_that_was_interrupted_goes_on() {
    let pacing = Pacing::default();
    pacing.refused(sent(&pacing).await, false);
    tokio::time::advance(2 * CALM).await;
    pacing.most_at_once();
    load(&pacing, Server::new(50.0, 50.0), Duration::from_millis(200), LEARNT, 2 * LEARNT).await;
    assert!(rate(&pacing) > 40.0, "{}", rate(&pacing));
}

#[tokio::test(start_paused = true)]
async fn a_cloud_that_took_nothing_for_a_minute_is_asked_at_once_when_it_does_again() {
    for says_how_long in [false, true] {
        let pacing = Pacing::default();
        for _ in 0..60 {
            pacing.refused(sent(&pacing).await, says_how_long);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        let begin = Instant::now();
        for _ in 0..10 {
            pacing.answered(sent(&pacing).await);
        }
        assert!(begin.elapsed() < Duration::from_secs(3), "{:?}, says {says_how_long}", begin.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_rate_grows_when_nothing_was_refused_for_a_while() {
    let pacing = Pacing::default();
    load(&pacing, Server::new(START, START), Duration::from_millis(1), LEARNT, 2 * LEARNT).await;
    let before = rate(&pacing);
    assert!((START * 0.93..=START).contains(&before), "{before}");
    tokio::time::advance(CALM).await;
    for _ in 0..3 {
        pacing.answered(sent(&pacing).await);
    }
    assert!(rate(&pacing) > before);
}

#[tokio::test(start_paused = true)]
async fn a_rate_without_waiting_requests_does_not_grow_within_minutes() {
    let pacing = Pacing::default();
    pacing.refused(sent(&pacing).await, false);
    for _ in 0..100 {
        tokio::time::advance(STEP).await;
        pacing.most_at_once();
        pacing.answered(sent(&pacing).await);
    }
    assert!((rate(&pacing) - START).abs() < 0.001, "{}", rate(&pacing));
}

#[tokio::test(start_paused = true)]
async fn a_rate_that_was_measured_while_others_used_the_quota_grows_within_the_hour() {
    let pacing = Pacing::default();
    pacing.read.with(|rhythm| rhythm.enter(Phase::hold(1.0), 1.0, Instant::now()));
    let patience = 8 * CALM;
    let late = Duration::from_millis(200);
    let server = Server::new(20.0, 20.0);
    let (got, _) = load_of(32, false, &pacing, server, late, patience, patience + LEARNT).await;
    assert!(got >= 18.0, "{got} requests a second");
}
