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
    is_safe && !host.is_empty() && !has_user(&uri) && uri.query().is_none()
}

/// Whether a URL has a user or a password.
fn has_user(uri: &Uri) -> bool {
    uri.authority().is_some_and(|authority| authority.as_str().contains('@'))
}

/// Whether a URL leads to the host and port of another one, and by the same scheme: what may be sent to one may be sent to the other.
pub(in crate::provider) fn has_origin_of(url: &str, other: &str) -> bool {
    let origin = |url: &str| {
        let uri = url.parse::<Uri>().ok().filter(|uri| !has_user(uri))?;
        let scheme = uri.scheme_str()?.to_owned();
        let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
        Some((scheme, uri.host()?.to_ascii_lowercase(), port))
    };
    origin(url).is_some_and(|it| Some(it) == origin(other))
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

    #[test]
    fn a_link_has_the_origin_of_a_url_by_scheme_host_and_port() {
        let manager = "https://management.azure.com";
        for path in ["/subscriptions/x?$skiptoken=a", "", ":443/x"] {
            assert!(has_origin_of(&format!("{manager}{path}"), manager), "{path}");
        }
        assert!(has_origin_of("https://Management.Azure.com/x", manager));
        assert!(has_origin_of("http://[::1]:8080/x", "http://[::1]:8080"));
        for link in [
            "https://management.azure.com.example/x",
            "https://management.azure.com@a.example/x",
            "https://user@management.azure.com/x",
            "https://management.azure.com:444/x",
            "http://management.azure.com/x",
            "http://management.azure.com:443/x",
            "https://a.example/https://management.azure.com/",
            "//management.azure.com/x",
            "/x",
            "",
        ] {
            assert!(!has_origin_of(link, manager), "{link}");
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
