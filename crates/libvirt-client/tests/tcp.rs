//! The tcp transport at a real libvirtd.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::TcpListener;
use std::time::{Duration, Instant};

use libvirt_client::{Client, ConnectFailure, Error, Options};
use peers::libvirt::{Libvirtd, TcpAuth};

fn client(uri: &str) -> Client {
    Client::new(uri.parse().unwrap(), Options::default())
}

#[tokio::test]
async fn a_domain_is_found_and_destroyed_over_tcp() {
    let dir = tempfile::tempdir().unwrap();
    let (mut libvirtd, listener) = Libvirtd::start_listening(dir.path(), TcpAuth::None, None).await.unwrap();
    let vm = libvirtd.host().start_pod_vm("podvm-a").await.unwrap();
    let client = client(&format!("test+tcp://{}/default", listener.address));
    let domain = client.domain_lookup_by_uuid(vm.domain.uuid).await.unwrap();
    assert_eq!(domain, vm.domain);
    client.domain_destroy(&domain).await.unwrap();
    let state = libvirtd.host().virsh().run(&["domstate", "podvm-a"]).await.unwrap();
    assert_eq!(state.trim(), "shut off");

    libvirtd.stop().await.unwrap();
    let error = client.lib_version().await.unwrap_err();
    assert!(matches!(error, Error::Connect(_) | Error::Disconnected(_)), "{error}");
    let error = client.lib_version().await.unwrap_err();
    assert!(error.to_string().contains(&format!("{}:16509 (tcp)", listener.address)), "{error}");
    assert!(error.to_string().contains("--listen"), "{error}");
}

#[tokio::test]
async fn a_daemon_that_wants_sasl_is_refused_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let (_libvirtd, listener) = Libvirtd::start_listening(dir.path(), TcpAuth::Sasl, None).await.unwrap();
    let error = client(&format!("test+tcp://{}/default", listener.address)).lib_version().await.unwrap_err();
    assert!(matches!(error, Error::Auth(_)), "{error}");
    assert!(error.to_string().contains("SASL") && error.to_string().contains("auth_tcp"), "{error}");
}

#[tokio::test]
async fn a_silent_server_fails_the_connection_within_the_timeout() {
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let uri = format!("test+tcp://{}/default", silent.local_addr().unwrap());
    let options = Options { connect_timeout: Some(Duration::from_millis(300)), ..Options::default() };
    let started = Instant::now();
    let error = Client::new(uri.parse().unwrap(), options).lib_version().await.unwrap_err();
    let Error::Connect(error) = error else { panic!("{error}") };
    assert!(matches!(error.reason, ConnectFailure::Silent(_)), "{error}");
    assert!(started.elapsed() < Duration::from_secs(5));
}
