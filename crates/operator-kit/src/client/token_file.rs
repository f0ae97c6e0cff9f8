//! A token that a file holds, as every Pod has one.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use hyper::{
    Request,
    header::{AUTHORIZATION, HeaderValue},
};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::ClientError;

/// How often the file is read. kubelet replaces a Pod's token long before it expires.
const INTERVAL: Duration = Duration::from_secs(60);

/// Adds the token of a file to requests. kube's own does not take a line end after the token, and reads the file again by the wall
/// clock: it would use an expired token where that clock was put back.
pub(super) struct TokenFile {
    path: PathBuf,
    read: Mutex<(HeaderValue, Instant)>,
}

impl TokenFile {
    /// Reads this file.
    pub(super) fn open(path: &Path) -> Result<Self, ClientError> {
        let header = read(path).map_err(|problem| {
            ClientError::Credentials(format!("the token in {} cannot be read: {problem}", path.display()))
        })?;
        Ok(Self { path: path.to_owned(), read: Mutex::new((header, Instant::now())) })
    }

    /// The request with the token. If the file cannot be read again, the former token stays.
    pub(super) fn authorize<B>(&self, mut request: Request<B>) -> Request<B> {
        let mut known = self.read.lock();
        if known.1.elapsed() >= INTERVAL {
            *known = (read(&self.path).unwrap_or_else(|_| known.0.clone()), Instant::now());
        }
        request.headers_mut().insert(AUTHORIZATION, known.0.clone());
        request
    }
}

fn read(path: &Path) -> io::Result<HeaderValue> {
    let token = fs::read_to_string(path)?;
    let token = token.trim();
    if token.is_empty() {
        return Err(io::Error::other("it is empty"));
    }
    let mut header = HeaderValue::try_from(format!("Bearer {token}"))
        .map_err(|_| io::Error::other("it has more than one line"))?;
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_token_is_read_again_each_minute() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        fs::write(&path, "first\n").unwrap();
        let file = TokenFile::open(&path).unwrap();
        let sent = || file.authorize(Request::new(())).headers()[AUTHORIZATION].clone();
        assert_eq!(sent(), "Bearer first");
        assert!(sent().is_sensitive());
        fs::write(&path, "second").unwrap();
        assert_eq!(sent(), "Bearer first");
        advance(INTERVAL).await;
        assert_eq!(sent(), "Bearer second");
        // Perhaps it is just being written.
        fs::write(&path, "").unwrap();
        advance(INTERVAL).await;
        assert_eq!(sent(), "Bearer second");
        fs::remove_file(&path).unwrap();
        advance(INTERVAL).await;
        assert_eq!(sent(), "Bearer second");
    }

    #[test]
    fn what_is_no_token_is_refused_and_not_quoted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        assert!(TokenFile::open(&path).err().unwrap().to_string().contains("token cannot be read"));
        fs::write(&path, "a-secret\nb").unwrap();
        let problem = TokenFile::open(&path).err().unwrap().to_string();
        assert!(problem.contains("more than one line") && !problem.contains("secret"), "{problem}");
    }
}
