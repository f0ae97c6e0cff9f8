use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::mpsc;

use tempfile::TempDir;

use super::*;
use crate::provider::{CATALOGUE, libvirt};

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
        let (states, task) = watch(folders, CATALOGUE, stop.clone(), on_change).await;
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
    libvirt::Settings::read(&state.current.as_ref().unwrap().values).pool
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
async fn a_change_of_the_credentials_alone_comes_into_force() {
    let (folder, secret) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    fs::write(folder.path().join("CLOUD_PROVIDER"), "libvirt").unwrap();
    let folders = Folders { settings: folder.path().into(), credentials: Some(secret.path().into()) };
    let (mut states, _task) = watch(folders, CATALOGUE, CancellationToken::new(), |_| {}).await;
    swap(secret.path(), "..1", &[("LIBVIRT_POOL", "new")]);
    // This is before the next slow reading.
    let changed = tokio::time::timeout(DEADLINE, states.wait_for(|state| state.generation == 2));
    assert_eq!(pool(&changed.await.expect("it was not heard").unwrap()), "new");
}

#[tokio::test]
async fn the_last_good_settings_stay_in_force_until_the_bad_ones_are_corrected() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("CLOUD_PROVIDER"), "libvirt").unwrap();
    let mut fixture = Fixture::start(folder, "").await;

    fixture.write("CLOUD_PROVIDER", "opnstack");
    let bad = fixture.until(|state| state.rejected.is_some()).await;
    assert_eq!((pool(&bad).as_str(), bad.generation), ("default", 1));
    assert_eq!(
        *bad.rejected.unwrap(),
        SettingsError::UnknownProvider { name: "opnstack".into(), known: CATALOGUE.names() }
    );

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
        let Fixture { folder: _folder, told: _told, states, stop, task } = Fixture::start(folder, "").await;
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
    let mut in_force = InForce::new(CATALOGUE);
    let raw = |provider: &str| Raw {
        settings: [("CLOUD_PROVIDER".to_owned(), provider.into())].into(),
        ..Raw::default()
    };
    assert!(in_force.accept(Ok(raw("opnstack"))));
    assert!(!in_force.accept(Ok(raw("opnstack"))));
    assert!(in_force.accept(Ok(raw("libvirt"))));
    assert!(!in_force.accept(Ok(raw("libvirt"))));
    assert!(in_force.accept(Ok(raw("opnstack"))));
    assert!(in_force.accept(Ok(raw("libvirt"))));
    assert_eq!(in_force.state.generation, 1);
    let line_ends = ["CLOUD_PROVIDER".to_owned()].into();
    assert!(in_force.accept(Ok(Raw { line_ends, ..raw("libvirt") })), "cloud-api-adaptor has another value");
}

#[test]
fn settings_are_usable_when_deletions_can_use_them() {
    let mut in_force = InForce::new(CATALOGUE);
    for (provider, uris, usable) in [
        ("opnstack", ["a", "a"], false),
        ("libvirt", ["test:///default", "test:///default"], true),
        ("libvirt", ["test:///default", "test:///other"], false),
        ("libvirt", ["nonsense", "nonsense"], false),
        ("", ["", ""], false),
    ] {
        let [uri, other] = uris.map(|uri| ("LIBVIRT_URI".to_owned(), uri.into()));
        let settings = [("CLOUD_PROVIDER".to_owned(), provider.into()), uri].into();
        assert!(in_force.accept(Ok(Raw { settings, credentials: [other].into(), ..Raw::default() })));
        assert_eq!(in_force.state.usable(), usable, "{provider} {uris:?}");
        assert_eq!(in_force.state.problem().is_none(), usable, "{provider} {uris:?}");
    }
}
