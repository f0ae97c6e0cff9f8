//! The settings of Docker, where containers stand for VMs: for tests alone.

use std::{fs, io, path::Path};

use hyper::Uri;
use operator_kit::Message;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};

use crate::{
    provider::{
        Error, ErrorClass,
        http::{Identity, Options},
    },
    settings::{Endpoint, Malformed, Values, key::settings},
};

const HOST: &str = "DOCKER_HOST";
const VERSION: &str = "DOCKER_API_VERSION";

settings! {
    /// Where the Docker daemon is, and what containers are made of.
    pub struct Settings {
        /// Address of the Docker daemon. The operator needs tcp://HOST:PORT: a socket is each node's own.
        host: String = DOCKER_HOST.default("unix:///var/run/docker.sock").concerns_deletion(),
        /// Version of Docker's API.
        version: String = DOCKER_API_VERSION.default("1.44").concerns_deletion(),
        /// Whether cloud-api-adaptor verifies the daemon's certificate. Leave it empty for no: any text counts as yes, and releases
        /// up to v0.17.0 then ignore DOCKER_PODVM_IMAGE and DOCKER_NETWORK_NAME. The operator always verifies it.
        verify: bool = DOCKER_TLS_VERIFY,
        /// Folder with ca.pem, cert.pem and key.pem for a daemon with TLS. If empty, the connection is not encrypted.
        certificates: Option<String> = DOCKER_CERT_PATH.concerns_deletion(),
        /// Image of the containers that are used instead of VMs.
        image: String = DOCKER_PODVM_IMAGE.default("quay.io/confidential-containers/podvm-docker-image"),
        /// Network of these containers.
        network: String = DOCKER_NETWORK_NAME.default("bridge"),
    }
}

impl Settings {
    /// Host and port of this address of a daemon, if the operator can reach it.
    pub(super) fn authority(address: &str) -> Option<&str> {
        let authority = address.strip_prefix("tcp://")?.trim_end_matches('/');
        let uri: Uri = format!("http://{authority}/").parse().ok()?;
        let uri = uri.authority()?;
        (uri.as_str() == authority
            && uri.port().is_some()
            && !uri.host().is_empty()
            && !authority.contains('@'))
        .then_some(authority)
    }

    /// How the daemon is connected to. Reads the certificates.
    pub(super) fn options(&self) -> Result<Options, Error> {
        // A proxy would be for other hosts. Each request connects anew: when the name of the host leads to another daemon, which
        // has none of the containers, a kept connection would lead to the former one, which would confirm that it still answers.
        let options = Options { proxy: None, idle: 0, ..Options::default() };
        let Some(folder) = &self.certificates else { return Ok(options) };
        let read = |name: &str| {
            fs::read(Path::new(folder).join(name)).map_err(|problem: io::Error| {
                let public = format!(
                    "reading {name} in DOCKER_CERT_PATH failed ({}); correct the folder, then restart the operator",
                    problem.kind()
                );
                let full = format!("{public}: {folder}");
                Error::new(ErrorClass::Invalid, Message::new(public, full))
            })
        };
        let malformed = |name: &str, what: &str| {
            let text = format!(
                "{name} in DOCKER_CERT_PATH has no {what} in PEM; correct it, then restart the operator"
            );
            Error::new(ErrorClass::Invalid, Message::public(text))
        };
        let chain = |name: &str| {
            let chain: Vec<_> =
                CertificateDer::pem_slice_iter(&read(name)?).collect::<Result<_, _>>().unwrap_or_default();
            if chain.is_empty() { Err(malformed(name, "certificate")) } else { Ok(chain) }
        };
        let key = PrivateKeyDer::from_pem_slice(&read("key.pem")?);
        let key = key.map_err(|_| malformed("key.pem", "private key without a passphrase"))?;
        let identity = Some(Identity { chain: chain("cert.pem")?, key });
        Ok(Options { authorities: chain("ca.pem")?, identity, ..options })
    }
}

fn is_version(text: &str) -> bool {
    text.len() < 10
        && text.split('.').all(|part| !part.is_empty() && part.bytes().all(|it| it.is_ascii_digit()))
}

/// Where these settings look for containers.
pub(super) fn check(values: &Values) -> Result<Endpoint, Vec<Malformed>> {
    let Settings { host, version, .. } = Settings::read(values);
    let mut malformed = Vec::new();
    if Settings::authority(&host).is_none() {
        let problem = "it must be tcp://HOST:PORT: a socket is each node's own, and no other node's containers are behind it";
        malformed.push(Malformed::new(HOST, problem));
    }
    if !is_version(&version) {
        malformed.push(Malformed::new(VERSION, "it must be a version such as 1.44"));
    }
    if malformed.is_empty() { Ok(endpoint(&host)) } else { Err(malformed) }
}

/// The same, whatever the version is.
pub(super) fn place(values: &Values) -> Option<Endpoint> {
    let Settings { host, .. } = Settings::read(values);
    Settings::authority(&host).is_some().then(|| endpoint(&host))
}

fn endpoint(host: &str) -> Endpoint {
    Endpoint { setting: HOST, address: host.trim_end_matches('/').to_owned() }
}

#[cfg(test)]
mod tests {
    use secrecy::SecretString;

    use super::*;
    use crate::{
        provider::CATALOGUE,
        settings::{Raw, Snapshot},
    };

    fn endpoint(given: &[(&str, &str)]) -> Result<String, Vec<&'static str>> {
        let given = [("CLOUD_PROVIDER", "docker")].iter().chain(given);
        let settings = given.map(|(name, value)| ((*name).to_owned(), SecretString::from(*value))).collect();
        let raw = Raw { settings, ..Raw::default() };
        let endpoint = Snapshot::parse(&raw, CATALOGUE).unwrap().endpoint;
        endpoint.map(|it| it.address).map_err(|all| all.iter().map(|it| it.key).collect())
    }

    #[test]
    fn the_endpoint_is_a_daemon_that_every_node_reaches() {
        for host in ["tcp://10.0.0.1:2375", "tcp://docker.example:2376", "tcp://[fd00::1]:2375"] {
            assert_eq!(endpoint(&[(HOST, host)]).as_deref(), Ok(host));
        }
        assert_eq!(endpoint(&[(HOST, "tcp://10.0.0.1:2375/")]).as_deref(), Ok("tcp://10.0.0.1:2375"));
    }

    #[test]
    fn settings_that_deletion_cannot_use_are_named() {
        assert_eq!(endpoint(&[]), Err(vec![HOST]));
        for host in
            ["unix:///x", "ssh://a", "tcp://a", "tcp://u:p@a:1", "tcp://a:1/b", "10.0.0.1:2375", "tcp://:1"]
        {
            assert_eq!(endpoint(&[(HOST, host)]), Err(vec![HOST]), "{host}");
        }
        for version in ["v1.44", "1.", "1.44/../..", "1.44?x"] {
            assert_eq!(endpoint(&[(HOST, "tcp://a:1"), (VERSION, version)]), Err(vec![VERSION]), "{version}");
        }
    }
}
