//! A certificate in two files, read again when they change.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{CertificateError, Serving};
use crate::watched_files::{self, SLOW_READ, time_to_read};

/// Why the files have no usable certificate.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// One of them cannot be read.
    #[error("reading {path} failed: {problem}", path = .path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        problem: io::Error,
    },
    /// Their content is unusable.
    #[error("{certificate} and {key}: {problem}", certificate = .certificate.display(), key = .key.display())]
    Content {
        /// The certificate's file.
        certificate: PathBuf,
        /// The private key's file.
        key: PathBuf,
        /// What is wrong.
        problem: CertificateError,
    },
}

/// A certificate and its private key, in PEM.
#[derive(Clone, Debug)]
pub struct Files {
    /// The certificate's file (`--tls-cert`).
    pub certificate: PathBuf,
    /// The private key's file (`--tls-key`).
    pub key: PathBuf,
}

impl Files {
    /// Serves the certificate in the files. Returns whether it is new.
    pub fn show(&self, serving: &Serving) -> Result<bool, FileError> {
        let read = |path: &Path| {
            fs::read(path).map_err(|problem| FileError::Read { path: path.to_owned(), problem })
        };
        let (certificate, key) = (read(&self.certificate)?, read(&self.key)?);
        serving.show(&certificate, &key).map_err(|problem| FileError::Content {
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            problem,
        })
    }

    /// Serves the certificate in the files until `stop`. An unusable certificate is logged and does not replace a usable one.
    pub async fn follow(self, serving: Arc<Serving>, stop: CancellationToken) {
        let changed = Arc::new(Notify::new());
        // It hears as long as it lives.
        let watcher = self.listen(&changed);
        if let Err(problem) = &watcher {
            warn!(%problem, "the system does not report changes of the certificate's files; the webhook reads them \
                 every {SLOW_READ:?}");
        }
        let mut trouble = None;
        loop {
            match self.show(&serving) {
                Ok(is_new) => {
                    trouble = None;
                    if is_new {
                        info!(file = %self.certificate.display(), "the webhook uses a new certificate");
                    }
                }
                Err(problem) => {
                    let problem = problem.to_string();
                    if trouble.as_ref() != Some(&problem) {
                        warn!(
                            problem,
                            "the certificate's files cannot be used; the webhook keeps the last good \
                             certificate"
                        );
                    }
                    trouble = Some(problem);
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = time_to_read(&changed, SLOW_READ) => {}
            }
        }
    }

    /// Watches the folders: a kubelet replaces a link there and does not write the files.
    fn listen(&self, changed: &Arc<Notify>) -> notify::Result<RecommendedWatcher> {
        let mut watcher = watched_files::watcher(changed)?;
        for file in [&self.certificate, &self.key] {
            let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
            watcher.watch(folder.unwrap_or(Path::new(".")), RecursiveMode::NonRecursive)?;
        }
        Ok(watcher)
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::symlink, time::Duration};

    use rcgen::{CertifiedKey, generate_simple_self_signed};
    use tempfile::TempDir;
    use tokio::time::{Instant, sleep};

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(20);

    /// Mounts another pair as a kubelet does: a new folder, and a replaced link.
    fn mount(folder: &Path, version: &str, complete: bool) {
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed([version.to_owned()]).unwrap();
        fs::create_dir(folder.join(version)).unwrap();
        fs::write(folder.join(version).join("tls.crt"), cert.pem()).unwrap();
        let key = if complete { signing_key.serialize_pem() } else { String::new() };
        fs::write(folder.join(version).join("tls.key"), key).unwrap();
        symlink(version, folder.join("..data_tmp")).unwrap();
        fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
    }

    /// A folder with a mounted certificate, and its files.
    fn mounted() -> (TempDir, Files) {
        let folder = TempDir::new().unwrap();
        mount(folder.path(), "one", true);
        for name in ["tls.crt", "tls.key"] {
            symlink(Path::new("..data").join(name), folder.path().join(name)).unwrap();
        }
        let files = Files { certificate: folder.path().join("tls.crt"), key: folder.path().join("tls.key") };
        (folder, files)
    }

    #[tokio::test]
    async fn a_remounted_certificate_is_served_unless_it_is_broken() {
        let (folder, files) = mounted();
        let (serving, stop) = (Arc::new(Serving::default()), CancellationToken::new());
        assert!(files.show(&serving).unwrap());
        let shown = || serving.shown().unwrap().cert.clone();
        let first = shown();
        let follower = tokio::spawn(files.clone().follow(Arc::clone(&serving), stop.clone()));
        mount(folder.path(), "broken", false);
        assert!(files.show(&serving).unwrap_err().to_string().contains("no unencrypted private key in PEM"));
        assert!(shown() == first, "the last good one is shown");
        mount(folder.path(), "two", true);
        // Well before the next slow reading.
        let until = Instant::now() + DEADLINE;
        while shown() == first {
            assert!(Instant::now() < until, "the new certificate is not shown");
            sleep(Duration::from_millis(20)).await;
        }
        stop.cancel();
        tokio::time::timeout(DEADLINE, follower).await.unwrap().unwrap();
        fs::remove_file(folder.path().join("tls.key")).unwrap();
        assert!(files.show(&serving).unwrap_err().to_string().contains("tls.key"));
    }

    #[tokio::test]
    async fn a_folder_that_never_rests_delays_neither_the_certificate_nor_the_stop() {
        let (folder, files) = mounted();
        let (serving, stop) = (Arc::new(Serving::default()), CancellationToken::new());
        assert!(files.show(&serving).unwrap());
        let shown = || serving.shown().unwrap().cert.clone();
        let first = shown();
        let unrest = tokio::spawn({
            let other = folder.path().join("other");
            async move {
                loop {
                    fs::write(&other, "").unwrap();
                    sleep(Duration::from_millis(20)).await;
                }
            }
        });
        let follower = tokio::spawn(files.follow(Arc::clone(&serving), stop.clone()));
        mount(folder.path(), "two", true);
        let until = Instant::now() + DEADLINE;
        while shown() == first {
            assert!(Instant::now() < until, "the new certificate is not shown");
            sleep(Duration::from_millis(20)).await;
        }
        // By now the follower waits again until the folder rests.
        sleep(Duration::from_millis(100)).await;
        stop.cancel();
        tokio::time::timeout(Duration::from_secs(1), follower).await.unwrap().unwrap();
        unrest.abort();
    }
}
