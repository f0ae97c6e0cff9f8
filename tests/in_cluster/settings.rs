//! Settings that are edited while the operator runs.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use peerpod_operator::names::SSH_KEY_SECRET;
use peers::sshd::{self, Sshd};
use serde_json::json;
use testbed::Pods;

use crate::support::alone;

/// The names of the Pods, and how often their containers restarted.
fn lives(pods: &[Pod]) -> Vec<(String, i32)> {
    let mut lives: Vec<_> = pods
        .iter()
        .map(|pod| {
            let containers = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
            (pod.name_any(), containers.map(|it| it.restart_count).sum())
        })
        .collect();
    lives.sort();
    lives
}

#[test]
fn an_edited_uri_makes_the_operator_use_ssh_without_a_restart() -> Result<()> {
    alone(async |installation| {
        let host = installation.testbed.cluster().host_address().context("an address of this machine")?;
        let socket = installation.host().uri().socket().context("this libvirtd has a socket")?;
        let libvirt = socket.parent().map(ToOwned::to_owned);
        let options = sshd::Options { libvirt, address: Some(host), ..sshd::Options::default() };
        let sshd = Sshd::start(&installation.dir.join("sshd"), &options).await?;
        let before = lives(&installation.operators().list().await?);
        let tcp = format!("test+tcp://{host}/default");

        // cloud-api-adaptor finds keys of these names, because the Secret is mounted at ~/.ssh.
        let key = json!({
            "id_ed25519": fs::read_to_string(sshd.key("ed25519"))?,
            "known_hosts": fs::read_to_string(sshd.known_hosts("ed25519")?)?,
        });
        installation.put_secret(SSH_KEY_SECRET, key).await?;
        let uri = format!(
            "test+ssh://root@{}/default?keyfile=/root/.ssh/id_ed25519&known_hosts=/root/.ssh/known_hosts",
            sshd.authority()
        );
        installation.set(json!({ "LIBVIRT_URI": uri })).await?;
        let reaped = async || -> Result<()> {
            let namespace = installation.testbed.namespace("test").await?;
            let vm = installation.pod_with_vm(&namespace, "web").await?;
            Pods::new(installation.testbed.client(), &namespace).delete("web").await?;
            installation.reaped(&namespace, &vm).await?;
            ensure!(sshd.sessions()? > 0, "it did not go by ssh");
            Ok(())
        };
        let outcome = reaped().await;
        // Restores the address for the next tests. Otherwise the operator would look for their VMs by ssh, too.
        installation.set(json!({ "LIBVIRT_URI": tcp })).await?;
        installation.forget_earlier_places().await?;
        outcome?;
        assert_eq!(lives(&installation.operators().list().await?), before);
        Ok(())
    })
}
