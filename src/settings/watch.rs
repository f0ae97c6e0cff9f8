//! Reloads settings while the operator runs.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::{Folders, Raw, SettingsError, Snapshot};

/// How long a folder must rest after a change before it is read: the kubelet swaps at once, but people write file by
/// file.
const REST: Duration = Duration::from_millis(200);

/// A folder that never rests is read all the same after this time.
const LONGEST_UNREST: Duration = Duration::from_secs(2);

/// How often the folders are read although nothing was heard, in case the system lost a notice.
const SLOW_READ: Duration = Duration::from_secs(60);

/// How often they are read while the system gives no notices, for instance of a folder that does not exist yet.
const UNWATCHED_READ: Duration = Duration::from_secs(5);

/// What is in force, and what is wrong.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The last good settings; none if there never were any.
    pub current: Option<Arc<Snapshot>>,
    /// Why what the folders hold now is not in force; none if it is.
    pub rejected: Option<Arc<SettingsError>>,
    /// Counts the snapshots that came into force, from 1; 0 while there was none.
    pub generation: u64,
}

impl State {
    /// Whether deletions can go by what the folders hold now; none where that is for a provider on which nothing is deleted.
    pub fn usable(&self) -> Option<bool> {
        match self.rejected.as_deref() {
            Some(SettingsError::UnsupportedProvider { .. }) => None,
            _ => Some(self.problem().is_none()),
        }
    }

    /// Why deletions cannot go by what the folders hold now, if so.
    pub fn problem(&self) -> Option<String> {
        let rejected = self.rejected.as_ref().map(ToString::to_string);
        rejected.or_else(|| self.current.as_ref()?.obstacle())
    }
}

/// Reads `folders` once before it returns, then keeps the state up to date until `stop` or until every receiver is
/// gone.
///
/// Bad settings never take the place of good ones. Equal content is not a new generation. Every state that is published
/// was logged and given to `on_change` before, the first one included; `on_change` must not block.
///
/// Changes are heard from the system (inotify); the folders are also read every minute, in case a notice was lost, and
/// every five seconds while they cannot be watched.
pub async fn watch(
    folders: Folders,
    stop: CancellationToken,
    mut on_change: impl FnMut(&State) + Send + 'static,
) -> (watch::Receiver<State>, JoinHandle<()>) {
    let reader = Arc::new(Reader { folders, changed: Arc::default(), watcher: Mutex::default() });
    let mut keeper = Keeper::default();
    keeper.take(&reader).await;
    on_change(&keeper.state);
    let (sender, receiver) = watch::channel(keeper.state.clone());

    let task = tokio::spawn(async move {
        loop {
            let pause = if keeper.deafness.is_some() { UNWATCHED_READ } else { SLOW_READ };
            tokio::select! {
                () = stop.cancelled() => return,
                () = sender.closed() => return,
                () = reader.changed.notified() => rest(&reader.changed).await,
                () = sleep(pause) => {}
            }
            if keeper.take(&reader).await {
                on_change(&keeper.state);
                sender.send_replace(keeper.state.clone());
            }
        }
    });
    (receiver, task)
}

/// Returns when no change was heard for [`REST`], or after [`LONGEST_UNREST`].
async fn rest(changed: &Notify) {
    let resting = async { while timeout(REST, changed.notified()).await.is_ok() {} };
    // Whether it rests or not, it is read now.
    let _ = timeout(LONGEST_UNREST, resting).await;
}

/// Holds what is in force against what is read.
#[derive(Default)]
struct Keeper {
    /// What the current snapshot was parsed from.
    raw: Raw,
    state: State,
    /// Why changes are not heard, to say it once.
    deafness: Option<String>,
}

impl Keeper {
    /// Reads the folders. Returns whether the state changed; the first reading always changes it.
    async fn take(&mut self, reader: &Arc<Reader>) -> bool {
        let (heard, raw) = reader.read().await;
        let deafness = heard.err();
        if let Some(problem) = deafness.as_ref().filter(|problem| self.deafness.as_ref() != Some(problem)) {
            warn!(
                problem,
                "changes of settings are not heard from the system; reading them every {UNWATCHED_READ:?}"
            );
        }
        self.deafness = deafness;
        let news = self.accept(raw);
        if news {
            self.announce(reader);
        }
        news
    }

    /// Takes over what is new and good. Returns whether the state changed.
    fn accept(&mut self, raw: Result<Raw, SettingsError>) -> bool {
        let parsed = raw.and_then(|raw| {
            if self.state.current.is_some() && self.raw.same_as(&raw) {
                return Ok(None);
            }
            Snapshot::parse(&raw).map(|snapshot| Some((raw, snapshot)))
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

    fn announce(&self, reader: &Reader) {
        let folder = reader.folders.settings.display();
        let State { current, rejected, generation } = &self.state;
        match (rejected, current) {
            (Some(error), Some(_)) => {
                error!(%folder, generation, %error, "settings rejected; the last good ones stay in force");
            }
            (Some(error), None) => error!(%folder, %error, "settings rejected; none are in force"),
            (None, Some(snapshot)) => {
                info!(%folder, generation, provider = %snapshot.provider.provider(), "settings in force");
                for warning in &snapshot.warnings {
                    warn!(%folder, "{warning}");
                }
                if let Some(obstacle) = snapshot.obstacle() {
                    error!(%folder, "{obstacle}");
                }
            }
            (None, None) => {}
        }
    }
}

/// Reads the folders and hears of changes to them.
struct Reader {
    folders: Folders,
    /// Told of every change; many count as one.
    changed: Arc<Notify>,
    watcher: Mutex<Option<RecommendedWatcher>>,
}

impl Reader {
    /// Whether further changes will be heard, else why not; and what the folders hold.
    async fn read(self: &Arc<Self>) -> (Result<(), String>, Result<Raw, SettingsError>) {
        let reader = Arc::clone(self);
        // First listen, then read: a change in between is heard, and read again.
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
        let mut watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner);
        let watcher = match &mut *watcher {
            Some(watcher) => watcher,
            none => {
                let changed = Arc::clone(&self.changed);
                let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
                    // After an error nobody knows what was missed.
                    if event.is_ok_and(|event| is_reading(event.kind)) {
                        return;
                    }
                    changed.notify_one();
                });
                none.insert(watcher.map_err(|error| error.to_string())?)
            }
        };
        [Some(&self.folders.settings), self.folders.credentials.as_ref()].into_iter().flatten().try_for_each(
            |folder| watcher.watch(folder, RecursiveMode::NonRecursive).map_err(|error| error.to_string()),
        )
    }
}

/// Whether an event tells of reading alone, such as our own.
fn is_reading(kind: EventKind) -> bool {
    matches!(kind, EventKind::Access(access) if access != AccessKind::Close(AccessMode::Write))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use std::sync::mpsc;

    use tempfile::TempDir;
    use tokio::time::Instant;

    use super::*;
    use crate::settings::ProviderSettings;

    const DEADLINE: Duration = Duration::from_secs(20);

    struct Fixture {
        folder: TempDir,
        states: watch::Receiver<State>,
        told: mpsc::Receiver<State>,
        stop: CancellationToken,
        task: JoinHandle<()>,
    }

    impl Fixture {
        async fn start(folder: TempDir, below: &str) -> Self {
            let folders = Folders { settings: folder.path().join(below), credentials: None };
            let (tell, told) = mpsc::channel();
            let stop = CancellationToken::new();
            let on_change = move |state: &State| tell.send(state.clone()).unwrap();
            let (states, task) = watch(folders, stop.clone(), on_change).await;
            Self { folder, states, told, stop, task }
        }

        /// Writes at once, so that a slow machine shows no half-written file.
        fn write(&self, name: &str, content: &str) {
            let draft = self.folder.path().join("..draft");
            fs::write(&draft, content).unwrap();
            fs::rename(draft, self.folder.path().join(name)).unwrap();
        }

        async fn until(&mut self, condition: impl Fn(&State) -> bool) -> State {
            let found = tokio::time::timeout(DEADLINE, self.states.wait_for(|state| condition(state)));
            found.await.expect("no such state before the deadline").unwrap().clone()
        }
    }

    fn pool(state: &State) -> String {
        let ProviderSettings::Libvirt(libvirt) = &state.current.as_ref().unwrap().provider;
        libvirt.pool.clone()
    }

    fn swap(folder: &Path, version: &str, files: &[(&str, &str)]) {
        fs::create_dir(folder.join(version)).unwrap();
        for (name, content) in files {
            fs::write(folder.join(version).join(name), content).unwrap();
        }
        symlink(version, folder.join("..data_tmp")).unwrap();
        fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
    }

    #[tokio::test]
    async fn a_swap_of_the_mounted_folder_comes_into_force() {
        let folder = TempDir::new().unwrap();
        swap(folder.path(), "..1", &[("CLOUD_PROVIDER", "libvirt"), ("LIBVIRT_POOL", "one")]);
        let mut fixture = Fixture::start(folder, "").await;
        let first = fixture.states.borrow().clone();
        assert_eq!((pool(&first).as_str(), first.generation), ("one", 1));
        swap(fixture.folder.path(), "..2", &[("CLOUD_PROVIDER", "libvirt"), ("LIBVIRT_POOL", "two")]);
        let second = fixture.until(|state| state.generation == 2).await;
        assert_eq!(pool(&second), "two");
        assert!(second.rejected.is_none());
    }

    #[tokio::test]
    async fn the_last_good_settings_stay_in_force_until_the_bad_ones_are_mended() {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("CLOUD_PROVIDER"), "libvirt\n").unwrap();
        let mut fixture = Fixture::start(folder, "").await;

        fixture.write("CLOUD_PROVIDER", "opnstack");
        let bad = fixture.until(|state| state.rejected.is_some()).await;
        assert_eq!((pool(&bad).as_str(), bad.generation), ("default", 1));
        assert_eq!(*bad.rejected.unwrap(), SettingsError::UnknownProvider { name: "opnstack".into() });

        fixture.write("CLOUD_PROVIDER", "libvirt");
        let mended = fixture.until(|state| state.rejected.is_none()).await;
        assert_eq!(mended.generation, 1, "the content is what it was");

        fixture.write("LIBVIRT_POOL", "other");
        let newer = fixture.until(|state| state.generation == 2).await;
        assert_eq!(pool(&newer), "other");

        let told: Vec<_> =
            fixture.told.try_iter().map(|told| (told.generation, told.rejected.is_some())).collect();
        assert_eq!(told, [(1, false), (1, true), (1, false), (2, false)]);
    }

    #[tokio::test]
    async fn equal_content_is_no_new_generation() {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("CLOUD_PROVIDER"), "libvirt").unwrap();
        let mut fixture = Fixture::start(folder, "").await;
        fixture.write("CLOUD_PROVIDER", "libvirt\n");
        fixture.write("LIBVIRT_POOL", "pool");
        let state = fixture.until(|state| pool(state) == "pool").await;
        assert_eq!(state.generation, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn files_written_one_by_one_are_read_together() {
        let changed = Arc::new(Notify::new());
        for (changes, expected) in [(1, 200), (6, 5 * 150 + 200), (100, 2000)] {
            let start = Instant::now();
            let writer = tokio::spawn({
                let changed = Arc::clone(&changed);
                async move {
                    for _ in 1..changes {
                        sleep(Duration::from_millis(150)).await;
                        changed.notify_one();
                    }
                }
            });
            rest(&changed).await;
            assert_eq!(start.elapsed().as_millis(), expected, "{changes} changes");
            writer.abort();
        }
    }

    #[tokio::test]
    async fn a_folder_that_comes_later_is_found() {
        let folder = TempDir::new().unwrap();
        let mut fixture = Fixture::start(folder, "later").await;
        let state = fixture.states.borrow().clone();
        assert!(state.current.is_none() && state.generation == 0);
        assert!(matches!(state.rejected.as_deref(), Some(SettingsError::NoFolder { .. })), "{state:?}");
        fs::create_dir(fixture.folder.path().join("later")).unwrap();
        fixture.write("later/CLOUD_PROVIDER", "libvirt");
        fixture.until(|state| state.current.is_some() && state.rejected.is_none()).await;
        // Now it is watched: a change comes well before the next slow reading.
        fixture.write("later/LIBVIRT_POOL", "pool");
        fixture.until(|state| pool(state) == "pool").await;
    }

    #[tokio::test]
    async fn the_task_ends_on_stop_and_without_receivers() {
        for stopped in [true, false] {
            let folder = TempDir::new().unwrap();
            fs::write(folder.path().join("CLOUD_PROVIDER"), "libvirt").unwrap();
            let Fixture { folder: _folder, told: _told, states, stop, task } =
                Fixture::start(folder, "").await;
            if stopped {
                stop.cancel();
            } else {
                drop(states);
            }
            tokio::time::timeout(DEADLINE, task).await.unwrap().unwrap();
        }
    }

    #[test]
    fn equal_content_and_equal_errors_are_no_news() {
        let mut keeper = Keeper::default();
        let raw = |provider: &str| Raw {
            settings: [("CLOUD_PROVIDER".to_owned(), provider.into())].into(),
            ..Raw::default()
        };
        assert!(keeper.accept(Ok(raw("aws"))));
        assert!(!keeper.accept(Ok(raw("aws"))));
        assert!(keeper.accept(Ok(raw("libvirt"))));
        assert!(!keeper.accept(Ok(raw("libvirt"))));
        assert!(keeper.accept(Ok(raw("aws"))));
        assert!(keeper.accept(Ok(raw("libvirt"))));
        assert_eq!(keeper.state.generation, 1);
    }

    #[test]
    fn settings_are_usable_when_deletions_can_go_by_them() {
        let mut keeper = Keeper::default();
        for (provider, uris, usable) in [
            ("aws", ["a", "a"], None),
            ("opnstack", ["a", "a"], Some(false)),
            ("libvirt", ["test:///default", "test:///default"], Some(true)),
            ("libvirt", ["test:///default", "test:///other"], Some(false)),
            ("libvirt", ["nonsense", "nonsense"], Some(false)),
            ("aws", ["a", "a"], None),
            ("", ["", ""], Some(false)),
        ] {
            let [uri, other] = uris.map(|uri| ("LIBVIRT_URI".to_owned(), uri.into()));
            let settings = [("CLOUD_PROVIDER".to_owned(), provider.into()), uri].into();
            assert!(keeper.accept(Ok(Raw { settings, credentials: [other].into() })));
            assert_eq!(keeper.state.usable(), usable, "{provider} {uris:?}");
            assert_eq!(keeper.state.problem().is_none(), usable == Some(true), "{provider} {uris:?}");
        }
    }

    #[test]
    fn our_own_reading_is_not_a_change() {
        assert!(is_reading(EventKind::Access(AccessKind::Open(AccessMode::Any))));
        assert!(is_reading(EventKind::Access(AccessKind::Close(AccessMode::Read))));
        assert!(!is_reading(EventKind::Access(AccessKind::Close(AccessMode::Write))));
        assert!(!is_reading(EventKind::Any));
    }
}
