//! Parts that the credentials of several clouds share.

use std::{env, io, net::IpAddr};

use hyper::Uri;
use operator_kit::Message;
use secrecy::SecretString;
use tokio::{fs::File, io::AsyncReadExt as _};

use crate::{
    provider::{Error, ErrorClass},
    settings::Malformed,
};

/// The longest file that holds a credential, in bytes.
const LONGEST_FILE: u64 = 64 << 10;

/// A variable of the environment that is not empty.
pub(in crate::provider) fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Whether credentials may be sent to this URL: by https, or to a loopback address.
pub(in crate::provider) fn is_safe(url: &str) -> bool {
    let Ok(uri) = url.parse::<Uri>() else { return false };
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_loopback = host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
    let is_safe = uri.scheme_str() == Some("https") || is_loopback && uri.scheme_str() == Some("http");
    let has_user = uri.authority().is_some_and(|authority| authority.as_str().contains('@'));
    is_safe && !host.is_empty() && !has_user && uri.query().is_none()
}

/// What is wrong with the URL that this setting names, if credentials must not be sent there.
pub(in crate::provider) fn unsafe_url(key: &'static str, url: &str) -> Option<Malformed> {
    let problem = "it must be an https URL without a user and a query; http is for loopback addresses only";
    (!is_safe(url)).then(|| Malformed::new(key, problem))
}

/// A file's text without surrounding white space. Kubelet replaces such files, so it is read each time. A file that cannot be read is
/// [`ErrorClass::Unauthorized`], which is tried again soon: no change of the settings shows that the file is there.
pub(in crate::provider) async fn read_file(what: &'static str, path: &str) -> Result<SecretString, Error> {
    let read = async {
        let mut text = String::new();
        File::open(path).await?.take(LONGEST_FILE).read_to_string(&mut text).await?;
        Ok(text.trim().into())
    };
    read.await.map_err(|problem: io::Error| {
        let public = format!("reading {what} failed ({})", problem.kind());
        let full = format!("{public}: {path}");
        Error::new(ErrorClass::Unauthorized, Message::new(public, full))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_sent_by_https_or_stay_on_this_machine() {
        for url in [
            "https://a",
            "https://a.b:444/c/",
            "http://127.0.0.1:80/",
            "http://127.9.9.9/x",
            "http://[::1]:80/",
        ] {
            assert!(is_safe(url), "{url}");
        }
        let plain = ["http://a", "http://localhost/", "http://169.254.169.254/", "http://127.0.0.1.example/"];
        for url in
            plain.into_iter().chain(["a", "", "ftp://a", "https://", "https://a/?b", "https://u:p@a/", "/a"])
        {
            assert!(!is_safe(url), "{url}");
        }
    }

    #[tokio::test]
    async fn a_file_is_read_to_a_limit_and_its_path_is_for_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, "\n abc \n").unwrap();
        let path = path.display().to_string();
        let text = read_file("the token", &path).await.unwrap();
        assert_eq!(secrecy::ExposeSecret::expose_secret(&text), "abc");
        let missing = read_file("the token", &format!("{path}-2")).await.unwrap_err();
        assert_eq!(missing.class, ErrorClass::Unauthorized);
        assert!(
            !missing.to_string().contains(&path) && missing.message.for_log().contains(&path),
            "{missing}"
        );
    }
}
