//! The examination of a pool, before a machine must be returned to it.

use std::{net::IpAddr, time::Duration};

use futures::future::join;
use operator_kit::Message;
use tokio::time::{Instant, timeout};

use super::Byom;
use crate::provider::{
    Error, ErrorClass, Finding,
    finding::{counted, ensure_answered},
};

/// How long reading the pool may take.
const READ: Duration = Duration::from_secs(8);

/// How long the write and the login may take in any case. They are tried at once. What reading the pool leaves of its time is theirs,
/// too.
///
/// So an examination takes at most 8 s + 10 s, whatever hangs and whatever the settings say. `check` ends it after 20 s, and would lose
/// what was found out until then.
const TRIAL: Duration = Duration::from_secs(10);

impl Byom {
    /// Reads the pool, tries a write that changes nothing, and logs in to one machine.
    pub(super) async fn examination(&self) -> Result<Vec<Finding>, Error> {
        let begun = Instant::now();
        let read = match ensure_answered(self.in_time(READ, self.store.find()).await)? {
            Err(error) => return Ok(vec![Finding::tried("read the pool", Err(error))]),
            Ok(None) => {
                let text = format!(
                    "the ConfigMap {} does not exist: cloud-api-adaptor makes it when it first runs; if it has run, correct \
                     POOL_CONFIGMAP_NAME or POOL_NAMESPACE",
                    self.store.full_name
                );
                return Ok(vec![Finding::untried("read the pool", text)]);
            }
            Ok(Some(read)) => read,
        };
        let (name, pool) = (&self.store.full_name, &read.pool);
        let contents = format!(
            "the ConfigMap {name} has {} allocated and {}",
            pool.allocations.len(),
            counted(pool.available.len(), "available machine")
        );
        // A machine without a Pod is disturbed least.
        let allocated = pool.allocations.iter().map(|allocation| &allocation.address);
        let machine = pool.available.iter().chain(allocated).next().copied();
        let left = (READ + TRIAL).saturating_sub(begun.elapsed());
        // Boxed, as `join` moves its futures, and this one is large.
        let trials =
            join(self.in_time(left, self.store.try_write(&read)), Box::pin(self.reach(machine, left)));
        let (written, machine) = trials.await;
        let written = written.map(|()| format!("the ConfigMap {name} may be updated (dry run)"));
        let read = Finding::tried("read the pool", Ok(contents));
        Ok(vec![read, Finding::tried("return machines to the pool", written), machine])
    }

    /// Whether the machine at this address can be told to restart. It may take this long to answer.
    async fn reach(&self, machine: Option<IpAddr>, most: Duration) -> Finding {
        let Some(address) = machine else {
            return Finding::untried("restart machines", "the pool has no machine");
        };
        let answer = self.access.log_in(address, self.access.patience.min(most)).await;
        let answer = answer.map(|_| format!("{} can log in to {address} by SFTP", self.access.user));
        let refused = |problem| {
            let text = format!("logging in to {address} failed: {problem}");
            Error::new(ErrorClass::Refused, Message::public(text))
        };
        Finding::tried("restart machines", answer.map_err(refused))
    }

    /// The API server's answer, if it comes within this time.
    async fn in_time<T>(
        &self,
        most: Duration,
        answer: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        timeout(most, answer).await.unwrap_or_else(|_| {
            let problem = format!("the API server did not answer within {most:?}");
            Err(self.store.error(ErrorClass::Transient, &problem, &problem))
        })
    }
}
