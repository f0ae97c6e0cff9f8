//! A libvirt host elsewhere, reached as cloud-api-adaptor reaches it: by ssh.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use peers::sshd::{self, Sshd};
use testbed::{
    Settings,
    wait::{self, DEADLINE},
};

use crate::support::alone;

#[test]
fn a_machine_is_deleted_over_ssh_once_the_host_key_is_known() -> Result<()> {
    alone(async |alone| {
        let dir = tempfile::tempdir()?;
        let socket = alone.libvirtd.host().uri().socket().context("this libvirtd has a socket")?;
        let libvirt = socket.parent().map(ToOwned::to_owned);
        let options = sshd::Options { libvirt, ..sshd::Options::default() };
        let sshd = Sshd::start(&dir.path().join("sshd"), &options).await?;
        // The files of the mounted Secret: a private key, and the keys of hosts.
        let known_hosts = dir.path().join("known_hosts");
        fs::write(&known_hosts, "")?;
        let uri = format!(
            "test+ssh://root@{}/default?keyfile={}&known_hosts={}",
            sshd.authority(),
            sshd.key("ed25519").display(),
            known_hosts.display(),
        );
        alone.operator.mount(&Settings::libvirt(&uri))?;
        alone.operator.reloaded(2, 0).await?;
        let vm = alone.scene().pod_with_vm("web").await?;
        alone.scene().pods.delete("web").await?;
        let condition = alone.scene().held(&vm.name(), "Unauthorized").await?;
        assert_eq!(condition.type_, "Stalled");
        assert!(condition.message.contains("cannot authenticate each other"), "{}", condition.message);
        ensure!(alone.operator.log()?.contains("is not known"), "the log does not say why");
        alone.scene().lives(&vm).await?;

        fs::copy(sshd.known_hosts("ed25519")?, &known_hosts)?;
        // A change of the settings makes the operator look again at once.
        alone.operator.mount(&Settings::libvirt(&format!("{uri}&mode=legacy")))?;
        alone.scene().reaped(&vm).await
    })
}

#[test]
fn only_the_log_shows_the_address_of_an_unreachable_host() -> Result<()> {
    alone(async |alone| {
        let hosts = [
            ("ssh", "qemu+ssh://jim@127.0.0.1:1/system?keyfile=/nowhere/key"),
            ("tcp", "qemu+tcp://127.0.0.1:2/system"),
            ("socket", "qemu+unix:///system?socket=/nowhere/socket"),
        ];
        for (generation, (pod, uri)) in (2..).zip(hosts) {
            alone.operator.mount(&Settings::libvirt(uri))?;
            alone.operator.reloaded(generation, 0).await?;
            let scene = alone.scene();
            let vm = scene.pod_with_vm(pod).await?;
            scene.pods.delete(pod).await?;
            let condition = scene.held(&vm.name(), "CloudUnavailable").await?;
            ensure!(condition.message.contains("cannot connect to libvirt"), "{condition:?}");
            wait::eventually("there is an event", DEADLINE, async || {
                scene.shows_none_of(&vm.name(), &["jim", "127.0.0.1", "/nowhere", "qemu"]).await
            })
            .await?;
        }
        let log = alone.operator.log()?;
        for address in
            ["qemu+ssh://jim@127.0.0.1:1/system", "libvirt at 127.0.0.1:2 (tcp)", "/nowhere/socket"]
        {
            ensure!(log.contains(address), "{address} is not in the log");
        }
        Ok(())
    })
}
