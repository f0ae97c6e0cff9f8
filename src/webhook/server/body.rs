//! Bodies of requests and of answers, within the memory that all of them may hold together.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes};
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep_until, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::BODY_TIME;

/// The longest body: an API server takes objects up to 3 MiB, and a review holds one Pod.
pub(super) const MOST: usize = 4 * 1024 * 1024;

/// The bytes that each request may hold whatever the others hold. The review of a Pod without long annotations is shorter and never
/// waits.
pub(super) const OWN: usize = 32 * 1024;

/// The bytes that larger requests may hold together beyond that. Further ones wait in their connections.
pub(super) const SHARED: usize = 8 * 1024 * 1024;

/// The bytes that answers longer than [`OWN`] may hold together beyond that. Only Pods of about a hundred containers have such answers. A
/// client may take long to read one, and must not keep bodies out meanwhile.
pub(super) const ANSWERS: usize = 1024 * 1024;

/// Room for many a review at once.
const FIRST: usize = 8 * 1024;

/// Room for a Pod with as many annotations as Kubernetes allows, such as the policy and the initdata of a confidential Pod. A review
/// that needs more than [`OWN`] takes this at once, or its length if that is less. In smaller steps, many of them would hold memory
/// while they wait for each other's.
const LARGE: usize = 512 * 1024;

/// How long a request may hold shared memory before it is answered, while others wait for memory. The body of an API server arrives
/// within milliseconds.
pub(super) const ARRIVAL_TIME: Duration = Duration::from_millis(100);

/// The memory that is left for those that need more than their own. While requests wait for it, those that hold some for longer than
/// [`ARRIVAL_TIME`] are displaced, the oldest first. So clients whose bodies do not arrive keep no others out.
#[derive(Debug)]
pub(super) struct Memory {
    shared: Arc<Semaphore>,
    answers: Arc<Semaphore>,
    holders: Holders,
    /// Of those that wait, one at a time displaces holders, and no more than it needs.
    turn: tokio::sync::Mutex<()>,
}

/// The requests that hold shared memory and are not answered yet, in the order in which they got it.
#[derive(Clone, Debug, Default)]
struct Holders(Arc<Mutex<BTreeMap<u64, Holder>>>);

#[derive(Debug)]
struct Holder {
    since: Instant,
    bytes: usize,
    displaced: CancellationToken,
}

/// A request's place among the holders, until this is dropped.
struct Place {
    holders: Holders,
    key: u64,
    displaced: CancellationToken,
}

/// A body, or the long answer in its place. Its memory is given back with it.
#[derive(Default)]
pub(super) struct Held {
    bytes: Vec<u8>,
    permit: Option<OwnedSemaphorePermit>,
    place: Option<Place>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Held {
    /// Does this unless others need the memory of this request.
    async fn unless_displaced<T>(&self, work: impl Future<Output = T>) -> Result<T, Problem> {
        match &self.place {
            None => Ok(work.await),
            Some(place) => place.displaced.run_until_cancelled(work).await.ok_or(Problem::Displaced),
        }
    }
}

/// Why there is no body, or no memory for its answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Problem {
    /// It is longer than [`MOST`].
    #[error("the review is longer than {MOST} bytes")]
    TooLong,
    /// The connection ended, or what came is no body.
    #[error("the review did not arrive: {0}")]
    Broken(hyper::Error),
    /// Others needed its memory.
    #[error("the review took longer than {ARRIVAL_TIME:?} while others waited for memory")]
    Displaced,
    /// It took too long.
    #[error("the review did not arrive within {BODY_TIME:?}")]
    Late,
}

impl Memory {
    pub(super) fn new() -> Self {
        Self {
            shared: Arc::new(Semaphore::new(SHARED)),
            answers: Arc::new(Semaphore::new(ANSWERS)),
            holders: Holders::default(),
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// Reads a body. It takes memory for bytes that arrived, not for announced ones. So a client that announces much and sends
    /// nothing takes no memory from other clients. Without free memory it waits. It gives up at `end`, and when others need its
    /// memory. A body that says it is within [`OWN`] waits for its client alone, for which its connection has a timeout: a usual review
    /// needs no timer of its own.
    pub(super) async fn read<B>(&self, body: B, end: Instant) -> Result<Held, Problem>
    where
        B: Body<Data = Bytes, Error = hyper::Error> + Unpin,
    {
        let announced = body.size_hint().upper().and_then(|it| usize::try_from(it).ok());
        let read = self.read_all(body, announced);
        if announced.is_some_and(|announced| announced <= OWN) { read.await } else { by(end, read).await }
    }

    async fn read_all<B>(&self, mut body: B, announced: Option<usize>) -> Result<Held, Problem>
    where
        B: Body<Data = Bytes, Error = hyper::Error> + Unpin,
    {
        let mut held = Held::default();
        let mut too_long = false;
        // What a client announces is taken once more than its own part has arrived.
        let large = announced.unwrap_or(LARGE).min(LARGE);
        while let Some(frame) = held.unless_displaced(body.frame()).await? {
            // Trailers are of no interest.
            let Ok(data) = frame.map_err(Problem::Broken)?.into_data() else { continue };
            let needed = held.bytes.len().saturating_add(data.len());
            if too_long || needed > MOST {
                // Read to its end all the same: many clients read the answer only then.
                (held, too_long) = (Held::default(), true);
                continue;
            }
            if needed > held.bytes.capacity() {
                let capacity = needed.next_power_of_two().max(if needed > OWN { large } else { FIRST });
                self.take(&mut held, capacity).await?;
                held.bytes.reserve_exact(capacity - held.bytes.len());
            }
            // Copied: small pieces would each keep the buffer alive that they arrived in.
            held.bytes.extend_from_slice(&data);
        }
        if too_long { Err(Problem::TooLong) } else { Ok(held) }
    }

    /// Replaces a body with its answer. A long answer waits for memory of its own, until `end`. Meanwhile it holds that of the body,
    /// and may be displaced.
    pub(super) async fn replace(
        &self,
        mut held: Held,
        mut answer: Vec<u8>,
        end: Instant,
    ) -> Result<Bytes, Problem> {
        held.bytes = Vec::new();
        if answer.capacity() > OWN {
            answer.shrink_to_fit();
        }
        let more = answer.len().saturating_sub(OWN);
        if more == 0 {
            return Ok(answer.into());
        }
        let permit = by(end, held.unless_displaced(acquire(&self.answers, more))).await?;
        Ok(Bytes::from_owner(Held { bytes: answer, permit, place: None }))
    }

    /// Takes further memory, so that `held` has enough for `capacity` bytes in all.
    async fn take(&self, held: &mut Held, capacity: usize) -> Result<(), Problem> {
        let there = held.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = capacity.saturating_sub(OWN).saturating_sub(there);
        if more == 0 {
            return Ok(());
        }
        let own = held.place.as_ref().map(|place| place.key);
        let acquired = held.unless_displaced(async {
            tokio::select! {
                biased;
                acquired = acquire(&self.shared, more) => acquired,
                never = self.displace(more, own) => match never {},
            }
        });
        if let Some(acquired) = acquired.await? {
            match &mut held.permit {
                Some(permit) => permit.merge(acquired),
                none => *none = Some(acquired),
            }
            let place = held.place.get_or_insert_with(|| self.holders.enter());
            place.holds(there + more);
        }
        Ok(())
    }

    /// Displaces others than `own`, when it is this request's turn. It has no end.
    async fn displace(&self, missing: usize, own: Option<u64>) -> Infallible {
        let _turn = self.turn.lock().await;
        loop {
            sleep_until(self.holders.displace(missing, own)).await;
        }
    }
}

/// Does this until then at the latest.
async fn by<T>(end: Instant, work: impl Future<Output = Result<T, Problem>>) -> Result<T, Problem> {
    timeout_at(end, work).await.unwrap_or(Err(Problem::Late))
}

/// Waits for memory. A request for more than the total waits until the caller gives up.
async fn acquire(memory: &Arc<Semaphore>, bytes: usize) -> Option<OwnedSemaphorePermit> {
    let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
    // The semaphore is never closed.
    Arc::clone(memory).acquire_many_owned(permits).await.ok()
}

impl Holders {
    /// A place for a request that gets memory now.
    fn enter(&self) -> Place {
        let displaced = CancellationToken::new();
        let holder = Holder { since: Instant::now(), bytes: 0, displaced: displaced.clone() };
        let mut all = self.0.lock();
        let key = all.last_key_value().map_or(0, |(last, _)| last + 1);
        all.insert(key, holder);
        Place { holders: self.clone(), key, displaced }
    }

    /// Displaces others than `own` that have had enough time, until they hold as much as is `missing`. Returns when to look again.
    fn displace(&self, mut missing: usize, own: Option<u64>) -> Instant {
        let now = Instant::now();
        for (key, holder) in &*self.0.lock() {
            if Some(*key) == own || holder.displaced.is_cancelled() {
                continue;
            }
            let end = holder.since + ARRIVAL_TIME;
            if end > now {
                return end;
            }
            holder.displaced.cancel();
            missing = missing.saturating_sub(holder.bytes);
            if missing == 0 {
                break;
            }
        }
        now + ARRIVAL_TIME
    }
}

impl Place {
    fn holds(&self, bytes: usize) {
        if let Some(holder) = self.holders.0.lock().get_mut(&self.key) {
            holder.bytes = bytes;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.holders.0.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_hold_no_memory_of_bodies() {
        let (memory, end) = (Memory::new(), Instant::now() + BODY_TIME);
        let mut answers = Vec::new();
        for _ in 0..4 {
            let mut held = Held::default();
            memory.take(&mut held, MOST).await.unwrap();
            answers.push(memory.replace(held, vec![0; ANSWERS / 4], end).await.unwrap());
        }
        assert_eq!(memory.shared.available_permits(), SHARED);
        assert!(memory.holders.0.lock().is_empty(), "they are answered");
        let left = ANSWERS - 4 * (ANSWERS / 4 - OWN);
        assert_eq!(memory.answers.available_permits(), left);
        drop(answers);
        assert_eq!(memory.answers.available_permits(), ANSWERS);
    }
}
