//! Bodies of requests and of answers, within the memory that all of them may hold together.

use std::sync::Arc;

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The longest body: an API server takes objects up to 3 MiB, and a review holds one Pod.
pub(super) const MOST: usize = 4 * 1024 * 1024;

/// The bytes that each request may hold whatever the others hold: most reviews are shorter and never wait.
pub(super) const OWN: usize = 32 * 1024;

/// The bytes that larger requests may hold together beyond that. Further ones wait in their connections.
pub(super) const SHARED: usize = 8 * 1024 * 1024;

/// Room for many a review at once.
const FIRST: usize = 8 * 1024;

/// The memory that is left for those that need more than their own.
#[derive(Debug)]
pub(super) struct Memory(Arc<Semaphore>);

/// A body that has arrived, or the answer in its place. Its memory is given back with it.
#[derive(Default)]
pub(super) struct Held {
    bytes: Vec<u8>,
    permit: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Why there is no body.
#[derive(Debug, thiserror::Error)]
pub(super) enum Problem {
    /// It is longer than [`MOST`].
    #[error("the review is longer than {MOST} bytes")]
    TooLong,
    /// The connection ended, or what came is no body.
    #[error("the review did not arrive: {0}")]
    Broken(hyper::Error),
}

impl Memory {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(SHARED)))
    }

    /// Reads a body. It takes memory for bytes that arrived, not for announced ones. So a client that announces much and sends
    /// nothing takes no memory from other clients. Without free memory it waits; the caller bounds the wait.
    pub(super) async fn read<B>(&self, mut body: B) -> Result<Held, Problem>
    where
        B: Body<Data = Bytes, Error = hyper::Error> + Unpin,
    {
        let mut held = Held::default();
        let mut too_long = false;
        while let Some(frame) = body.frame().await {
            // Trailers are of no interest.
            let Ok(data) = frame.map_err(Problem::Broken)?.into_data() else { continue };
            let needed = held.bytes.len().saturating_add(data.len());
            if too_long || needed > MOST {
                // Read to its end all the same: many clients read the answer only then.
                (held, too_long) = (Held::default(), true);
                continue;
            }
            if needed > held.bytes.capacity() {
                let capacity = needed.next_power_of_two().max(FIRST);
                self.take(&mut held, capacity).await;
                held.bytes.reserve_exact(capacity - held.bytes.len());
            }
            // Copied: small pieces would each keep the buffer alive that they arrived in.
            held.bytes.extend_from_slice(&data);
        }
        if too_long { Err(Problem::TooLong) } else { Ok(held) }
    }

    /// Replaces a body with its answer. The answer may be longer, and then waits for memory, too.
    pub(super) async fn replace(&self, mut held: Held, mut answer: Vec<u8>) -> Held {
        // While it waits, it holds neither the body nor memory that the answer does not need.
        held.bytes = Vec::new();
        answer.shrink_to_fit();
        self.take(&mut held, answer.len()).await;
        held.bytes = answer;
        held
    }

    /// Takes further memory, so that `held` has enough for `capacity` bytes in all.
    async fn take(&self, held: &mut Held, capacity: usize) {
        let there = held.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = capacity.saturating_sub(OWN).saturating_sub(there);
        if more == 0 {
            return;
        }
        // The semaphore is never closed. A request for more than its total waits until the caller gives up.
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        if let Ok(more) = Arc::clone(&self.0).acquire_many_owned(more).await {
            match &mut held.permit {
                Some(permit) => permit.merge(more),
                none => *none = Some(more),
            }
        }
    }
}
