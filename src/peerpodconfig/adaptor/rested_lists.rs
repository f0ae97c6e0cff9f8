//! Lists of Pods that are read again only after a rest *(no client)*. In a large cluster such a list has thousands of Pods, and while
//! cloud-api-adaptor rolls the status of its DaemonSet changes with each of them.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::OLDER_PODS_RESYNC;

/// A list rests this many times as long as reading it took, and at most [`OLDER_PODS_RESYNC`]: reading takes a twentieth of the time, or
/// happens once a minute.
const REST: u32 = 20;

/// The last list of each configuration. It is about Pods as of `K`.
pub(super) struct RestedLists<K, T>(Mutex<HashMap<String, Rested<K, T>>>);

struct Rested<K, T> {
    about: K,
    list: T,
    until: Instant,
}

/// A list, and when it is read again at the earliest, if what it shows may be of before now.
pub(super) type Listed<T> = (T, Option<Duration>);

impl<K, T> Default for RestedLists<K, T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: PartialEq, T: Clone> RestedLists<K, T> {
    /// The last list of this configuration while it rests, or else what `read` gives.
    pub(super) async fn get<E>(
        &self,
        config: &str,
        about: K,
        read: impl Future<Output = Result<T, E>>,
    ) -> Result<Listed<T>, E> {
        let start = Instant::now();
        if let Some(rested) = self.0.lock().get(config).filter(|it| it.about == about && start < it.until) {
            return Ok((rested.list.clone(), Some(rested.until - start)));
        }
        let list = read.await?;
        let now = Instant::now();
        let until = now + ((now - start) * REST).min(OLDER_PODS_RESYNC);
        self.0.lock().insert(config.to_owned(), Rested { about, list: list.clone(), until });
        Ok((list, None))
    }

    /// Forgets a configuration that is gone.
    pub(super) fn forget(&self, config: &str) {
        self.0.lock().remove(config);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::{advance, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_list_is_read_again_after_a_rest_or_about_something_else() {
        let lists = RestedLists::<u8, usize>::default();
        let reads = Cell::new(0);
        let get = async |config: &str, about: u8| {
            let read = async {
                sleep(Duration::from_secs(1)).await;
                Ok::<_, ()>(reads.replace(reads.get() + 1))
            };
            lists.get(config, about, read).await.unwrap()
        };
        assert_eq!(get("a", 0).await, (0, None));
        advance(Duration::from_secs(5)).await;
        assert_eq!(get("a", 0).await, (0, Some(Duration::from_secs(15))));
        assert_eq!(get("b", 0).await, (1, None), "another configuration");
        assert_eq!(get("a", 1).await, (2, None), "other Pods");
        advance(Duration::from_secs(20)).await;
        assert_eq!(get("a", 1).await, (3, None));
        lists.forget("a");
        assert_eq!(get("a", 1).await, (4, None));
    }
}
