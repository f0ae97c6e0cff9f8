//! Reads a mounted `ConfigMap` or `Secret` as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use secrecy::{ExposeSecret, SecretString};

use super::{FolderRole, SettingsError};

/// Bytes of names and values in one folder: what the API server accepts in one `ConfigMap` or `Secret`.
pub(super) const FOLDER_LIMIT: usize = 1024 * 1024;

/// The most problems that are reported of one folder: a user who named the wrong folder need not read about each file in it.
const PROBLEMS_LIMIT: usize = 100;

/// How many times a folder that keeps changing is read before that is an error.
const ATTEMPTS: u32 = 4;

/// Where settings are mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folders {
    /// The `ConfigMap`: `--settings-dir`.
    pub settings: PathBuf,
    /// The `Secret`: `--credentials-dir`. It may be empty but must exist if named, because a forgotten mount must not look like
    /// missing rights in the cloud.
    pub credentials: Option<PathBuf>,
}

/// The text of a pair of folders, each as it was at one moment: file name to content without trailing line ends.
#[derive(Clone, Debug, Default)]
pub struct Raw {
    /// The `ConfigMap`'s.
    pub settings: BTreeMap<String, SecretString>,
    /// The `Secret`'s.
    pub credentials: BTreeMap<String, SecretString>,
    /// The names of those of these files that end with a line end, which cloud-api-adaptor takes as part of the value.
    pub line_ends: BTreeSet<String>,
}

impl Raw {
    /// The names of all settings in both.
    pub(super) fn names(&self) -> BTreeSet<&str> {
        self.settings.keys().chain(self.credentials.keys()).map(String::as_str).collect()
    }

    /// Reads both folders; blocks on the file system. All or nothing: the first problem of [`Raw::examine`] is the error.
    ///
    /// Names that start with `..` are the kubelet's own, and folders are not settings: both are left out.
    pub fn read(folders: &Folders) -> Result<Self, SettingsError> {
        let (raw, problems) = Self::examine(folders);
        problems.into_iter().next().map_or(Ok(raw), Err)
    }

    /// Reads what can be read of both folders, and reports what cannot; blocks on the file system. Reports at most a hundred
    /// problems of each folder.
    pub fn examine(folders: &Folders) -> (Self, Vec<SettingsError>) {
        let settings = read_folder(&folders.settings, FolderRole::Settings);
        let credentials = folders.credentials.as_ref().map(|path| read_folder(path, FolderRole::Credentials));
        let settings = settings.unwrap_or_else(Reading::failed);
        let credentials = credentials.map_or_else(Reading::default, |it| it.unwrap_or_else(Reading::failed));
        let problems = [settings.problems, credentials.problems].concat();
        let line_ends = settings.line_ends.into_iter().chain(credentials.line_ends).collect();
        (Self { settings: settings.files, credentials: credentials.files, line_ends }, problems)
    }

    pub(super) fn same_as(&self, other: &Self) -> bool {
        let same = |one: &BTreeMap<String, SecretString>, two: &BTreeMap<String, SecretString>| {
            let equal = |name: &String, value: &SecretString| {
                two.get(name).is_some_and(|other| other.expose_secret() == value.expose_secret())
            };
            one.len() == two.len() && one.iter().all(|(name, value)| equal(name, value))
        };
        same(&self.settings, &other.settings)
            && same(&self.credentials, &other.credentials)
            && self.line_ends == other.line_ends
    }
}

/// The readable files of a folder, and the problems of the others.
#[derive(Default)]
struct Reading {
    files: BTreeMap<String, SecretString>,
    line_ends: Vec<String>,
    problems: Vec<SettingsError>,
}

impl Reading {
    fn failed(problem: SettingsError) -> Self {
        Self { problems: vec![problem], ..Self::default() }
    }
}

fn read_folder(folder: &Path, role: FolderRole) -> Result<Reading, SettingsError> {
    match folder.metadata() {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(SettingsError::NoFolder { role, path: folder.to_owned() });
        }
        Err(error) => return Err(unreadable(folder, &error)),
    }
    let (mut source, mut unsteady) = (resolve(folder)?, None);
    for _ in 0..ATTEMPTS {
        let reading = read_files(folder, &source).unwrap_or_else(Reading::failed);
        let vanished = reading
            .problems
            .iter()
            .any(|it| matches!(it, SettingsError::Unreadable { problem: io::ErrorKind::NotFound, .. }));
        // The kubelet removes the old folder right after the swap, so a reading counts only if no swap came in between.
        let latest = resolve(folder)?;
        if latest == source && !vanished {
            return Ok(reading);
        }
        (source, unsteady) = (latest, Some(reading).filter(|reading| !reading.problems.is_empty()));
    }
    // A broken link seems to vanish at every attempt: then report the link.
    unsteady.ok_or_else(|| SettingsError::Unsteady { path: folder.to_owned() })
}

/// Where the files really are. The kubelet writes a new folder beside the old one and then swaps the link `..data`. All files
/// behind one target of that link are old, or all are new.
fn resolve(folder: &Path) -> Result<PathBuf, SettingsError> {
    match folder.join("..data").canonicalize() {
        Ok(target) => Ok(target),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(folder.to_owned()),
        Err(error) => Err(unreadable(folder, &error)),
    }
}

/// Reads the files of `source`, naming them in problems as files of `folder`, where users know them.
fn read_files(folder: &Path, source: &Path) -> Result<Reading, SettingsError> {
    let mut reading = Reading::default();
    let mut room = FOLDER_LIMIT;
    for entry in source.read_dir().map_err(|error| unreadable(folder, &error))? {
        let name = entry.map_err(|error| unreadable(folder, &error))?.file_name();
        if name.as_encoded_bytes().starts_with(b"..") {
            continue;
        }
        let path = folder.join(&name);
        match read_file(&source.join(&name), &path, name, &mut room) {
            Ok(None) => {}
            Ok(Some((name, text))) => {
                if text.has_line_end {
                    reading.line_ends.push(name.clone());
                }
                reading.files.insert(name, text.value);
            }
            Err(problem) => {
                reading.problems.push(problem);
                if reading.problems.len() == PROBLEMS_LIMIT {
                    break;
                }
            }
        }
    }
    // The system lists files in no order. The order of the same problems must be the same each time.
    reading.problems.sort_by_cached_key(ToString::to_string);
    Ok(reading)
}

/// Reads one file as text, taking what it needs from `room`; none if it is a folder.
fn read_file(
    source: &Path,
    path: &Path,
    name: OsString,
    room: &mut usize,
) -> Result<Option<(String, FileText)>, SettingsError> {
    let named = |error| unreadable(path, &error);
    // Follows links, as in a folder that someone made of links to files elsewhere.
    let about = source.metadata().map_err(named)?;
    if about.is_dir() {
        return Ok(None);
    }
    let too_large = || SettingsError::TooLarge { path: path.to_owned() };
    *room = room.checked_sub(name.len()).ok_or_else(too_large)?;
    let not_text = || SettingsError::NotText { path: path.to_owned() };
    let name = name.into_string().map_err(|_| not_text())?;
    // Opening a pipe or a device could wait for ever.
    if !about.is_file() {
        return Err(SettingsError::NotAFile { path: path.to_owned() });
    }
    let mut content = Vec::new();
    File::open(source)
        .and_then(|file| file.take(*room as u64 + 1).read_to_end(&mut content))
        .map_err(named)?;
    *room = room.checked_sub(content.len()).ok_or_else(too_large)?;
    Ok(Some((name, FileText::of(content).ok_or_else(not_text)?)))
}

/// The content of a file as text.
pub(crate) struct FileText {
    /// Without the line ends that editors leave behind.
    pub(crate) value: SecretString,
    has_line_end: bool,
}

impl FileText {
    /// `None`: the content is not UTF-8.
    pub(crate) fn of(content: Vec<u8>) -> Option<Self> {
        let mut text = String::from_utf8(content).ok()?;
        let length = text.trim_end_matches(['\n', '\r']).len();
        let has_line_end = length < text.len();
        text.truncate(length);
        Some(Self { value: SecretString::from(text), has_line_end })
    }
}

fn unreadable(path: &Path, error: &io::Error) -> SettingsError {
    SettingsError::Unreadable { path: path.to_owned(), problem: error.kind() }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tempfile::TempDir;

    use super::*;

    fn read(folder: &TempDir) -> Result<Vec<(String, String)>, SettingsError> {
        let folders = Folders { settings: folder.path().to_owned(), credentials: None };
        let raw = Raw::read(&folders)?;
        Ok(raw.settings.into_iter().map(|(name, value)| (name, value.expose_secret().to_owned())).collect())
    }

    fn write(folder: &TempDir, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        path
    }

    #[test]
    fn a_plain_folder_gives_its_files_without_trailing_line_ends() {
        let folder = TempDir::new().unwrap();
        write(&folder, "A", "one\n");
        write(&folder, "B", "two\r\n\n");
        write(&folder, "C", " three \nfour");
        write(&folder, "EMPTY", "");
        write(&folder, "..hidden", "x");
        fs::create_dir(folder.path().join("lost+found")).unwrap();
        let expected = [("A", "one"), ("B", "two"), ("C", " three \nfour"), ("EMPTY", "")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(read(&folder).unwrap(), expected);
        let folders =
            Folders { settings: folder.path().to_owned(), credentials: Some(folder.path().to_owned()) };
        assert_eq!(Raw::read(&folders).unwrap().line_ends, ["A", "B"].map(str::to_owned).into());
    }

    #[test]
    fn a_missing_folder_says_which_flag_names_it() {
        let folder = TempDir::new().unwrap();
        let (there, missing) = (folder.path().to_owned(), folder.path().join("missing"));
        let folders = Folders { settings: missing.clone(), credentials: None };
        let error = Raw::read(&folders).unwrap_err().to_string();
        assert!(error.contains("--settings-dir") && error.contains("missing"), "{error}");
        let folders = Folders { settings: there, credentials: Some(missing) };
        let error = Raw::read(&folders).unwrap_err().to_string();
        assert!(error.contains("--credentials-dir") && error.contains("Secret"), "{error}");
    }

    #[test]
    fn a_file_that_cannot_be_a_setting_is_named() {
        let folder = TempDir::new().unwrap();
        let path = write(&folder, "A", b"hush\xff");
        assert_eq!(read(&folder), Err(SettingsError::NotText { path: path.clone() }));
        fs::remove_file(&path).unwrap();

        let odd = folder.path().join(std::ffi::OsStr::from_bytes(b"\xff"));
        fs::write(&odd, "").unwrap();
        assert_eq!(read(&folder), Err(SettingsError::NotText { path: odd.clone() }));
        fs::remove_file(&odd).unwrap();

        symlink("nowhere", &path).unwrap();
        let problem = io::ErrorKind::NotFound;
        assert_eq!(read(&folder), Err(SettingsError::Unreadable { path: path.clone(), problem }));
        fs::remove_file(&path).unwrap();

        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(read(&folder), Err(SettingsError::NotAFile { path }));
    }

    #[test]
    fn all_problems_are_reported_with_the_readable_values() {
        let folder = TempDir::new().unwrap();
        write(&folder, "GOOD", "1");
        let (a, b) = (write(&folder, "A", b"\xff"), write(&folder, "B", b"\xff"));
        let missing = folder.path().join("missing");
        let folders = Folders { settings: folder.path().to_owned(), credentials: Some(missing) };
        let (raw, problems) = Raw::examine(&folders);
        assert_eq!(raw.settings.keys().collect::<Vec<_>>(), ["GOOD"]);
        let not_text = [a, b].map(|path| SettingsError::NotText { path });
        assert_eq!(problems[..2], not_text);
        assert!(
            matches!(problems[2..], [SettingsError::NoFolder { role: FolderRole::Credentials, .. }]),
            "{problems:?}"
        );
        assert_eq!(Raw::read(&folders).unwrap_err(), not_text[0]);
        (0..200).for_each(|n| _ = write(&folder, &n.to_string(), b"\xff"));
        assert_eq!(Raw::examine(&folders).1.len(), PROBLEMS_LIMIT + 1);
    }

    #[test]
    fn a_folder_holds_as_much_as_a_config_map_and_no_more() {
        let folder = TempDir::new().unwrap();
        let path = write(&folder, "A", vec![b'x'; FOLDER_LIMIT - 1]);
        assert_eq!(read(&folder).unwrap()[0].1.len(), FOLDER_LIMIT - 1);
        write(&folder, "A", vec![b'x'; FOLDER_LIMIT]);
        assert_eq!(read(&folder), Err(SettingsError::TooLarge { path }));
    }

    /// What the kubelet does: a new folder with all files, then one rename that makes `..data` point at it.
    fn swap(folder: &Path, version: usize) {
        let data = format!("..v{version}");
        fs::create_dir(folder.join(&data)).unwrap();
        for name in ["A", "B", "C", "D"] {
            fs::write(folder.join(&data).join(name), version.to_string()).unwrap();
        }
        symlink(&data, folder.join("..data_tmp")).unwrap();
        fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
        if let Some(before) = version.checked_sub(1) {
            fs::remove_dir_all(folder.join(format!("..v{before}"))).unwrap();
        }
    }

    #[test]
    fn a_reading_during_swaps_is_all_of_one_version() {
        let folder = TempDir::new().unwrap();
        swap(folder.path(), 0);
        for name in ["A", "B", "C", "D"] {
            symlink(format!("..data/{name}"), folder.path().join(name)).unwrap();
        }
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (1..400).for_each(|version| swap(folder.path(), version));
                done.store(true, Ordering::Release);
            });
            while !done.load(Ordering::Acquire) {
                // More swaps in a row than the kubelet ever makes may exhaust the attempts; a mixture is never right.
                let Ok(files) = read(&folder) else { continue };
                assert_eq!(files.len(), 4, "{files:?}");
                assert!(files.iter().all(|(_, value)| *value == files[0].1), "{files:?}");
            }
        });
        assert_eq!(read(&folder).unwrap()[3].1, "399");
    }
}
