//! A credential that expires, fetched once for all callers.

use std::time::Duration;

use jiff::Timestamp;
use tokio::{sync::Mutex, time::Instant};

use crate::provider::Error;

/// A credential is replaced when it expires within this time.
const MARGIN: Duration = Duration::from_secs(180);

/// After a failure, no caller fetches again for this long.
const AFTER_FAILURE: Duration = Duration::from_secs(2);

/// A credential with its expiry.
#[derive(Clone, Debug)]
pub(in crate::provider) struct Fresh<T> {
    /// The credential.
    pub value: T,
    /// When it expires.
    pub expires: Timestamp,
}

/// The newest credential of one source. Many callers may ask at once: one of them fetches, and all get its result, a failure too.
#[derive(Debug)]
pub(in crate::provider) struct Tokens<T>(Mutex<State<T>>);

#[derive(Debug)]
struct State<T> {
    fresh: Option<Fresh<T>>,
    failed: Option<(Instant, Error)>,
}

impl<T> Default for Tokens<T> {
    fn default() -> Self {
        Self(Mutex::new(State { fresh: None, failed: None }))
    }
}

impl<T: Clone> Tokens<T> {
    /// The credential, fetched anew if it expires soon. If that fails, the former one is used until it expires. `fetch` must end
    /// by itself.
    pub async fn get(&self, fetch: impl AsyncFnOnce() -> Result<Fresh<T>, Error>) -> Result<T, Error> {
        let mut state = self.0.lock().await;
        let now = Timestamp::now();
        let lasts = |fresh: &&Fresh<T>, margin| fresh.expires > now + margin;
        if let Some(fresh) = state.fresh.as_ref().filter(|fresh| lasts(fresh, MARGIN)) {
            return Ok(fresh.value.clone());
        }
        let failure = state.failed.as_ref().filter(|(at, _)| at.elapsed() < AFTER_FAILURE);
        let outcome = match failure {
            Some((_, error)) => Err(error.clone()),
            None => fetch().await,
        };
        match outcome {
            Ok(fresh) => {
                *state = State { fresh: Some(fresh.clone()), failed: None };
                Ok(fresh.value)
            }
            Err(error) => {
                if failure.is_none() {
                    state.failed = Some((Instant::now(), error.clone()));
                }
                let former = state.fresh.as_ref().filter(|fresh| lasts(fresh, Duration::ZERO));
                former.map(|fresh| fresh.value.clone()).ok_or(error)
            }
        }
    }

    /// The cloud refuses a credential: the next caller fetches another one. `is_refused` compares, as a late refusal of a former
    /// credential says nothing about its successor.
    pub async fn forget(&self, is_refused: impl FnOnce(&T) -> bool) {
        self.0.lock().await.fresh.take_if(|fresh| is_refused(&fresh.value));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;
    use crate::provider::ErrorClass;

    #[derive(Default)]
    struct Source {
        tokens: Tokens<u32>,
        fetched: AtomicU32,
    }

    impl Source {
        async fn get(&self, lasts: Duration) -> Result<u32, Error> {
            self.tokens
                .get(async || {
                    let value = self.fetched.fetch_add(1, Relaxed) + 1;
                    tokio::task::yield_now().await;
                    Ok(Fresh { value, expires: Timestamp::now() + lasts })
                })
                .await
        }

        async fn fail(&self) -> Result<u32, Error> {
            self.tokens
                .get(async || {
                    self.fetched.fetch_add(1, Relaxed);
                    Err(Error::new(ErrorClass::Unauthorized, "no"))
                })
                .await
        }
    }

    #[tokio::test]
    async fn one_fetches_for_all_until_the_token_is_about_to_end() {
        let source = Source::default();
        let all = futures::future::join_all((0..20).map(|_| source.get(2 * MARGIN))).await;
        assert!(all.into_iter().all(|token| token == Ok(1)));
        source.tokens.forget(|token| *token == 0).await;
        assert_eq!(source.get(2 * MARGIN).await, Ok(1), "another one was refused");
        source.tokens.forget(|token| *token == 1).await;
        assert_eq!(source.get(MARGIN / 2).await, Ok(2));
        // It expires within the margin.
        assert_eq!(source.get(2 * MARGIN).await, Ok(3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_counts_for_all_for_a_while_and_the_former_token_as_long_as_it_lasts() {
        let source = Source::default();
        let all = futures::future::join_all((0..20).map(|_| source.fail())).await;
        assert!(all.iter().all(Result::is_err));
        assert_eq!(source.fetched.load(Relaxed), 1);
        tokio::time::advance(AFTER_FAILURE).await;
        assert_eq!(source.get(MARGIN / 2).await, Ok(2));
        assert_eq!(source.fail().await, Ok(2), "the former one still counts");
    }
}
