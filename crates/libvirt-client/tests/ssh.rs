//! The ssh transport at a real sshd and a real libvirtd.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cluster::process::Lifetime;
use futures::future::join_all;
use libvirt_client::{Client, Error, Options};
use peers::libvirt::Libvirtd;
use peers::sshd::{self, Sshd, keygen};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// How long a test waits for what must come.
const SOON: Duration = Duration::from_secs(10);
const NO_FORWARDING: &str = "AllowStreamLocalForwarding no";

struct Host {
    libvirtd: Libvirtd,
    sshd: Sshd,
    dir: TempDir,
}

impl Host {
    async fn start(configuration: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let libvirtd = Libvirtd::start(&dir.path().join("d"), Lifetime::Owned).await.unwrap();
        let options = sshd::Options {
            libvirt: Some(dir.path().join("d/sock")),
            configuration: configuration.to_owned(),
            ..sshd::Options::default()
        };
        let sshd = Sshd::start(&dir.path().join("ssh"), &options).await.unwrap();
        Self { libvirtd, sshd, dir }
    }

    /// A URI with just these parameters.
    fn bare_uri(&self, transport: &str, parameters: &str) -> String {
        format!("test+{transport}://root@{}/default?{parameters}", self.sshd.authority())
    }

    /// A URI with a key, the host's keys, and these parameters.
    fn uri(&self, parameters: &str) -> String {
        let (key, known) = (self.sshd.key("ed25519"), self.sshd.known_hosts("ed25519").unwrap());
        let (key, known) = (key.display(), known.display());
        self.bare_uri("ssh", &format!("keyfile={key}&known_hosts={known}{parameters}"))
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("d/sock/libvirt-sock")
    }

    async fn until_no_sessions(&self) {
        let deadline = Instant::now() + SOON;
        while self.sshd.sessions().unwrap() > 0 {
            assert!(Instant::now() < deadline, "{} sessions stay", self.sshd.sessions().unwrap());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Finds a pod VM, and many times over.
    async fn works(&self, uri: &str) {
        let name = format!("podvm-{}", self.libvirtd.host().virsh().domains().await.unwrap().len());
        let vm = self.libvirtd.host().start_pod_vm(&name).await.unwrap();
        let client = client(uri);
        let calls = (0..100).map(|_| client.domain_lookup_by_uuid(vm.domain.uuid));
        for found in join_all(calls).await {
            assert_eq!(found.unwrap(), vm.domain, "{uri}");
        }
    }
}

fn client(uri: &str) -> Client {
    Client::new(uri.parse().unwrap(), Options::default())
}

/// Makes a call, and returns the authentication's failure.
async fn refusal(uri: &str) -> String {
    let error = client(uri).lib_version().await.unwrap_err();
    assert!(matches!(error, Error::Auth(_)), "{uri}: {error}");
    error.to_string()
}

#[tokio::test]
async fn a_domain_is_found_through_a_forwarded_socket() {
    let host = Host::start("MaxSessions 0").await;
    // No session may be opened, so sshd itself connects.
    host.works(&host.uri("")).await;
    host.works(&host.uri(&format!("&socket={}", host.socket().display()))).await;
    let error = client(&host.uri("&socket=/nowhere")).lib_version().await.unwrap_err();
    assert!(matches!(error, Error::Connect(_)), "{error}");
}

#[tokio::test]
async fn a_domain_is_found_by_a_program_where_sockets_are_not_forwarded() {
    let host = Host::start(NO_FORWARDING).await;
    host.works(&host.uri("")).await;
    host.works(&host.uri("&proxy=native")).await;
    host.works(&host.uri("&proxy=netcat")).await;
    host.works(&host.uri("&netcat=/usr/bin/nc")).await;
    host.works(&host.uri(&format!("&socket={}", host.socket().display()))).await;
}

#[tokio::test]
async fn an_error_quotes_what_the_remote_program_printed() {
    let mut host = Host::start(NO_FORWARDING).await;
    let tells = |uri: String, word: &'static str| async move {
        let error = client(&uri).lib_version().await.unwrap_err();
        assert!(matches!(&error, Error::Connect(_)) && error.to_string().contains(word), "{uri}: {error}");
    };
    tells(host.uri("&netcat=no-such-netcat"), "no-such-netcat").await;
    tells(host.uri("&proxy=netcat&socket=/no/such/socket"), "/no/such/socket").await;
    host.libvirtd.stop().await.unwrap();
    tells(host.uri("&proxy=native"), "libvirt-sock").await;
}

#[tokio::test]
async fn every_kind_of_key_opens_every_transport() {
    let host = Host::start("").await;
    let known = host.sshd.known_hosts("ed25519").unwrap();
    for (kind, transport) in [("ed25519", "libssh"), ("ecdsa", "libssh2"), ("rsa", "ssh")] {
        let parameters = format!("keyfile={}&known_hosts={}", host.sshd.key(kind).display(), known.display());
        client(&host.bare_uri(transport, &parameters)).lib_version().await.unwrap();
    }
}

#[tokio::test]
async fn keys_are_exchanged_as_hardened_hosts_do_and_never_with_the_largest_groups() {
    // In this order the host would choose the slowest.
    let host = Host::start(
        "KexAlgorithms diffie-hellman-group18-sha512,diffie-hellman-group-exchange-sha256,ecdh-sha2-nistp384",
    )
    .await;
    client(&host.uri("")).lib_version().await.unwrap();
    for kex in ["diffie-hellman-group14-sha256", "diffie-hellman-group-exchange-sha256"] {
        let host = Host::start(&format!("KexAlgorithms {kex}")).await;
        let version = client(&host.uri("")).lib_version().await;
        assert!(version.is_ok(), "{kex}: {version:?}");
    }
    let host = Host::start("KexAlgorithms diffie-hellman-group18-sha512").await;
    let error = client(&host.uri("")).lib_version().await.unwrap_err().to_string();
    assert!(error.to_lowercase().contains("kex"), "{error}");
}

#[tokio::test]
async fn a_host_must_show_a_key_that_is_known() {
    let host = Host::start("").await;
    let key = host.sshd.key("ed25519");
    let uri = |known: &Path, more: &str| {
        let parameters = format!("keyfile={}&known_hosts={}{more}", key.display(), known.display());
        host.bare_uri("ssh", &parameters)
    };
    // The client asks for whichever kind of key is known.
    for kind in ["ed25519", "ecdsa", "rsa"] {
        client(&uri(&host.sshd.known_hosts(kind).unwrap(), "")).lib_version().await.unwrap();
    }
    let empty = host.dir.path().join("empty");
    fs::write(&empty, "").unwrap();
    let unknown = refusal(&uri(&empty, "")).await;
    assert!(unknown.contains("is not known") && unknown.contains("no_verify=1"), "{unknown}");
    client(&uri(&empty, "&no_verify=1")).lib_version().await.unwrap();
    client(&uri(&empty, "&known_hosts_verify=auto")).lib_version().await.unwrap();
    assert_eq!(fs::read(&empty).unwrap(), b"", "no file is written to");

    let other = host.dir.path().join("other");
    keygen(&other, "ed25519", "").unwrap();
    let other = fs::read_to_string(other.with_extension("pub")).unwrap();
    let changed = host.dir.path().join("changed");
    fs::write(&changed, format!("[{}]:2222 {other}", host.sshd.authority().trim_end_matches(":2222")))
        .unwrap();
    for parameters in ["", "&no_verify=1", "&known_hosts_verify=auto"] {
        let refusal = refusal(&uri(&changed, parameters)).await;
        assert!(refusal.contains("is another than") && refusal.contains("ssh-keygen -R"), "{refusal}");
    }
    client(&uri(&changed, "&known_hosts_verify=ignore")).lib_version().await.unwrap();
}

#[tokio::test]
async fn a_key_that_is_of_no_use_is_named() {
    let host = Host::start("AllowUsers root").await;
    let stranger = host.dir.path().join("stranger");
    keygen(&stranger, "ed25519", "").unwrap();
    let locked = host.dir.path().join("locked");
    keygen(&locked, "ed25519", "a passphrase").unwrap();
    let broken = host.dir.path().join("broken");
    fs::write(&broken, "a secret that is no key").unwrap();
    for (file, words) in [
        (&stranger, "not accepted"),
        (&locked, "passphrase, which cannot be entered here"),
        (&broken, "not a private key"),
        (&host.dir.path().join("missing"), "there is no private key"),
    ] {
        let uri = host.bare_uri("ssh", &format!("keyfile={}&no_verify=1", file.display()));
        let refusal = refusal(&uri).await;
        assert!(refusal.contains(words) && refusal.contains(file.to_str().unwrap()), "{refusal}");
        assert!(!refusal.contains("a secret"), "{refusal}");
    }
    let nobody = host.uri("").replace("root@", "nobody@");
    let refusal = refusal(&nobody).await;
    assert!(refusal.contains("lets nobody in with none of the keys"), "{refusal}");
}

#[tokio::test]
async fn an_sshd_that_hangs_is_found_in_time_and_one_that_is_gone_at_once() {
    let mut host = Host::start("").await;
    let options = Options { connect_timeout: Some(Duration::from_millis(500)), ..Options::default() };
    let client = Client::new(host.uri("").parse().unwrap(), options);
    host.sshd.pause().unwrap();
    let started = Instant::now();
    let error = client.lib_version().await.unwrap_err();
    assert!(matches!(error, Error::Connect(_)), "{error}");
    assert!(started.elapsed() < SOON);
    host.sshd.stop().await.unwrap();
    let error = client.lib_version().await.unwrap_err();
    assert!(error.to_string().contains("start sshd"), "{error}");
}

#[tokio::test]
async fn a_server_that_sends_only_its_banner_is_disconnected_after_the_timeout() {
    let silent = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let uri = format!("test+ssh://root@{}/default?no_verify=1", silent.local_addr().unwrap());
    let options = Options { connect_timeout: Some(Duration::from_millis(300)), ..Options::default() };
    let client = Client::new(uri.parse().unwrap(), options);
    let greet = async {
        let (mut stream, _) = silent.accept().await.unwrap();
        stream.write_all(b"SSH-2.0-silent\r\n").await.unwrap();
        stream
    };
    let (answer, mut stream) = tokio::join!(client.lib_version(), greet);
    assert!(matches!(answer, Err(Error::Connect(_))));
    // What it has sent until then, and the end.
    tokio::time::timeout(SOON, stream.read_to_end(&mut Vec::new())).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_disconnect_during_authentication_is_a_connect_error() {
    // It has no time to find out whether it knows the key.
    let host = Host::start(
        "LoginGraceTime 1\nAuthorizedKeysFile none\nAuthorizedKeysCommand /usr/bin/sleep 60\n\
         AuthorizedKeysCommandUser root",
    )
    .await;
    let error = client(&host.uri("")).lib_version().await.unwrap_err();
    assert!(matches!(error, Error::Connect(_)), "{error}");
    assert!(error.to_string().contains("or does not accept this client"), "{error}");
}

#[tokio::test]
async fn a_client_dropped_during_a_large_reply_closes_its_sessions() {
    let host = Host::start(NO_FORWARDING).await;
    let description = "x".repeat(2 << 20);
    let xml = format!(
        "<domain type='test'><name>big</name><description>{description}</description><memory>1024</memory>\
         <os><type>hvm</type></os></domain>"
    );
    let domain = client(&host.uri("")).domain_define(&xml).await.unwrap();
    // At some of these moments an answer is on its way.
    for moment in 0..20 {
        let client = client(&host.uri(""));
        client.lib_version().await.unwrap();
        let calls = join_all((0..5).map(|_| client.domain_xml(&domain)));
        let _ = tokio::time::timeout(Duration::from_millis(moment * 5), calls).await;
    }
    host.until_no_sessions().await;
}

#[tokio::test]
async fn the_last_client_takes_its_sessions_with_it() {
    for configuration in ["", NO_FORWARDING] {
        let host = Host::start(configuration).await;
        let client = client(&host.uri(""));
        assert!(join_all((0..20).map(|_| client.lib_version())).await.iter().all(Result::is_ok));
        assert!(host.sshd.sessions().unwrap() > 1, "several connections are used");
        drop(client);
        host.until_no_sessions().await;
    }
}
