//! The client at real daemons, with virsh as the witness.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use cluster::process::Lifetime;
use futures::future::join_all;
use libvirt_client::{Client, DomainState, Error, ErrorCode, Options, UndefineFlags};
use peers::libvirt::{BASE_VOLUME, Libvirtd, POD_VM_DESCRIPTION, POOL, QemuLibvirtd};
use uuid::Uuid;

#[tokio::test]
async fn a_domain_of_the_test_driver_is_found_destroyed_and_gone() {
    let dir = tempfile::tempdir().unwrap();
    let libvirtd = Libvirtd::start(dir.path(), Lifetime::Owned).await.unwrap();
    let (host, virsh) = (libvirtd.host(), libvirtd.host().virsh());
    let vm = host.start_pod_vm("podvm-a").await.unwrap();

    let client = Client::new(host.uri().clone(), Options::default());
    assert!(client.lib_version().await.unwrap() >= 9_000_000);
    let domain = client.domain_lookup_by_uuid(vm.domain.uuid).await.unwrap();
    assert_eq!(domain, vm.domain);
    assert!(client.domains().await.unwrap().contains(&domain));
    assert!(client.domain_xml(&domain).await.unwrap().contains(POD_VM_DESCRIPTION));
    assert_eq!(client.domain_state(&domain).await.unwrap(), DomainState::Running);

    client.domain_destroy(&domain).await.unwrap();
    assert_eq!(client.domain_state(&domain).await.unwrap(), DomainState::ShutOff);
    let again = client.domain_destroy(&domain).await.unwrap_err();
    assert_eq!(again.code(), Some(ErrorCode::OperationInvalid), "{again}");

    let pool = client.pool_lookup_by_name(POOL).await.unwrap();
    assert_eq!(client.pool_volumes(&pool).await.unwrap().len(), 3);
    assert_eq!(client.pool_volume_count(&pool).await.unwrap(), 3);
    let volume = client.volume_lookup_by_path(&vm.root.key).await.unwrap();
    assert_eq!(volume, vm.root);
    client.volume_delete(&volume).await.unwrap();
    let gone = client.volume_lookup_by_path(&vm.root.key).await.unwrap_err();
    assert_eq!(gone.code(), Some(ErrorCode::NoStorageVolume), "{gone}");
    client.volume_delete(&vm.cloudinit).await.unwrap();
    assert_eq!(virsh.volumes(POOL).await.unwrap(), [BASE_VOLUME]);

    client.domain_undefine_plain(&domain).await.unwrap();
    let gone = client.domain_lookup_by_uuid(domain.uuid).await.unwrap_err();
    assert_eq!(gone.code(), Some(ErrorCode::NoDomain), "{gone}");
    assert_eq!(virsh.domains().await.unwrap(), ["test"]);

    let no_pool = client.pool_lookup_by_name("no-such-pool").await.unwrap_err();
    assert_eq!(no_pool.code(), Some(ErrorCode::NoStoragePool), "{no_pool}");
}

#[tokio::test]
async fn a_qemu_domain_is_destroyed_and_undefined_with_its_disks_and_its_nvram() {
    let dir = tempfile::tempdir().unwrap();
    let libvirtd = QemuLibvirtd::start(dir.path()).await.unwrap();
    let (host, virsh) = (libvirtd.host(), libvirtd.host().virsh());
    let vm = host.start_pod_vm("podvm-a").await.unwrap();
    let nvram = libvirtd.nvram("podvm-a");
    assert!(nvram.exists());

    let client = Client::new(host.uri().clone(), Options::default());
    let domain = client.domain_lookup_by_uuid(vm.domain.uuid).await.unwrap();
    assert_eq!(client.domain_state(&domain).await.unwrap(), DomainState::Running);
    assert_eq!(virsh.run(&["domstate", "podvm-a"]).await.unwrap().trim(), "running");

    client.domain_destroy(&domain).await.unwrap();
    assert_eq!(client.domain_state(&domain).await.unwrap(), DomainState::ShutOff);
    for volume in [&vm.root, &vm.cloudinit] {
        let found = client.volume_lookup_by_path(&volume.key).await.unwrap();
        client.volume_delete(&found).await.unwrap();
        assert!(!Path::new(&volume.key).exists());
    }
    assert_eq!(virsh.volumes(POOL).await.unwrap(), [BASE_VOLUME]);

    let refused = client.domain_undefine_plain(&domain).await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::OperationInvalid), "{refused}");
    client.domain_undefine(&domain, UndefineFlags::NVRAM).await.unwrap();
    assert!(!nvram.exists());
    assert_eq!(virsh.domains().await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn calls_to_a_hung_daemon_time_out_and_succeed_after_it_resumes() {
    let dir = tempfile::tempdir().unwrap();
    let libvirtd = Libvirtd::start(dir.path(), Lifetime::Owned).await.unwrap();
    let call_timeout = Duration::from_secs(2);
    let connect_timeout = Duration::from_secs(1);
    let options = Options { call_timeout, connect_timeout: Some(connect_timeout), ..Options::default() };
    let client = Client::new(libvirtd.host().uri().clone(), options);
    client.lib_version().await.unwrap();

    libvirtd.pause().unwrap();
    for _ in 0..2 {
        let started = Instant::now();
        let answers = join_all((0..50).map(|_| client.lib_version())).await;
        let took = started.elapsed();
        // Sooner than without these options.
        assert!(took < call_timeout + Duration::from_secs(10), "{took:?}");
        for error in answers.into_iter().map(Result::unwrap_err) {
            assert!(matches!(error, Error::Timeout { .. } | Error::Connect(_)), "{error}");
        }
    }
    libvirtd.resume().unwrap();
    // Attempts to connect that began while it hung may still run out.
    let deadline = Instant::now() + connect_timeout + Duration::from_secs(10);
    while join_all((0..50).map(|_| client.lib_version())).await.iter().any(Result::is_err) {
        assert!(Instant::now() < deadline, "the daemon goes on, and calls still fail");
    }
}

#[tokio::test]
async fn a_daemon_that_was_started_again_is_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut libvirtd = Libvirtd::start(dir.path(), Lifetime::Owned).await.unwrap();
    let client = Client::new(libvirtd.host().uri().clone(), Options::default());
    client.lib_version().await.unwrap();

    libvirtd.stop().await.unwrap();
    let error = client.lib_version().await.unwrap_err();
    assert!(matches!(error, Error::Connect(_) | Error::Disconnected(_)), "{error}");
    libvirtd.restart().await.unwrap();
    // A call may still have gone to the old connection, when its end had not been noticed yet.
    let _ = client.lib_version().await;
    client.lib_version().await.unwrap();
}

/// libvirtd lets root in without polkit, which need not even run: while it answers the first call of a connection.
#[tokio::test]
async fn root_is_let_in_by_a_daemon_that_asks_polkit() {
    let dir = tempfile::tempdir().unwrap();
    let mut libvirtd = Libvirtd::start(dir.path(), Lifetime::Owned).await.unwrap();
    let file = dir.path().join("libvirtd.conf");
    let without = fs::read_to_string(&file).unwrap();
    let with = without.replace("auth_unix_rw = \"none\"", "auth_unix_rw = \"polkit\"");
    assert_ne!(with, without);
    fs::write(&file, with).unwrap();
    libvirtd.restart().await.unwrap();

    let client =
        Client::new(libvirtd.host().uri().clone(), Options { connections: 40, ..Options::default() });
    client.lib_version().await.unwrap();
    // They need 40 connections.
    for answer in join_all((0..200).map(|_| client.lib_version())).await {
        answer.unwrap();
    }
}

#[tokio::test]
async fn hundreds_of_calls_at_the_same_time_are_all_answered() {
    let dir = tempfile::tempdir().unwrap();
    let libvirtd = Libvirtd::start(dir.path(), Lifetime::Owned).await.unwrap();
    let names: Vec<_> = (0..100).map(|number| format!("podvm-{number}")).collect();
    let vms = libvirtd.host().start_pod_vms(&names).await.unwrap();
    let client = Client::new(libvirtd.host().uri().clone(), Options::default());
    let found = join_all(vms.iter().map(|vm| client.domain_lookup_by_uuid(vm.domain.uuid))).await;
    assert!(vms.iter().map(|vm| &vm.domain).eq(found.iter().map(|found| found.as_ref().unwrap())));
    let missing =
        join_all((1..=100).map(|number| client.domain_lookup_by_uuid(Uuid::from_u128(number)))).await;
    assert!(missing.into_iter().all(|answer| answer.unwrap_err().code() == Some(ErrorCode::NoDomain)));
}
