//! The end of a process: how its work and its election stop together.

use std::{io, time::Duration};

use futures::future::join;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::lease::Election;

/// How long running work may take to end after `shutdown`. Then a leader drops it, so that another process can lead.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// How long all of it may take after `shutdown`. Open scrapes get 10 s more, and Kubernetes kills after 30 s.
pub const GRACE: Duration = Duration::from_secs(15);

/// Does all the work of a program, on one thread: it waits for others, or takes microseconds, and every further thread needs memory.
///
/// It leaves behind what may never end, such as the lookup of a host's name or a read of a file system that hangs. The runtime of
/// `#[tokio::main]` would wait for that without limit, and then not even a [second signal](crate::shutdown::on_signals) ends the process.
///
/// Fails if the system gives no means for a runtime.
pub fn block_on<T>(work: impl Future<Output = T>) -> io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    Ok(done)
}

/// Runs the work of an operator and, if there is one, the election beside it.
///
/// The process takes part in the election when `ready` ends: a process that has not seen its objects yet would not be a good
/// leader. The work itself listens to `shutdown` and ends after it. Work that takes longer than [`PATIENCE`] is no longer done as
/// the leader ([`Leadership::while_leading`](crate::Leadership::while_leading)). After [`GRACE`] this returns in any case, and
/// keeps the lease: a part of this process may still act.
pub async fn run(
    work: impl Future<Output = ()>,
    election: Option<Election>,
    ready: impl Future<Output = ()>,
    shutdown: &CancellationToken,
) {
    let work_ended = CancellationToken::new();
    // At the latest it comes with the end of the work.
    let stand_down = work_ended.child_token();
    let work = async {
        work.await;
        work_ended.cancel();
    };
    let election = async {
        let Some(election) = election else { return };
        tokio::select! {
            biased;
            () = work_ended.cancelled() => {}
            () = ready => election.run(stand_down.clone(), work_ended.clone()).await,
        }
    };
    let abandoned = async {
        shutdown.cancelled().await;
        sleep(PATIENCE).await;
        stand_down.cancel();
        sleep(GRACE.saturating_sub(PATIENCE)).await;
    };
    tokio::select! {
        _ = join(work, election) => info!("stopped"),
        () = abandoned => info!("stopped; the next start continues the work in progress"),
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::Instant;

    use super::*;
    use crate::testing::ApiServer;

    fn election(server: &ApiServer) -> Election {
        Election::new(server.client(), "default", "example", "test")
    }

    #[tokio::test(start_paused = true)]
    async fn run_returns_when_the_work_ends() {
        let (shutdown, start) = (CancellationToken::new(), Instant::now());
        let server = ApiServer::expecting([]);
        run(ready(()), None, pending(), &shutdown).await;
        run(ready(()), Some(election(&server)), pending(), &shutdown).await;
        run(ready(()), Some(election(&server)), ready(()), &shutdown).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_does_not_end_is_left_after_the_grace() {
        let (shutdown, start) = (CancellationToken::new(), Instant::now());
        let server = ApiServer::expecting([]);
        shutdown.cancel();
        run(pending(), Some(election(&server)), pending(), &shutdown).await;
        assert_eq!(start.elapsed(), GRACE);
    }
}
