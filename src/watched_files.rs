//! When to read watched files.

use std::{sync::Arc, time::Duration};

use notify::{
    EventKind, RecommendedWatcher,
    event::{AccessKind, AccessMode},
};
use tokio::{sync::Notify, time::timeout};

/// How often the files are read without a notice of a change, in case the system lost one or gives none.
pub(crate) const SLOW_READ: Duration = Duration::from_secs(60);

/// How long the files must rest after a change before they are read: the kubelet swaps at once, but people write file by file.
const REST: Duration = Duration::from_millis(200);

/// Files that never rest are read anyway after this time.
const LONGEST_UNREST: Duration = Duration::from_secs(2);

/// Notifies of each change of what it watches, and not of reading.
pub(crate) fn watcher(changed: &Arc<Notify>) -> notify::Result<RecommendedWatcher> {
    let changed = Arc::clone(changed);
    notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // After an error, notices may be missing.
        if !event.is_ok_and(|event| is_reading(event.kind)) {
            changed.notify_one();
        }
    })
}

/// Whether an event reports reading alone, such as our own.
fn is_reading(kind: EventKind) -> bool {
    matches!(kind, EventKind::Access(access) if access != AccessKind::Close(AccessMode::Write))
}

/// Returns when the files are to be read: after a change once they rest, or after `pause` without a change.
pub(crate) async fn time_to_read(changed: &Notify, pause: Duration) {
    if timeout(pause, changed.notified()).await.is_ok() {
        let resting = async { while timeout(REST, changed.notified()).await.is_ok() {} };
        // Whether they rest or not, they are read now.
        let _ = timeout(LONGEST_UNREST, resting).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;

    #[test]
    fn our_own_reading_is_not_a_change() {
        assert!(is_reading(EventKind::Access(AccessKind::Open(AccessMode::Any))));
        assert!(is_reading(EventKind::Access(AccessKind::Close(AccessMode::Read))));
        assert!(!is_reading(EventKind::Access(AccessKind::Close(AccessMode::Write))));
        assert!(!is_reading(EventKind::Any));
    }

    #[tokio::test(start_paused = true)]
    async fn files_written_one_by_one_are_read_together() {
        let changed = Arc::new(Notify::new());
        for (changes, expected) in [(0, 60_000), (1, 200), (6, 5 * 150 + 200), (100, 2000)] {
            let start = Instant::now();
            let writer = tokio::spawn({
                let changed = Arc::clone(&changed);
                async move {
                    for change in 0..changes {
                        if change > 0 {
                            sleep(Duration::from_millis(150)).await;
                        }
                        changed.notify_one();
                    }
                }
            });
            time_to_read(&changed, Duration::from_secs(60)).await;
            assert_eq!(start.elapsed().as_millis(), expected, "{changes} changes");
            writer.abort();
        }
    }
}
