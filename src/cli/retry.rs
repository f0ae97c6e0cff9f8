//! Retries of what may succeed later.

use std::time::Duration;

use operator_kit::{
    api_call::{ApiError, bounded},
    backoff::delay,
};
use tokio::time::{Instant, sleep_until, timeout_at};

/// The pauses between tries, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(3));

/// Failed tries, and the last reported problem.
pub(super) struct Retry {
    print: fn(&str),
    failures: u32,
    printed: String,
}

impl Retry {
    /// No failure yet. `print` shows to the user what it waits for.
    pub(super) fn new(print: fn(&str)) -> Self {
        Self { print, failures: 0, printed: String::new() }
    }

    /// Reports why it tries again, unless that was the last report.
    pub(super) fn again(&mut self, problem: &str) {
        if self.printed != problem {
            (self.print)(&format!("trying again: {problem}"));
            problem.clone_into(&mut self.printed);
        }
    }

    /// Waits for the time of the next try, and reports why. Returns `false` at once if that time is after the deadline.
    pub(super) async fn pause(&mut self, problem: &str, deadline: Instant) -> bool {
        self.failures += 1;
        let next = Instant::now() + delay(PAUSES.0, PAUSES.1, self.failures, fastrand::f64());
        if next >= deadline {
            return false;
        }
        self.again(problem);
        sleep_until(next).await;
        true
    }

    /// Calls the API server until the call on the object of this name succeeds, until it can never succeed, or until the
    /// deadline. `None`: there is no such object.
    pub(super) async fn call_of<T>(
        &mut self,
        name: &str,
        deadline: Instant,
        call: impl AsyncFn() -> kube::Result<T>,
    ) -> Result<Option<T>, String> {
        let call = async || match bounded(call()).await {
            Ok(done) => Ok(Some(done)),
            Err(problem) if problem.is_absence_of(name) => Ok(None),
            Err(problem) => Err(problem),
        };
        self.until_done(deadline, call).await
    }

    /// Calls the API server until the call succeeds, until it can never succeed, or until the deadline.
    pub(super) async fn call<T>(
        &mut self,
        deadline: Instant,
        call: impl AsyncFn() -> kube::Result<T>,
    ) -> Result<T, String> {
        self.until_done(deadline, async || bounded(call()).await).await
    }

    async fn until_done<T>(
        &mut self,
        deadline: Instant,
        call: impl AsyncFn() -> Result<T, ApiError>,
    ) -> Result<T, String> {
        self.failures = 0;
        loop {
            let problem = match timeout_at(deadline, call()).await {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(problem)) if !passes(&problem) => return Err(problem.to_string()),
                Ok(Err(problem)) => problem.to_string(),
                Err(_) => "the API server does not answer".to_owned(),
            };
            if !self.pause(&problem, deadline).await {
                return Err(problem);
            }
        }
    }
}

/// Whether the same call may succeed later: it got no answer, or the answer is about the API server's state and not about the
/// call.
fn passes(problem: &ApiError) -> bool {
    match problem.code() {
        // The call may succeed later: a proxy's 404, a timeout, a conflict, an expired page of a list, too many requests.
        Some(404 | 408 | 409 | 410 | 429) => true,
        // So says an API server that has just started.
        Some(403) => problem.to_string().contains("not yet ready to handle request"),
        Some(400..500) => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use kube::core::{Status, response::StatusDetails};

    use super::*;

    /// An API server that first gives this answer, and then succeeds. Returns the number of calls, and the result.
    async fn asked(code: Option<u16>) -> (u32, Result<(), String>) {
        asked_with(code, "etcdserver: leader changed").await
    }

    async fn asked_with(code: Option<u16>, message: &str) -> (u32, Result<(), String>) {
        let count = Cell::new(0);
        let call = async || {
            count.set(count.get() + 1);
            match code {
                _ if count.get() > 3 => Ok(()),
                Some(code) => Err(kube::Error::Api(Status::failure(message, "x").with_code(code).boxed())),
                None => Err(kube::Error::Service("connection refused".into())),
            }
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        let outcome = Retry::new(|_| {}).call(deadline, call).await;
        (count.get(), outcome)
    }

    #[tokio::test(start_paused = true)]
    async fn transient_failures_are_retried_and_permanent_ones_fail_at_once() {
        for code in [None, Some(404), Some(409), Some(410), Some(429), Some(500), Some(503), Some(504)] {
            assert_eq!(asked(code).await, (4, Ok(())), "{code:?}");
        }
        for code in [400, 401, 403, 405, 422] {
            let (count, outcome) = asked(Some(code)).await;
            assert!(count == 1 && outcome.unwrap_err().contains("leader changed"), "{code}");
        }
        let starting = "peerpods \"a\" is forbidden: not yet ready to handle request";
        assert_eq!(asked_with(Some(403), starting).await, (4, Ok(())));
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_not_found_answer_about_that_object_is_absence() {
        let not_found = |of: &'static str| {
            let deadline = Instant::now() + Duration::from_secs(1);
            let call = async move || {
                let details = StatusDetails {
                    name: of.into(),
                    ..serde_json::from_str("{}").expect("all of it is optional")
                };
                Err::<(), _>(kube::Error::Api(
                    Status::failure("", "NotFound").with_code(404).with_details(details).boxed(),
                ))
            };
            async move { Retry::new(|_| {}).call_of("a", deadline, call).await }
        };
        assert_eq!(not_found("a").await, Ok(None));
        assert!(not_found("b").await.is_err() && not_found("").await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_retry_ends_at_the_deadline_and_logs_each_reason_once() {
        static PRINTED: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());
        let mut retry = Retry::new(|text| PRINTED.lock().unwrap().push(text.to_owned()));
        let start = Instant::now();
        let deadline = start + Duration::from_secs(30);
        let call = async || Err::<(), _>(kube::Error::Service("connection refused".into()));
        let problem = retry.call(deadline, call).await.unwrap_err();
        assert!(problem.contains("connection refused"), "{problem}");
        assert!(start.elapsed() + PAUSES.1 >= Duration::from_secs(30) && Instant::now() < deadline);
        let silent = async || std::future::pending::<kube::Result<()>>().await;
        let problem = retry.call(deadline, silent).await.unwrap_err();
        assert_eq!((problem.as_str(), Instant::now()), ("the API server does not answer", deadline));
        let printed = PRINTED.lock().unwrap();
        assert!(printed.len() == 1 && printed[0].starts_with("trying again: "), "{printed:?}");
    }
}
