//! Reloads settings while the operator runs.

use std::sync::Arc;
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::{Catalogue, Folders, Raw, SettingsError, Snapshot};
use crate::watched_files::{self, SLOW_READ, time_to_read};

/// How often they are read while the system gives no notices, for instance for a folder that does not exist yet.
const UNWATCHED_READ: Duration = Duration::from_secs(5);

/// What is in force, and what is wrong.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The last good settings; `None` if there never were any.
    pub current: Option<Arc<Snapshot>>,
    /// Why the present content of the folders is not in force; `None` if it is. cloud-api-adaptor may make VMs by it already.
    pub rejected: Option<Arc<SettingsError>>,
    /// Counts the snapshots that came into force, from 1; 0 while there was none.
    pub generation: u64,
}

impl State {
    /// Whether deletions can use the present content of the folders.
    pub fn usable(&self) -> bool {
        self.problem().is_none()
    }

    /// Why deletions cannot use the present content of the folders, if that is so. Every client may read this at `/readyz`, so it
    /// quotes no secret and no path.
    pub fn problem(&self) -> Option<String> {
        let rejected = self.rejected.as_ref().map(|rejected| rejected.message().for_status().to_owned());
        rejected.or_else(|| Some(self.current.as_ref()?.obstacle()?.for_status().to_owned()))
    }
}

/// Reads `folders`, which are for one of the clouds in `catalogue`, once before it returns. Then keeps the state up to date until
/// `stop`, or until every receiver is gone.
///
/// Returns the state, which always has a value, and the task that keeps it up to date. The task ends by itself and may be dropped.
/// Unusable settings are no error: see [`State::rejected`].
///
/// Bad settings never replace good ones. Equal content is not a new generation. Every published state, the first included, was
/// logged and given to `on_change` before. `on_change` must not block.
///
/// The system reports changes (inotify). The folders are also read every minute, in case a notice was lost, and every five
/// seconds while they cannot be watched.
pub async fn watch(
    folders: Folders,
    catalogue: Catalogue,
    stop: CancellationToken,
    mut on_change: impl FnMut(&State) + Send + 'static,
) -> (watch::Receiver<State>, JoinHandle<()>) {
    let reader = Arc::new(Reader { folders, changed: Arc::default(), watcher: Mutex::default() });
    let mut in_force = InForce::new(catalogue);
    in_force.take(&reader).await;
    on_change(&in_force.state);
    let (sender, receiver) = watch::channel(in_force.state.clone());

    let task = tokio::spawn(async move {
        loop {
            let pause = if in_force.deafness.is_some() { UNWATCHED_READ } else { SLOW_READ };
            tokio::select! {
                () = stop.cancelled() => return,
                () = sender.closed() => return,
                () = time_to_read(&reader.changed, pause) => {}
            }
            if in_force.take(&reader).await {
                on_change(&in_force.state);
                sender.send_replace(in_force.state.clone());
            }
        }
    });
    (receiver, task)
}

/// Compares the settings in force with what is read.
struct InForce {
    catalogue: Catalogue,
    /// What the current snapshot was parsed from.
    raw: Raw,
    state: State,
    /// Why changes are not heard, to say it once.
    deafness: Option<String>,
}

impl InForce {
    fn new(catalogue: Catalogue) -> Self {
        Self { catalogue, raw: Raw::default(), state: State::default(), deafness: None }
    }

    /// Reads the folders. Returns whether the state changed; the first reading always changes it.
    async fn take(&mut self, reader: &Arc<Reader>) -> bool {
        let (heard, raw) = reader.read().await;
        let deafness = heard.err();
        if let Some(problem) = deafness.as_ref().filter(|problem| self.deafness.as_ref() != Some(problem)) {
            warn!(
                problem,
                "the system does not report changes of the settings; the operator reads them every \
                 {UNWATCHED_READ:?}"
            );
        }
        self.deafness = deafness;
        let news = self.accept(raw);
        if news {
            self.announce(reader);
        }
        news
    }

    /// Takes in what is new and good. Returns whether the state changed.
    fn accept(&mut self, raw: Result<Raw, SettingsError>) -> bool {
        let parsed = raw.and_then(|raw| {
            if self.state.current.is_some() && self.raw.same_as(&raw) {
                return Ok(None);
            }
            Snapshot::parse(&raw, self.catalogue).map(|snapshot| Some((raw, snapshot)))
        });
        match parsed {
            Ok(None) => self.state.rejected.take().is_some(),
            Ok(Some((raw, snapshot))) => {
                self.raw = raw;
                let generation = self.state.generation + 1;
                self.state = State { current: Some(Arc::new(snapshot)), rejected: None, generation };
                true
            }
            Err(error) if self.state.rejected.as_deref() == Some(&error) => false,
            Err(error) => {
                self.state.rejected = Some(Arc::new(error));
                true
            }
        }
    }

    /// Logs the state.
    fn announce(&self, reader: &Reader) {
        let folder = reader.folders.settings.display();
        let State { current, rejected, generation } = &self.state;
        match (rejected, current) {
            (Some(error), Some(_)) => {
                error!(%folder, generation, %error, "the settings are invalid; the operator keeps the last good ones");
            }
            (Some(error), None) => error!(%folder, %error, "the settings are invalid; the operator has none"),
            (None, Some(snapshot)) => {
                info!(%folder, generation, provider = %snapshot.cloud(), "the operator uses these settings");
                for warning in &snapshot.warnings {
                    warn!(%folder, "{warning}");
                }
                if let Some(obstacle) = snapshot.obstacle() {
                    error!(%folder, "{}", obstacle.for_log());
                }
            }
            (None, None) => {}
        }
    }
}

/// Reads the folders and hears of changes to them.
struct Reader {
    folders: Folders,
    /// Notified of every change; many count as one.
    changed: Arc<Notify>,
    watcher: Mutex<Option<RecommendedWatcher>>,
}

impl Reader {
    /// Whether further changes will be noticed, else why not; and the content of the folders.
    async fn read(self: &Arc<Self>) -> (Result<(), String>, Result<Raw, SettingsError>) {
        let reader = Arc::clone(self);
        // First listen, then read: a change in between is noticed, and read again.
        let reading = tokio::task::spawn_blocking(move || (reader.listen(), Raw::read(&reader.folders)));
        match reading.await {
            Ok(reading) => reading,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime ends, and this task with it.
                Err(_) => std::future::pending().await,
            },
        }
    }

    /// Watches the folders, again if they were replaced since; for one that is watched already this changes nothing.
    fn listen(&self) -> Result<(), String> {
        let mut watcher = self.watcher.lock();
        let watcher = match &mut *watcher {
            Some(watcher) => watcher,
            none => none.insert(watched_files::watcher(&self.changed).map_err(|error| error.to_string())?),
        };
        [Some(&self.folders.settings), self.folders.credentials.as_ref()].into_iter().flatten().try_for_each(
            |folder| watcher.watch(folder, RecursiveMode::NonRecursive).map_err(|error| error.to_string()),
        )
    }
}

#[cfg(test)]
mod tests;
