//! A libvirt host elsewhere, reached as cloud-api-adaptor reaches it: by ssh.

use std::fs;

use anyhow::{Context as _, Result};
use peers::sshd::{self, Sshd};
use testbed::Settings;

use crate::support::alone;

#[test]
fn a_machine_goes_over_ssh_once_the_host_has_shown_a_key_that_is_known() -> Result<()> {
    alone(async |alone| {
        let dir = tempfile::tempdir()?;
        let socket = alone.libvirtd.host().uri().socket().context("this libvirtd has a socket")?;
        let libvirt = socket.parent().map(ToOwned::to_owned);
        let options = sshd::Options { libvirt, ..sshd::Options::default() };
        let sshd = Sshd::start(&dir.path().join("sshd"), &options).await?;
        // As the Secret is mounted: a private key, and the keys of hosts.
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
        assert!(condition.message.contains("is not known"), "{}", condition.message);
        alone.scene().lives(&vm).await?;

        fs::copy(sshd.known_hosts("ed25519")?, &known_hosts)?;
        // A change of the settings is what makes it look again at once.
        alone.operator.mount(&Settings::libvirt(&format!("{uri}&mode=legacy")))?;
        alone.scene().released(&vm.name()).await?;
        alone.scene().vanished(&vm).await
    })
}
