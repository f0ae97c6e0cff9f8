//! The real daemons, observed by virsh.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use cluster::process::Lifetime;
use libvirt_client::{DomainState, ErrorCode};
use peers::libvirt::{BASE_VOLUME, Libvirtd, POD_VM_DESCRIPTION, POOL, QemuLibvirtd};

fn names(vms: &[&str]) -> Vec<String> {
    vms.iter().map(|name| (*name).to_owned()).collect()
}

#[tokio::test]
async fn a_pod_vm_has_the_shape_that_cloud_api_adaptor_gives_it() {
    let dir = tempfile::tempdir().unwrap();
    let libvirtd = Libvirtd::start(dir.path(), Lifetime::Owned).await.unwrap();
    let host = libvirtd.host();
    let vm = host.start_pod_vm("podvm-a-12345678").await.unwrap();

    let virsh = host.virsh();
    assert_eq!(virsh.domains().await.unwrap(), ["podvm-a-12345678", "test"]);
    assert_eq!(
        virsh.volumes(POOL).await.unwrap(),
        ["podvm-a-12345678-cloudinit.iso", "podvm-a-12345678-root.qcow2", BASE_VOLUME]
    );
    assert_eq!(virsh.run(&["desc", &vm.domain.name]).await.unwrap().trim(), POD_VM_DESCRIPTION);
    let disks = virsh.run(&["domblklist", &vm.domain.name]).await.unwrap();
    assert!(disks.contains(&vm.root.key) && disks.contains(&vm.cloudinit.key), "{disks}");
    assert_eq!(host.client().domain_state(&vm.domain).await.unwrap(), DomainState::Running);
}

#[tokio::test]
async fn daemons_side_by_side_know_nothing_of_each_other() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let start = |index: usize| Libvirtd::start(dirs[index].path(), Lifetime::Owned);
    let (one, two) = tokio::try_join!(start(0), start(1)).unwrap();
    one.host().start_pod_vm("podvm-one").await.unwrap();
    assert_eq!(one.host().virsh().domains().await.unwrap(), ["podvm-one", "test"]);
    assert_eq!(two.host().virsh().domains().await.unwrap(), ["test"]);
}

#[tokio::test]
async fn four_hundred_pod_vms_are_made_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let libvirtd = Libvirtd::start(dir.path(), Lifetime::Owned).await.unwrap();
    let names: Vec<_> = (0..400).map(|number| format!("podvm-{number}")).collect();
    let vms = libvirtd.host().start_pod_vms(&names).await.unwrap();
    assert!(vms.iter().map(|vm| &vm.domain.name).eq(&names));
    assert_eq!(libvirtd.host().virsh().domains().await.unwrap().len(), 401);
}

#[tokio::test]
async fn a_paused_daemon_answers_again_and_a_restarted_one_has_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let mut libvirtd = Libvirtd::start(dir.path(), Lifetime::Owned).await.unwrap();
    let vm = libvirtd.host().start_pod_vm("podvm-a").await.unwrap();

    libvirtd.pause().unwrap();
    let look_up = |libvirtd: &Libvirtd| {
        let client = libvirtd.host().client().clone();
        async move { client.domain_lookup_by_uuid(vm.domain.uuid).await }
    };
    let hanging = tokio::time::timeout(Duration::from_millis(500), look_up(&libvirtd)).await;
    assert!(hanging.is_err(), "a paused daemon does not answer");
    libvirtd.resume().unwrap();
    assert_eq!(look_up(&libvirtd).await.unwrap(), vm.domain);

    let uri = libvirtd.host().uri().clone();
    libvirtd.restart().await.unwrap();
    assert_eq!(*libvirtd.host().uri(), uri);
    assert_eq!(look_up(&libvirtd).await.unwrap_err().code(), Some(ErrorCode::NoDomain));

    libvirtd.stop().await.unwrap();
    assert!(libvirtd.host().virsh().domains().await.is_err());
}

#[tokio::test]
async fn a_detached_daemon_keeps_its_state_until_it_is_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let libvirtd = Libvirtd::start(dir.path(), Lifetime::Detached).await.unwrap();
    libvirtd.host().start_pod_vm("podvm-a").await.unwrap();
    let virsh = libvirtd.host().virsh();
    drop(libvirtd);
    let domains = virsh.domains().await;
    Libvirtd::stop_detached(dir.path()).await.unwrap();
    assert_eq!(domains.unwrap(), ["podvm-a", "test"]);
    assert!(virsh.domains().await.is_err());
    Libvirtd::stop_detached(dir.path()).await.expect("stopping twice is fine");
}

#[tokio::test]
async fn a_qemu_pod_vm_is_a_process_with_files() {
    let dir = tempfile::tempdir().unwrap();
    let mut libvirtd = QemuLibvirtd::start(dir.path()).await.unwrap();
    let vms = libvirtd.host().start_pod_vms(&names(&["podvm-a", "podvm-b"])).await.unwrap();
    let virsh = libvirtd.host().virsh();
    assert_eq!(virsh.domains().await.unwrap(), ["podvm-a", "podvm-b"]);
    assert_eq!(virsh.run(&["domstate", "podvm-a"]).await.unwrap().trim(), "running");
    assert_eq!(virsh.volumes(POOL).await.unwrap().len(), 5);
    for vm in &vms {
        assert!(std::path::Path::new(&vm.root.key).exists());
        assert!(libvirtd.nvram(&vm.domain.name).exists());
    }
    assert!(qemu_processes(dir.path()) >= 2);

    libvirtd.stop().await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while qemu_processes(dir.path()) > 0 {
        assert!(Instant::now() < deadline, "QEMU outlived its daemon");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Processes whose command line names a path in this folder.
fn qemu_processes(dir: &std::path::Path) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let command_lines = processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    let dir = dir.to_str().unwrap();
    command_lines
        .filter(|line| line.starts_with(b"/usr/bin/qemu") && String::from_utf8_lossy(line).contains(dir))
        .count()
}
