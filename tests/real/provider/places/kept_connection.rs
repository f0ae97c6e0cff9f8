//! An address that leads to another host of libvirt, while connections to the former one stay open.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use futures::{FutureExt as _, future::join_all};
use peerpod_operator::provider::{
    Claim, ErrorClass, InstanceId, Provider, cloud::RecordedPlace, libvirt::CLOUD,
};
use peers::libvirt::{Host, QemuLibvirtd, Relay};
use testbed::{
    Settings, vm_name,
    wait::{self, DEADLINE},
};
use tokio::sync::Notify;
use uuid::Uuid;

use super::{TwoHosts, forget};
use crate::{
    provider::own,
    support::{Scene, alone, run},
};

/// A provider for the relay's address on this host. The second is notified if another host answers.
async fn open(relay: &Relay, host: &Host) -> Result<(Box<dyn Provider>, Arc<Notify>)> {
    let uuid = host.client().host_uuid().await?.context("it has a UUID")?.to_string();
    let (address, host_changed) = (relay.uri().address(), Arc::new(Notify::new()));
    let recorded = RecordedPlace::current(&address, Some(&uuid), Arc::clone(&host_changed));
    let provider = Settings::libvirt(&relay.uri().to_string()).open_at(Some(recorded))?;
    Ok((provider, host_changed))
}

/// Why the VM is not described, if it is not.
async fn missing(provider: &dyn Provider, id: &InstanceId) -> Option<ErrorClass> {
    provider.describe(id, &Claim::default()).await.err().map(|error| error.class)
}

#[test]
fn an_answer_of_a_former_host_proves_no_absence() -> Result<()> {
    run(async {
        let hosts = TwoHosts::start().await?;
        let (relay, before, after) = (&hosts.relay, hosts.before.host(), hosts.after.host());
        let (provider, host_changed) = open(relay, before).await?;
        let provider = &*provider;
        let uuid = before.start_pod_vm(&vm_name("web")).await?.domain.uuid.to_string();
        let deleted = InstanceId::of(&CLOUD, &uuid)?;
        let uuid = before.start_pod_vm(&vm_name("stays")).await?.domain.uuid.to_string();
        let stays = InstanceId::of(&CLOUD, &uuid)?;
        provider.delete(&own(provider, &CLOUD, deleted.as_str(), "web").await?).await?;
        provider.list(&mut |_| {}).await?;

        relay.lead_to(after)?;
        assert_eq!(missing(provider, &deleted).await, Some(ErrorClass::NotFound), "it was deleted there");
        assert_eq!(missing(provider, &stays).await, None, "the connection to the former host is open");
        ensure!(host_changed.notified().now_or_never().is_none(), "another host was asked");
        // A machine so slow that the other host does not answer in time is no proof either.
        wait::eventually("the other host was noticed", DEADLINE, async || {
            let error =
                provider.describe(&deleted, &Claim::default()).await.err().context("it is described")?;
            assert_eq!(error.class, ErrorClass::Transient, "{error}");
            host_changed.notified().now_or_never().with_context(|| error.to_string())
        })
        .await?;
        let listed = provider.list(&mut |_| {}).await;
        let is_of_other_host = listed.as_ref().is_err_and(|error| {
            error.class == ErrorClass::Transient && error.to_string().contains("another host than before")
        });
        ensure!(is_of_other_host, "{listed:?}");

        relay.lead_to(before)?;
        assert_eq!(missing(provider, &deleted).await, Some(ErrorClass::NotFound));
        provider.list(&mut |_| {}).await?;
        Ok(())
    })
}

#[test]
fn one_connection_proves_the_absence_of_many_vms() -> Result<()> {
    run(async {
        let dirs = [tempfile::tempdir()?, tempfile::tempdir()?];
        let libvirtd = QemuLibvirtd::start(dirs[0].path()).await?;
        let relay = Relay::start(libvirtd.host(), dirs[1].path(), Duration::from_millis(50))?;
        let (provider, _) = open(&relay, libvirtd.host()).await?;
        let ids: Vec<_> = (1..=20)
            .map(|number| InstanceId::of(&CLOUD, &Uuid::from_u128(number).to_string()))
            .collect::<Result<_, _>>()?;
        let ask = async || {
            let opened = relay.connections();
            let all = join_all(ids.iter().map(|id| missing(&*provider, id))).await;
            ensure!(all.iter().all(|it| *it == Some(ErrorClass::NotFound)), "{all:?}");
            anyhow::Ok(relay.connections() - opened)
        };
        // The first time, connections for calls are opened, too.
        ask().await?;
        let opened = ask().await?;
        // More than one on a machine so slow that calls stall.
        ensure!((1..=4).contains(&opened), "{opened} connections");
        Ok(())
    })
}

#[test]
fn a_vm_on_the_host_to_which_the_address_leads_now_is_not_absent() -> Result<()> {
    alone(async |alone| {
        let hosts = TwoHosts::start().await?;
        let (key, stays) = hosts.until_known(alone).await?;
        let on_former = Scene { host: hosts.before.host(), ..alone.scene() };

        // As after a restart of cloud-api-adaptor: it makes VMs on the other host.
        hosts.relay.lead_to(hosts.after.host())?;
        let scene = Scene { host: hosts.after.host(), ..alone.scene() };
        let later = scene.pod_with_vm("later").await?;
        scene.pods.delete("later").await?;
        scene.reaped(&later).await?;

        scene.pods.delete("stays").await?;
        let condition = scene.held(&stays.name(), "InvalidSettings").await?;
        let message = "another host, account or pool answers there than before";
        ensure!(condition.message.contains(message), "{condition:?}");
        on_former.lives(&stays).await?;

        forget(alone, &key).await?;
        alone.scene().released(&stays.name()).await?;
        on_former.lives(&stays).await
    })
}
