//! The proxies that the environment names.

use std::{env, fmt};

use hyper::Uri;
use hyper_util::client::proxy::matcher::Matcher;

/// What the environment says of proxies, read as Go's programs read it: kubectl and those of clouds. Its `Debug` does not show the proxy,
/// which may have a password.
#[derive(Clone, Default)]
pub struct Proxies {
    /// The proxy by which `https:` hosts are reached: `HTTPS_PROXY`.
    pub https: Option<String>,
    /// The hosts that are reached without it, separated by commas: `NO_PROXY`, as hyper-util's matcher understands it. A host with a
    /// port is exempt at all of its ports.
    pub exempt: String,
}

/// No proxy leads to it.
const OWN_HOST: &str = "localhost,127.0.0.0/8,::1";

/// All hosts, by name and by address.
const ALL: &str = "*,0.0.0.0/0,::/0";

impl fmt::Debug for Proxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { https, exempt } = self;
        f.debug_struct("Proxies").field("has_https", &https.is_some()).field("exempt", exempt).finish()
    }
}

impl Proxies {
    /// The variables, in capitals or else in small letters. An empty one counts as absent.
    #[must_use]
    pub fn of_environment() -> Self {
        let first = |names: [&str; 2]| {
            names.into_iter().filter_map(|name| env::var(name).ok()).find(|value| !value.is_empty())
        };
        // In this order kube reads the proxy, too.
        let https = first(["HTTPS_PROXY", "https_proxy"]);
        Self::new(https, &first(["NO_PROXY", "no_proxy"]).unwrap_or_default())
    }

    pub(super) fn new(https: Option<String>, exempt: &str) -> Self {
        let exempt = exempt.split(',').map(plain).chain([OWN_HOST]);
        Self { https, exempt: exempt.collect::<Vec<_>>().join(",") }
    }

    /// Whether this host is reached directly although there is a proxy.
    pub(super) fn exempts(&self, host: &Uri) -> bool {
        let matcher = Matcher::builder().https("http://proxy").no(self.exempt.as_str()).build();
        // Of the matcher's answer, only whether there is one counts.
        matcher.intercept(host).is_none()
    }
}

/// An exempt host, as the matcher understands it: without a port, brackets, and the star before a domain.
fn plain(exempt: &str) -> &str {
    let exempt = exempt.trim();
    if exempt == "*" {
        return ALL;
    }
    let host = match exempt.rsplit_once(':') {
        // An IPv6 address has several colons, and brackets before a port.
        Some((host, port))
            if port.bytes().all(|byte| byte.is_ascii_digit())
                && (!host.contains(':') || host.ends_with(']')) =>
        {
            host
        }
        _ => exempt,
    };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.strip_prefix('*').filter(|domain| domain.starts_with('.')).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_proxy_exempts_the_hosts_that_it_exempts_for_go() {
        for (host, exempt, is_exempt) in [
            ("10.0.0.1:6443", "192.168.0.0/16,10.0.0.0/8", true),
            ("10.0.0.1:6443", "10.0.0.1", true),
            ("10.0.0.1:6443", "10.0.0.1:6443", true),
            ("10.0.0.1:6443", "10.0.0.2", false),
            ("[fd00::1]:6443", "fd00::/8", true),
            ("[fd00::1]:6443", "fd00::1", true),
            ("[fd00::1]:6443", "[fd00::1]", true),
            ("[fd00::1]:6443", "[fd00::1]:6443", true),
            ("[fd00::1]:6443", "fd00::2", false),
            ("api.cluster.internal:6443", ".cluster.internal", true),
            ("api.cluster.internal", "other, *.cluster.internal", true),
            ("api.cluster.internal", "cluster.internal,", true),
            ("api.cluster.internal:6443", "api.cluster.internal:6443", true),
            ("api.cluster.internal", "API.Cluster.Internal", true),
            ("api.cluster.internal", "*", true),
            ("10.0.0.1:6443", "*", true),
            ("[fd00::1]:6443", "*", true),
            ("127.0.0.1:6443", "", true),
            ("localhost:6443", "", true),
            ("[::1]:6443", "", true),
            ("api.cluster.internal", "localhost,", false),
            ("api.cluster.internal", "*.other.internal", false),
            ("api.cluster.internal", "", false),
        ] {
            let proxies = Proxies::new(None, exempt);
            assert_eq!(
                proxies.exempts(&format!("https://{host}").parse().unwrap()),
                is_exempt,
                "{host} {exempt}"
            );
        }
    }
}
