//! Bodies of requests, within what all of them together may hold.

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes};
use tokio::sync::{Semaphore, SemaphorePermit};

/// The longest body: an API server takes objects up to 3 MiB, and a review holds one Pod.
pub(super) const MOST: usize = 4 * 1024 * 1024;

/// What all bodies together may hold, in bytes; what arrives beyond waits in its connection.
const ALL: usize = 16 * 1024 * 1024;

/// Room for most reviews at once.
const FIRST: usize = 8 * 1024;

/// The memory that is left for bodies.
#[derive(Debug)]
pub(super) struct Memory(Semaphore);

/// A body that has arrived. Its memory is given back with it.
#[derive(Default)]
pub(super) struct Held<'a> {
    pub(super) bytes: Vec<u8>,
    permit: Option<SemaphorePermit<'a>>,
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
        Self(Semaphore::new(ALL))
    }

    /// Reads a body. Memory is taken for what arrives, not for what was announced: a client that announces much and sends
    /// nothing takes none from the others. It waits where there is none; the caller bounds the wait.
    pub(super) async fn read<B>(&self, mut body: B) -> Result<Held<'_>, Problem>
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
                // Read to its end all the same: many a client looks for the answer only then.
                (held, too_long) = (Held::default(), true);
                continue;
            }
            if needed > held.bytes.capacity() {
                self.grow(&mut held, needed.next_power_of_two().max(FIRST)).await;
            }
            // Copied: small pieces would each keep the buffer alive that they arrived in.
            held.bytes.extend_from_slice(&data);
        }
        if too_long { Err(Problem::TooLong) } else { Ok(held) }
    }

    async fn grow<'a>(&'a self, held: &mut Held<'a>, capacity: usize) {
        // At most 4 MiB. The semaphore is never closed, so there always is a permit in the end.
        let more = u32::try_from(capacity - held.bytes.capacity()).unwrap_or(u32::MAX);
        if let Ok(more) = self.0.acquire_many(more).await {
            match &mut held.permit {
                Some(permit) => permit.merge(more),
                none => *none = Some(more),
            }
        }
        held.bytes.reserve_exact(capacity - held.bytes.len());
    }
}
