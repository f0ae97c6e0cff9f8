//! A credential that expires, fetched once for all callers.

use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::Instant;

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

/// The newest credential of one source. Many callers may ask at once: one of them fetches. The others go on with the former
/// credential; once that has expired, all get the result, a failure too.
#[derive(Debug)]
pub(in crate::provider) struct Tokens<T> {
    state: Mutex<State<T>>,
    /// Held while one caller fetches.
    fetching: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct State<T> {
    fresh: Option<Fresh<T>>,
    failed: Option<(Instant, Error)>,
}

impl<T> Default for Tokens<T> {
    fn default() -> Self {
        let state = State { fresh: None, failed: None };
        Self { state: Mutex::new(state), fetching: tokio::sync::Mutex::default() }
    }
}

impl<T: Clone> Tokens<T> {
    /// The credential, fetched anew if it expires soon. If that fails, the former one is used until it expires. `fetch` must end
    /// by itself.
    pub async fn get(&self, fetch: impl AsyncFnOnce() -> Result<Fresh<T>, Error>) -> Result<T, Error> {
        if let Some(value) = self.lasting(MARGIN) {
            return Ok(value);
        }
        let _alone = match self.fetching.try_lock() {
            Ok(alone) => alone,
            Err(_) => match self.lasting(Duration::ZERO) {
                Some(value) => return Ok(value),
                None => self.fetching.lock().await,
            },
        };
        // Another caller may have fetched one meanwhile.
        if let Some(value) = self.lasting(MARGIN) {
            return Ok(value);
        }
        let failed = self.state.lock().failed.clone().filter(|(at, _)| at.elapsed() < AFTER_FAILURE);
        let error = match failed {
            Some((_, error)) => error,
            None => match fetch().await {
                Ok(fresh) => {
                    let value = fresh.value.clone();
                    *self.state.lock() = State { fresh: Some(fresh), failed: None };
                    return Ok(value);
                }
                Err(error) => {
                    self.state.lock().failed = Some((Instant::now(), error.clone()));
                    error
                }
            },
        };
        self.lasting(Duration::ZERO).ok_or(error)
    }

    /// The credential, if it lasts for this long.
    fn lasting(&self, margin: Duration) -> Option<T> {
        let state = self.state.lock();
        let fresh = state.fresh.as_ref().filter(|fresh| fresh.expires > Timestamp::now() + margin);
        fresh.map(|fresh| fresh.value.clone())
    }

    /// The cloud refuses a credential: the next caller fetches another one. `is_refused` compares, as a late refusal of a former
    /// credential says nothing about its successor.
    pub fn forget(&self, is_refused: impl FnOnce(&T) -> bool) {
        self.state.lock().fresh.take_if(|fresh| is_refused(&fresh.value));
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
        source.tokens.forget(|token| *token == 0);
        assert_eq!(source.get(2 * MARGIN).await, Ok(1), "another one was refused");
        source.tokens.forget(|token| *token == 1);
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

    #[tokio::test(start_paused = true)]
    async fn while_a_fetch_hangs_the_others_go_on_with_the_former_token() {
        let source = Source::default();
        assert_eq!(source.get(MARGIN / 2).await, Ok(1));
        let hanging = source.tokens.get(async || std::future::pending().await);
        let start = Instant::now();
        let others = async { (source.get(2 * MARGIN).await, source.get(2 * MARGIN).await) };
        tokio::select! {
            biased;
            _ = hanging => unreachable!(),
            others = others => assert_eq!(others, (Ok(1), Ok(1))),
            () = tokio::time::sleep(MARGIN) => panic!("they wait for the fetch"),
        }
        assert!(start.elapsed().is_zero());
        assert_eq!(source.get(2 * MARGIN).await, Ok(2), "a fetch that was dropped holds up nobody");
    }
}
