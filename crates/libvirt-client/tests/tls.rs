//! The tls transport at a real libvirtd.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use libvirt_client::{Client, Error, Options};
use peers::libvirt::{Libvirtd, Listener, TcpAuth, stranger};
use tempfile::TempDir;

struct Host {
    libvirtd: Libvirtd,
    listener: Listener,
    dir: TempDir,
}

impl Host {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (libvirtd, listener) =
            Libvirtd::start_listening(&dir.path().join("d"), TcpAuth::Sasl, None).await.unwrap();
        Self { libvirtd, listener, dir }
    }

    fn client(&self, pki: &Path, parameters: &str) -> Client {
        let uri = format!("test://{}/default?pkipath={}{parameters}", self.listener.address, pki.display());
        Client::new(uri.parse().unwrap(), Options::default())
    }

    /// Makes a call, and returns the authentication's failure.
    async fn refusal(&self, pki: &Path, parameters: &str) -> String {
        let error = self.client(pki, parameters).lib_version().await.unwrap_err();
        assert!(matches!(error, Error::Auth(_)), "{error}");
        error.to_string()
    }

    /// A folder with the files of both, by turns `(name, theirs)`.
    fn mixed(&self, theirs: &Path, files: &[(&str, bool)]) -> std::path::PathBuf {
        let folder = self.dir.path().join("mixed");
        fs::create_dir_all(&folder).unwrap();
        for (name, from_theirs) in files {
            let from = if *from_theirs { theirs } else { &self.listener.pki };
            fs::copy(from.join(name), folder.join(name)).unwrap();
        }
        folder
    }
}

#[tokio::test]
/// The calls of a connection come at once, so that more than one packet gathers.
async fn a_domain_is_found_with_a_client_certificate() {
    let host = Host::start().await;
    let vm = host.libvirtd.host().start_pod_vm("podvm-a").await.unwrap();
    let client = host.client(&host.listener.pki, "");
    assert_eq!(client.domain_lookup_by_uuid(vm.domain.uuid).await.unwrap(), vm.domain);
    let calls = (0..200).map(|_| client.domain_xml(&vm.domain));
    assert!(futures::future::join_all(calls).await.iter().all(Result::is_ok));
}

#[tokio::test]
async fn a_client_of_another_authority_is_refused_by_the_server() {
    let host = Host::start().await;
    let theirs = host.dir.path().join("stranger");
    stranger(&theirs).unwrap();
    // The server is known here, so it is the server that refuses.
    let pki =
        host.mixed(&theirs, &[("cacert.pem", false), ("clientcert.pem", true), ("clientkey.pem", true)]);
    let refusal = host.refusal(&pki, "").await;
    assert!(refusal.contains("does not accept this client's certificate"), "{refusal}");
}

#[tokio::test]
async fn a_server_of_another_authority_is_refused_unless_nothing_is_verified() {
    let host = Host::start().await;
    let theirs = host.dir.path().join("stranger");
    stranger(&theirs).unwrap();
    let pki =
        host.mixed(&theirs, &[("cacert.pem", true), ("clientcert.pem", false), ("clientkey.pem", false)]);
    let refusal = host.refusal(&pki, "").await;
    assert!(refusal.contains("server's certificate is not trusted"), "{refusal}");
    host.client(&pki, "&no_verify=1").lib_version().await.unwrap();
}

#[tokio::test]
async fn a_server_whose_certificate_was_revoked_is_refused() {
    let host = Host::start().await;
    let refusal = host.refusal(&host.listener.revoking, "").await;
    assert!(refusal.contains("not trusted (") && refusal.contains("evoked"), "{refusal}");
}

#[tokio::test]
async fn a_server_under_another_name_is_refused_unless_nothing_is_verified() {
    let host = Host::start().await;
    let pki = host.listener.pki.display();
    // A relay at an address that is not in the certificate.
    let relay = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let uri = format!("test+tls://{}/default?pkipath={pki}", relay.local_addr().unwrap());
    let server = (host.listener.address, 16514);
    tokio::spawn(async move {
        while let Ok((mut near, _)) = relay.accept().await {
            let mut far = tokio::net::TcpStream::connect(server).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut near, &mut far).await });
        }
    });
    let client = |uri: &str| Client::new(uri.parse().unwrap(), Options::default());
    let error = client(&uri).lib_version().await.unwrap_err();
    assert!(matches!(&error, Error::Auth(text) if text.contains("subjectAltName")), "{error}");
    client(&format!("{uri}&no_verify=1")).lib_version().await.unwrap();
}

#[tokio::test]
async fn files_that_are_missing_or_broken_are_named() {
    let host = Host::start().await;
    let pki = host.mixed(Path::new(""), &[("cacert.pem", false), ("clientcert.pem", false)]);
    let refusal = host.refusal(&pki, "").await;
    assert!(refusal.contains("mixed/clientkey.pem"), "{refusal}");
    fs::write(pki.join("clientkey.pem"), "no key").unwrap();
    let refusal = host.refusal(&pki, "").await;
    assert!(refusal.contains("mixed/clientkey.pem") && !refusal.contains("no key"), "{refusal}");
    let pki = host.mixed(Path::new(""), &[("clientkey.pem", false)]);
    fs::remove_file(pki.join("cacert.pem")).unwrap();
    let refusal = host.refusal(&pki, "").await;
    assert!(refusal.contains("mixed/cacert.pem"), "{refusal}");
}

#[tokio::test]
async fn a_port_that_does_not_speak_tls_is_no_refusal() {
    let host = Host::start().await;
    let uri =
        format!("test+tls://{}:16509/default?pkipath={}", host.listener.address, host.listener.pki.display());
    let error = Client::new(uri.parse().unwrap(), Options::default()).lib_version().await.unwrap_err();
    assert!(matches!(error, Error::Connect(_)), "{error}");
}
